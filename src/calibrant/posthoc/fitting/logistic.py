"""Many small logistic regressions at once, one per column, each pulled to a regression of all columns."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from calibrant.errors import FitError
from calibrant.posthoc.fitting.binary import Questions

# Makes the inputs of a regression, all of the same shape, from scores of any shape.
Inputs: TypeAlias = Callable[[Tensor], Sequence[Tensor]]

# Rows handled at once are chosen so that temporaries stay in the processor's cache.
_BLOCK_ENTRIES = 1 << 15

# The inputs of at most this many scores are kept from step to step.
_KEPT_ENTRIES = 1 << 21

# Returns the loss of each of several regressions and its first and second derivatives.
_Value: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]

_MAX_STEPS = 200

# Ridges that are found lie between these; they have settled when none changes by more than this in logarithm.
_RIDGE_RANGE = (0.03, 1e4)
_SETTLED = 0.05
_MAX_ROUNDS = 50
_PULL_TO_IDENTITY = 1.0  # of the shared regression, about one sample among all: it only has to exist


def fit_logistic(
    scores: Tensor,
    targets: Tensor,
    inputs: Inputs,
    *,
    identity: Sequence[float],
    lower: Sequence[float],
    shrinkage: float,
    ridge: Sequence[float] | None = None,
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Minimise each column's cross-entropy of :math:`\sigma(\theta \cdot x)` plus a pull to the others.

    First one :math:`\bar\theta` is fitted to all columns together, leaning very slightly on the identity.
    Then every column has its own, pulled by :math:`\tfrac s2 \sum_j v_j (\theta_j - \bar\theta_j)^2`, where
    :math:`v_j` is the variance of the input if that is below 1, else 1: as weak as :math:`s` samples for
    logits of any size. A ridge :math:`r_j` pulls every regression, the shared one too, to the identity in the
    same way.

    Args:
        scores: Shape ``(n, m)``.
        targets: Probabilities of shape ``(n, m)``.
        inputs: Makes the regression's inputs :math:`x_j` from scores.
        identity: The coefficients that change nothing, one per input and one for the intercept.
        lower: Lower bounds of the same coefficients.
        shrinkage: The strength :math:`s` of the pull; 0 leaves the plain maximum of the likelihood.
        ridge: The strengths :math:`r_j`, one per coefficient; none by default.
        weights: How many samples each entry of the scores stands for, shape ``(n, m)``; one by default.

    Returns:
        Coefficients of each column, shape ``(m, d)``, and the shared ones, shape ``(d,)``, intercept last.
    """
    bound, start = torch.tensor([lower, identity], dtype=torch.float64, device=scores.device)
    r = torch.zeros_like(start) if ridge is None else torch.tensor(ridge).to(start)
    apart = _Samples(scores, targets, torch.ones_like(targets[:1]) if weights is None else weights)
    shared = _minimise(apart.together(), inputs, start, bound, r + _PULL_TO_IDENTITY, begin=start)
    # Two pulls are one of their joint strength to the mean of both centres.
    strength = r + shrinkage
    centre = torch.lerp(shared, start, r / strength.clamp(min=torch.finfo(r.dtype).tiny))
    return _minimise(apart, inputs, centre, bound, strength, begin=shared), shared[0]


