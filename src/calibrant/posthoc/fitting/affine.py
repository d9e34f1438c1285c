"""Affine maps of class scores, fitted by penalised likelihood: the core of vector and matrix scaling."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.errors import InputError

# Entries handled at once: large enough for fast products of matrices, small beside the data.
_BLOCK_ENTRIES = 1 << 20


@dataclass(frozen=True)
class Ridge:
    """What a map pays, in nats of the whole fitting set, per squared unit of distance from the identity.

    An infinite price on the off-diagonals makes the map one scale and one intercept per class.
    """

    diagonal: float
    off_diagonal: float
    intercept: float

    @property
    def is_diagonal(self) -> bool:
        """Whether the map has one scale per class rather than a matrix."""
        return math.isinf(self.off_diagonal)

    def times(self, factor: float) -> "Ridge":
        """Return all prices multiplied by a factor."""
        return Ridge(self.diagonal * factor, self.off_diagonal * factor, self.intercept * factor)


def check_price(value: float, name: str) -> float:
    """Check a factor of a ridge: a positive finite number, so that a best map exists."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise InputError(f"{name}: expected a positive finite number, got {value!r}")
    return float(value)


@dataclass(frozen=True, eq=False)
class AffineMap:
    """``x -> x + x D' + b``; ``change`` D has shape ``(k, k)``, or ``(k,)`` for its diagonal alone."""

    change: Tensor
    intercept: Tensor

    @classmethod
    def identity(cls, k: int, *, diagonal: bool, device: torch.device) -> "AffineMap":
        """Return the map that changes nothing."""
        shape = (k,) if diagonal else (k, k)
        zeros = torch.zeros(shape, dtype=torch.float64, device=device)
        return cls(zeros, torch.zeros(k, dtype=torch.float64, device=device))

    @property
    def weight(self) -> Tensor:
        """The factor of ``x``: the scales of the classes, or the whole matrix."""
        one = torch.ones_like(self.intercept)
        return self.change + (one if self.change.ndim == 1 else torch.diag(one))

    def __call__(self, x: Tensor) -> Tensor:
        """Return mapped scores of shape ``(n, k)``."""
        weight, intercept = self.weight.to(x.dtype), self.intercept.to(x.dtype)
        return (x * weight if weight.ndim == 1 else x @ weight.T) + intercept

    def nll(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the negative log-likelihood of each sample, in float64."""
        rows = _rows_at_once(x)
        parts = zip(x.split(rows), y.split(rows), strict=True)
        return torch.cat([_nll(self(block), label) for block, label in parts])


def fit_affine(
    x: Tensor,
    y: Tensor,
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
        x: Scores of shape ``(n, k)``, of a scale at which the identity is a sensible guess.
        y: Labels of shape ``(n,)``.
        ridge: Prices of leaving the identity.
        start: Where to begin.
        tolerance: Stop when a step lowers the objective by less than this.
        max_steps: Stop after this many steps.
    """
    n, k = x.shape
    start = start or AffineMap.identity(k, diagonal=ridge.is_diagonal, device=x.device)
    prices = _prices(ridge, start) / n
    scale = (_curvature(x, start) + 2 * prices + 1e-9).rsqrt()
    point = _to_columns(start) / scale
    # SciPy's L-BFGS-B spends more time on itself than on the data when there are many classes.
    search = torch.optim.LBFGS(
        [point],
        max_iter=max_steps,
        tolerance_grad=1e-9,
        tolerance_change=tolerance,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def objective() -> float:
        columns = point * scale
        loss, gradient = _loss_and_gradient(x, y, _from_columns(columns, start))
        point.grad = (gradient + 2 * prices * columns) * scale
        return loss + float((prices * columns.square()).sum())

    search.step(objective)
    return _from_columns(point * scale, start)


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
    on = torch.full_like(like.intercept, ridge.diagonal)
    change = on if like.change.ndim == 1 else torch.full_like(like.change, ridge.off_diagonal)
    if like.change.ndim == 2:
        change = change.diagonal_scatter(on)
    return _to_columns(AffineMap(change, torch.full_like(like.intercept, ridge.intercept)))


def _curvature(x: Tensor, affine: AffineMap) -> Tensor:
    """Return the diagonal of the Hessian of the mean negative log-likelihood, in columns."""
    total = torch.zeros_like(_to_columns(affine))
    for block in x.split(_rows_at_once(x)):
        p = torch.softmax(affine(block), dim=1)
        total += _products(p * (1 - p), block.square(), affine)
    return total / len(x)


def _loss_and_gradient(x: Tensor, y: Tensor, affine: AffineMap) -> tuple[float, Tensor]:
    loss = torch.zeros((), dtype=torch.float64, device=x.device)
    gradient = torch.zeros_like(_to_columns(affine))
    for block, label in zip(x.split(_rows_at_once(x)), y.split(_rows_at_once(x)), strict=True):
        u = affine(block)
        loss += _nll(u, label).sum()
        surplus = torch.softmax(u, dim=1)
        surplus[torch.arange(len(label), device=x.device), label] -= 1
        gradient += _products(surplus, block, affine)
    return float(loss) / len(x), gradient / len(x)


def _products(left: Tensor, right: Tensor, like: AffineMap) -> Tensor:
    """Sum over samples ``left_j right_l`` (only ``l = j`` for a diagonal) and ``left_j``, in columns."""
    pairs = (left * right).sum(dim=0) if like.change.ndim == 1 else left.T @ right
    return _to_columns(AffineMap(pairs.double(), left.sum(dim=0).double()))
