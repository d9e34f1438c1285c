"""Affine maps of class scores, fitted by penalised likelihood: the core of vector and matrix scaling.

The strength of the penalty is chosen by five-fold cross-validation.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.inputs import at_least_float32, check_number, masked_classes
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.fitting.folds import each_fold
from calibrant.posthoc.fitting.masked import lowest_for_masked, mask_again
from calibrant.posthoc.fitting.stored import Numbers, declare
from calibrant.posthoc.fitting.weighing import of_units, rows_of, size_of, sum_of
from calibrant.posthoc.fitting_set import FittingSet
from calibrant.solvers import convex_minimum

# ODIR leaves the diagonal free; this weak pull, in nats, keeps it finite with a class that never occurs.
DIAGONAL_PRICE = 5.0

# Factors of the ridge that are tried, the strongest first.
RIDGE_STRENGTHS = (100.0, 10.0, 1.0, 0.1, 0.01)

_FOLDS = 5
# Above this many multiplications per pass, fewer of the folds are held out: there are many samples then.
_FEWER_FOLDS = ((1 << 29, 1),)

# Below this a probability may have lost digits.
_UNDERFLOW = 1e-30

# Entries handled at once: large enough for fast products of matrices, small beside the data.
_BLOCK_ENTRIES = 1 << 20

# With at most this many classes and more than so many rows, the numbers of a class stand side by side.
_FEW_CLASSES, _MANY_ROWS = 32, 10_000


@dataclass(frozen=True)
class Ridge:
    """Penalty weights on the squared distance from the identity, in nats of the whole fitting set.

    An infinite price on the off-diagonals makes the map one scale and one intercept per class.
    """

    diagonal: float
    off_diagonal: float
    intercept: float

    def times(self, factor: float) -> "Ridge":
        """Return all prices multiplied by a factor."""
        return Ridge(self.diagonal * factor, self.off_diagonal * factor, self.intercept * factor)


class LinearMap(Calibrator):
    """Multiply the scores of a row by a matrix or by one scale each, add intercepts, and take the softmax.

    A masked class has the probability 0; to the other classes it is as the least likely one of its row.
    """

    masks = True
    stored = declare(weight=Numbers(("k", "k"), also=("k",)), intercept=Numbers(("k",)))

    weight: Tensor
    intercept: Tensor

    def __init__(self, weight: Tensor, intercept: Tensor) -> None:
        super().__init__(n_classes=len(intercept))
        self.register_buffers(weight=weight, intercept=intercept)

    @classmethod
    def memory(cls, n: int, k: int) -> int:
        """Return about how many bytes a fit needs: the last steps of the search in float32 and a few maps."""
        return super().memory(n, k) + 250 * k * (k + 1)

    def scores(self, logits: Tensor) -> Tensor:
        """Return the scores that the weights are applied to, any for masked classes: here the logits."""
        return logits

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        z = at_least_float32(logits)
        masked = z == -torch.inf
        mapped = _mapped(lowest_for_masked(self.scores(z), masked), self.weight, self.intercept)
        return torch.log_softmax(mapped.masked_fill(masked, -torch.inf), dim=1)


def odir(k: int, strength: float) -> Ridge:
    """Return off-diagonal and intercept regularisation (ODIR), in proportion to the number of entries."""
    return Ridge(DIAGONAL_PRICE, k * (k - 1) * strength, k * strength)


@dataclass(frozen=True, eq=False)
class AffineMap:
    """``x -> x + x D' + b``; ``change`` D has shape ``(k, k)``, or ``(k,)`` for its diagonal alone."""

    change: Tensor
    intercept: Tensor

    @property
    def weight(self) -> Tensor:
        """The factor of ``x``: the scales of the classes, or the whole matrix."""
        one = torch.ones_like(self.intercept)
        return self.change + (one if self.change.ndim == 1 else torch.diag(one))

    def __call__(self, x: Tensor) -> Tensor:
        """Return mapped scores of shape ``(n, k)``; those of masked classes stay ``-inf``."""
        if masked_classes(x) is None:
            return _mapped(x, self.weight, self.intercept)
        return mask_again(_mapped(lowest_for_masked(x), self.weight, self.intercept), x)

    def nll(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the negative log-likelihood of each sample, in float64."""
        rows = _rows_at_once(x)
        parts = zip(x.split(rows), y.split(rows), strict=True)
        return torch.cat([_nll(self(block), label) for block, label in parts])


def fit_affine(
    data: FittingSet,
    ridge: Ridge,
    *,
    start: AffineMap | None = None,
    tolerance: float = 1e-8,
    max_steps: int = 200,
) -> AffineMap:
    r"""Minimise the mean negative log-likelihood plus the ridge, which is convex, by L-BFGS.

    .. math:: \frac1n \sum_i -\log \mathrm{softmax}(x_i + D x_i + b)_{y_i} + \frac1n \sum_{jl} r_{jl} D_{jl}^2
              + \frac{r_b}{n} |b|^2

    The search begins at ``start`` (the identity if none) and only descends. Coordinates are scaled by the
    curvature there, which the data and the ridge give in one pass.

    Args:
        data: Samples whose logits have a scale at which the identity is a sensible guess. With weights the
            mean is weighted, and :math:`n` the effective number.
        ridge: Prices of leaving the identity.
        start: Where to begin.
        tolerance: Stop when a step lowers the objective by less than this.
        max_steps: Stop after this many steps.
    """
    likelihood = _Likelihood(data.logits, data.labels, data.weights)
    return _search(likelihood, ridge, start or identity_map(data.logits, ridge), tolerance, max_steps)


def _search(
    likelihood: "_Likelihood", ridge: Ridge, start: AffineMap, tolerance: float, max_steps: int
) -> AffineMap:
    prices = _prices(ridge, start) / likelihood.n
    scale = (likelihood.curvature(start) + 2 * prices + 1e-9).rsqrt()

    def objective(point: Tensor) -> tuple[float, Tensor]:
        columns = point * scale
        loss, gradient = likelihood(_from_columns(columns, start))
        gradient.add_(2 * prices * columns).mul_(scale)
        return loss + float((prices * columns.square()).sum()), gradient

    point = convex_minimum(objective, _to_columns(start) / scale, tolerance=tolerance, max_steps=max_steps)
    return _from_columns(point * scale, start)


def choose_ridge(data: FittingSet, path: Sequence[Ridge]) -> int | None:
    """Choose a ridge by cross-validation and return its place in the path, from strong to weak.

    The identity, which is returned as None, is the strongest of all.
    The choice is the strongest ridge whose held-out likelihood is within one standard error (of the paired
    difference) of the best; the identity is the strongest of all. The search ends after a ridge that does
    worse than the best so far by more than a standard error, or after two that do worse. So weak ridges,
    which are slow to fit and overfit, are seldom tried.
    """
    if data.n_units < 2 * _FOLDS:
        return None
    chosen = strongest_within_error(*_held_out(data, path, identity_map(data.logits, path[0])))
    return chosen - 1 if chosen else None


def fit_strength(
    data: FittingSet,
    ridge_of: Callable[[float], Ridge],
    strength: float | None,
    *,
    tolerance: float = 1e-8,
) -> tuple[AffineMap, float]:
    """Fit the affine map with a ridge of this strength, or of the strength that :func:`choose_ridge` chooses.

    Returns:
        The map and the strength, which is infinite if the map is the identity.
    """
    if strength is None:
        chosen = choose_ridge(data, [ridge_of(s) for s in RIDGE_STRENGTHS])
        strength = math.inf if chosen is None else RIDGE_STRENGTHS[chosen]
    if strength == math.inf:
        return identity_map(data.logits, ridge_of(1.0)), strength
    return fit_affine(data, ridge_of(strength), tolerance=tolerance), strength


def check_strength(strength: float | None) -> float | None:
    """Refuse a strength that is not a positive number; infinity and None are allowed."""
    return strength if strength in (None, math.inf) else check_number(strength, "strength")


def identity_map(x: Tensor, ridge: Ridge) -> AffineMap:
    """Return the map that changes nothing, in the shape that the ridge allows."""
    zeros = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
    return AffineMap(zeros if math.isinf(ridge.off_diagonal) else torch.diag(zeros), zeros)


def _held_out(
    data: FittingSet, path: Sequence[Ridge], identity: AffineMap
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the held-out NLL of each sample under the identity, then under each ridge tried, in rows.

    The other results are the weights and the units of these samples.
    """
    x, y, weights = data.logits, data.labels, data.weights
    parts = list(each_fold(data.dealt(_FOLDS)))
    parts = parts[: next((count for size, count in _FEWER_FOLDS if x.numel() * x.shape[1] > size), _FOLDS)]
    rows = torch.cat([held_out for _, held_out in parts])
    losses, maps = [identity.nll(x[rows], y[rows])], [identity] * len(parts)
    likelihoods = [_Likelihood(x[rest], y[rest], rows_of(weights, rest)) for rest, _ in parts]
    counts, units = rows_of(weights, rows), rows_of(data.units, rows)
    for ridge in path:
        maps = [
            _search(likelihood, ridge, begin, tolerance=2e-5, max_steps=50)
            for likelihood, begin in zip(likelihoods, maps, strict=True)
        ]
        losses.append(torch.cat([m.nll(x[rows], y[rows]) for m, (_, rows) in zip(maps, parts, strict=True)]))
        if _has_passed_the_best(torch.stack(losses), counts, units):
            break
    return torch.stack(losses), counts, units


def _has_passed_the_best(losses: Tensor, weights: Tensor | None, units: Tensor | None) -> bool:
    """Whether the last row is clearly worse than the best one, or the last two rows are worse."""
    best = _best_row(losses, weights)
    behind, error = _sums_and_errors(losses[-1:] - losses[best], weights, units)
    clearly = float(behind) > float(error)
    return best < len(losses) - 2 or (best < len(losses) - 1 and clearly)


def strongest_within_error(losses: Tensor, weights: Tensor | None = None, units: Tensor | None = None) -> int:
    """Return the first row of losses within one standard error (of the paired difference) of the best row.

    Args:
        losses: The held-out loss of each sample, one row for each ridge, the strongest first.
        weights: How much each sample counts.
        units: The unit of each sample, from 0, if samples depend on each other.
    """
    best = _best_row(losses, weights)
    excess, error = _sums_and_errors(losses[: best + 1] - losses[best], weights, units)
    return int((excess <= error).int().argmax())


def _best_row(losses: Tensor, weights: Tensor | None) -> int:
    return int((losses.sum(dim=1) if weights is None else losses @ weights).argmin())


def _sums_and_errors(excess: Tensor, weights: Tensor | None, units: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the sum of each row and its standard error, for independent units."""
    if units is not None:
        w = torch.ones_like(excess[0]) if weights is None else weights
        total = excess @ w
        sums = of_units(w * (excess - total[:, None] / w.sum()), units)
        return total, sums.norm(dim=1) * math.sqrt(sums.shape[1] / max(sums.shape[1] - 1, 1))
    if weights is None:
        return excess.sum(dim=1), excess.std(dim=1) * math.sqrt(excess.shape[1])
    total, n = excess @ weights, weights.sum()
    variance = (excess - total[:, None] / n).square() @ weights / n
    return total, (variance * n * n / (n - 1).clamp(min=1e-9)).sqrt()


def _mapped(x: Tensor, weight: Tensor, intercept: Tensor, *, out: Tensor | None = None) -> Tensor:
    weight, intercept = weight.to(x.dtype), intercept.to(x.dtype)
    if weight.ndim == 1:
        return torch.addcmul(intercept, x, weight, out=out)
    return torch.mm(x, weight.T, out=out).add_(intercept)


def _rows_at_once(x: Tensor) -> int:
    return max(1, _BLOCK_ENTRIES // x.shape[1])


def _nll(u: Tensor, y: Tensor) -> Tensor:
    return (torch.logsumexp(u, dim=1) - u.gather(1, y[:, None]).squeeze(1)).double()


def _to_columns(affine: AffineMap) -> Tensor:
    """Put the intercepts behind the changes: shape ``(k, k + 1)``, or ``(k, 2)`` for a diagonal."""
    change = affine.change[:, None] if affine.change.ndim == 1 else affine.change
    return torch.cat([change, affine.intercept[:, None]], dim=1)


def _from_columns(columns: Tensor, like: AffineMap) -> AffineMap:
    return AffineMap(columns[:, :-1].reshape(like.change.shape), columns[:, -1])


def _prices(ridge: Ridge, like: AffineMap) -> Tensor:
    change = on = torch.full_like(like.intercept, ridge.diagonal)
    if like.change.ndim == 2:
        change = torch.full_like(like.change, ridge.off_diagonal).diagonal_scatter(on)
    return _to_columns(AffineMap(change, torch.full_like(like.intercept, ridge.intercept)))


class _Likelihood:
    """The mean negative log-likelihood of affine maps on one fitting set, and its gradient.

    A search calls it many times. Its arrays are allocated once, because new memory of this size would cost
    as much as the arithmetic.
    """

    def __init__(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> None:
        rows = min(len(x), _rows_at_once(x))
        self.n = size_of(x, weights)
        masked = masked_classes(x)
        x = x if masked is None else lowest_for_masked(x)
        blocks = x.split(rows), y[:, None].split(rows)
        none = [None] * len(blocks[0])
        counts = none if weights is None else weights[:, None].split(rows)
        masks = none if masked is None else masked.split(rows)
        self._blocks = list(zip(*blocks, counts, masks, strict=True))
        self._scores, self._probs = (_empty(rows, x, along=len(x) > _MANY_ROWS) for _ in range(2))
        self._minus_one = x.new_full((rows, 1), -1.0)

    def __call__(self, affine: AffineMap) -> tuple[float, Tensor]:
        """Return the value at an affine map and the gradient, in columns."""
        loss = torch.zeros((), dtype=torch.float64, device=self._scores.device)
        gradient = torch.zeros_like(_to_columns(affine))
        weight, intercept = affine.weight, affine.intercept
        for x, y, count, masked in self._blocks:
            u, p = self._scores[: len(x)], self._probs[: len(x)]
            _mapped(x, weight, intercept, out=u)
            if masked is not None:
                u.masked_fill_(masked, -torch.inf)
            _softmax(u, p)
            of_labels = p.gather(1, y)
            if float(of_labels.min()) > _UNDERFLOW:
                loss -= sum_of(of_labels.log_(), count)
            else:
                loss += sum_of(_nll(u, y[:, 0])[:, None], count)
            p.scatter_add_(1, y, self._minus_one[: len(x)])
            if count is not None:
                p.mul_(count)
            gradient += _products(p, x, affine)
        return float(loss) / self.n, gradient.div_(self.n)

    def curvature(self, affine: AffineMap) -> Tensor:
        """Return the diagonal of the Hessian at an affine map, in columns."""
        total = torch.zeros_like(_to_columns(affine))
        for x, _, count, masked in self._blocks:
            u, p = self._scores[: len(x)], self._probs[: len(x)]
            _mapped(x, affine.weight, affine.intercept, out=u)
            if masked is not None:
                u.masked_fill_(masked, -torch.inf)
            _softmax(u, p)
            p.sub_(torch.square(p, out=u))
            if count is not None:
                p.mul_(count)
            total += _products(p, torch.square(x, out=u), affine)
        return total.div_(self.n)


def _empty(rows: int, like: Tensor, *, along: bool) -> Tensor:
    """Return an array for some rows; with few classes and ``along`` it stands column after column."""
    k = like.shape[1]
    return like.new_empty((k, rows)).T if along and k <= _FEW_CLASSES else like.new_empty((rows, k))


def _softmax(u: Tensor, out: Tensor) -> None:
    """Write the softmax of rows to ``out``; torch takes a sixth of the time along columns."""
    if u.is_contiguous():
        torch.softmax(u, dim=1, out=out)
    else:
        torch.softmax(u.T, dim=0, out=out.T)


def _products(left: Tensor, right: Tensor, like: AffineMap) -> Tensor:
    """Sum over samples ``left_j right_l`` (only ``l = j`` for a diagonal) and ``left_j``, in columns."""
    pairs = (left * right).sum(dim=0) if like.change.ndim == 1 else left.T @ right
    return _to_columns(AffineMap(pairs.double(), left.sum(dim=0).double()))