def fit_ridge(
    x: Tensor,
    targets: Tensor,
    ridge: Tensor,
    *,
    begin: Tensor | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    r"""Minimise the cross-entropy of :math:`\sigma(x \cdot \theta + b)` plus a ridge.

    .. math:: \tfrac12 \sum_j r_j \theta_j^2

    Args:
        x: Inputs of shape ``(n, d)``.
        targets: Probabilities of shape ``(n,)``.
        ridge: The strengths :math:`r_j > 0`, shape ``(d,)``; the intercept is free.
        begin: Where to begin, shape ``(d + 1,)``; zeros by default.
        weights: How many samples each row stands for, shape ``(n,)``; one by default.

    Returns:
        Coefficients of shape ``(d + 1,)``, intercept last.
    """
    objective = _Ridge(x, targets, ridge, weights)
    start = torch.zeros_like(objective.pull) if begin is None else begin
    lowest = torch.full_like(start, -torch.inf)
    return _descended(objective, start[None], lowest, certain=True)[0]


def fit_likeliest_ridge(
    x: Tensor, targets: Tensor, blocks: Tensor, *, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Fit a ridge regression with the strength for each block of inputs that makes the targets likeliest.

    The ridge is a normal prior of the coefficients with variance :math:`1/r_b`. The likelihood of the targets
    with the coefficients integrated out, by Laplace's approximation, is highest where

    .. math:: r_b = \frac{d_b - r_b \operatorname{tr} (H^{-1})_{bb}}{|\theta_b|^2}

    with the :math:`d_b` coefficients of the block and the curvature :math:`H` of the objective; this is
    repeated until it holds (MacKay, "The Evidence Framework Applied to Classification Networks", 1992). A
    block of inputs that say nothing gets a strong ridge.

    Args:
        x: Inputs of shape ``(n, d)``.
        targets: Probabilities of shape ``(n,)``.
        blocks: The block of each input, shape ``(d,)``.
        weights: How many samples each row stands for, shape ``(n,)``; one by default.

    Returns:
        Coefficients of shape ``(d + 1,)``, intercept last, and the ridge of each input, shape ``(d,)``.
    """
    _, place, size = torch.unique(blocks, return_inverse=True, return_counts=True)

    def summed(each: Tensor) -> Tensor:
        return each.new_zeros(len(size)).index_add(0, place, each)

    ridge = x.new_ones(len(size))
    theta = fit_ridge(x, targets, ridge[place], weights=weights)
    for _ in range(_MAX_ROUNDS if len(size) else 0):
        curve = _Ridge(x, targets, ridge[place], weights)(theta[None])[2][0]
        spread = torch.linalg.inv(curve).diagonal()[:-1]
        likelier = (size - ridge * summed(spread)) / summed(theta[:-1].square()).clamp(min=1e-12)
        likelier = likelier.clamp(*_RIDGE_RANGE)
        settled = float((likelier / ridge).log().abs().max()) < _SETTLED
        ridge = likelier
        theta = fit_ridge(x, targets, ridge[place], begin=theta, weights=weights)
        if settled:
            break
    return theta, ridge[place]


class _Ridge:
    """The objective of a ridge regression and its derivatives; ``pull`` is the ridge of all coefficients."""

    def __init__(self, x: Tensor, targets: Tensor, ridge: Tensor, weights: Tensor | None) -> None:
        self._counts = targets.new_ones(()) if weights is None else weights
        self._design, self._targets = torch.cat([x, torch.ones_like(x[:, :1])], dim=1), targets
        # The intercept needs any ridge at all in case all targets are alike.
        self.pull = torch.cat([ridge, ridge.new_tensor([1e-6])])

    def __call__(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        eta = theta @ self._design.T
        p = torch.sigmoid(eta)
        losses = self._counts * _log_losses(eta, p, self._targets)
        loss = losses.sum(dim=1) + (self.pull * theta.square()).sum(dim=1) / 2
        weighted = self._design * (self._counts * p * (1 - p))[0, :, None]
        curve = weighted.T @ self._design + torch.diag(self.pull)
        surplus = self._counts * (p - self._targets)
        return loss, surplus @ self._design + self.pull * theta, curve[None]


# Inputs, targets and weights of some rows.
_Block: TypeAlias = tuple[Sequence[Tensor], Tensor, Tensor]


class _Samples(NamedTuple):
    """Scores and targets of shape ``(n, m)``; weights of the same shape, or one row of ones for all."""

    scores: Tensor
    targets: Tensor
    weights: Tensor

    def together(self) -> "_Samples":
        """Return all columns as one."""
        one_row = len(self.weights) < len(self.scores)
        weights = self.weights[:, :1] if one_row else self.weights.reshape(-1, 1)
        return _Samples(self.scores.reshape(-1, 1), self.targets.reshape(-1, 1), weights)

    def blocks(self, inputs: Inputs) -> Iterator[_Block]:
        """Yield some rows at a time."""
        rows = max(1, _BLOCK_ENTRIES // self.scores.shape[1])
        for start in range(0, len(self.scores), rows):
            part = slice(start, start + rows)
            weights = self.weights if len(self.weights) < len(self.scores) else self.weights[part]
            yield inputs(self.scores[part].double()), self.targets[part], weights

    def variance(self, x: Tensor) -> Tensor:
        """Return the variance of each column of an input, between 1e-12 and 1."""
        share = self.weights.expand_as(self.targets)
        share = share / share.sum(dim=0).clamp(min=1e-12)
        return (share * (x.double() - (share * x).sum(dim=0)).square()).sum(dim=0).clamp(1e-12, 1.0)


def _minimise(
    samples: _Samples,
    inputs: Inputs,
    centre: Tensor,
    bound: Tensor,
    strength: Tensor,
    *,
    begin: Tensor,
) -> Tensor:
    """Return the coefficients of each column with the lowest cross-entropy plus pull."""
    spread = [samples.variance(x) for x in inputs(samples.scores)]
    pull = strength * torch.stack([*spread, torch.ones_like(spread[0])], dim=1)

    kept = list(samples.blocks(inputs)) if samples.scores.numel() <= _KEPT_ENTRIES else None

    def value(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        loss, slope, curve = _cross_entropy(kept or samples.blocks(inputs), theta)
        away = theta - centre
        loss = loss + (pull * away.square()).sum(dim=1) / 2
        return loss, slope + pull * away, curve + torch.diag_embed(pull)

    return _descended(value, begin.expand_as(pull), bound, certain=bool((strength > 0).all()))


def _descended(value: _Value, theta: Tensor, bound: Tensor, *, certain: bool) -> Tensor:
    """Take Newton steps, cut at the bounds and shortened where they do not help: the problem is convex.

    Args:
        value: The losses of ``m`` regressions at coefficients of shape ``(m, d)``, and their derivatives.
        theta: Where to begin.
        bound: Lower bounds of the coefficients.
        certain: Whether there is an optimum, so that coefficients that have not settled are near it.
    """
    loss, slope, curve = value(theta)
    length = torch.ones_like(loss)
    for _ in range(_MAX_STEPS):
        direction, promised = _newton_step(theta, bound, slope, curve)
        # A step that had to be cut to nothing promises only rounding errors.
        unsettled = (promised > 1e-10 * (1 + loss)) & (length > 1e-9)
        if not bool(unsettled.any()):
            return theta
        trial = torch.maximum(theta + length[:, None] * direction, bound)
        after = value(trial)
        better = unsettled & (after[0] <= loss)
        length = torch.where(better, 1.0, torch.where(unsettled, length / 4, length))
        theta = torch.where(better[:, None], trial, theta)
        loss = torch.where(better, after[0], loss)
        slope = torch.where(better[:, None], after[1], slope)
        curve = torch.where(better[:, None, None], after[2], curve)
    if certain:
        return theta  # every step lowered the loss, and the optimum is near
    raise FitError(f"logistic regression: the fit did not settle within {_MAX_STEPS} steps; raise shrinkage")


def _newton_step(theta: Tensor, bound: Tensor, slope: Tensor, curve: Tensor) -> tuple[Tensor, Tensor]:
    """Return the step of the coefficients that are free to move, and how much it promises to gain."""
    stuck = (theta <= bound) & (slope > 0)
    slope = slope.masked_fill(stuck, 0.0)
    free = curve.masked_fill(stuck[:, :, None] | stuck[:, None, :], 0.0)
    # Constant scores leave a singular curvature; coefficients that are stuck need any number on the diagonal.
    ridge = 1e-12 * (1 + free.diagonal(dim1=1, dim2=2).sum(dim=1, keepdim=True))
    step = -torch.linalg.solve(free + torch.diag_embed(torch.where(stuck, 1.0, ridge)), slope)
    return step, -(step * slope).sum(dim=1) / 2


def _cross_entropy(blocks: Iterable[_Block], theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss of each column and its first and second derivatives, summed over rows in float64."""
    m, d = theta.shape
    loss, slope, curve = theta.new_zeros(m), theta.new_zeros(m, d), theta.new_zeros(m, d, d)
    for x, y, count in blocks:
        eta = sum((c * each for c, each in zip(theta.T, x, strict=False)), theta[:, -1])
        p = torch.sigmoid(eta)
        loss += (count * _log_losses(eta, p, y)).sum(dim=0)
        surplus, weight = count * (p - y), count * p * (1 - p)
        for i in range(d):
            # The last input is the constant 1.
            slope[:, i] += (surplus * x[i] if i < d - 1 else surplus).sum(dim=0)
            weighted = weight * x[i] if i < d - 1 else weight
            for j in range(i, d):
                entry = (weighted * x[j] if j < d - 1 else weighted).sum(dim=0)
                curve[:, i, j] += entry
                if i != j:
                    curve[:, j, i] += entry
    return loss, slope, curve


def _log_losses(eta: Tensor, p: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of targets for log-odds and their probabilities."""
    # The first two terms are softplus(eta), several times faster in float64 than the function of that name.
    return eta.clamp(min=0) - torch.maximum(p, 1 - p).log() - targets * eta


def refuse_separable(questions: Questions, *, method: str) -> None:
    """Refuse columns in which a threshold divides all positive from all negative answers."""
    scores, answers, asked = questions.scores, questions.answers, questions.asked
    no = ~answers if asked is None else ~answers & asked
    yes_low, no_low = (scores.masked_fill(~some, torch.inf).amin(0) for some in (answers, no))
    yes_high, no_high = (scores.masked_fill(~some, -torch.inf).amax(0) for some in (answers, no))
    apart = ((no_high < yes_low) | (yes_high < no_low)) & questions.both_answers
    if bool(apart.any()):
        culprit = 1 if len(apart) == 1 else int(apart.nonzero()[0])
        raise FitError(
            f"{method}: no optimum, a threshold separates class {culprit} from the rest, so the likelihood "
            "grows without end; fit with a positive shrinkage"
        )
