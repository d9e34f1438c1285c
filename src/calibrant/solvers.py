"""Small deterministic solvers: no random start, no step size to tune, no silent failure."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import FitError
from calibrant.inputs import Floats

# The shorter part of a golden section, and what rounding leaves of a place where a function is flat.
_GOLDEN, _ROOT_EPSILON = (3 - math.sqrt(5)) / 2, math.sqrt(sys.float_info.epsilon)

# Below this share of the largest one a number is rounding.
_ROUNDING = 1e-14


def increasing_root(
    function: Callable[[float], tuple[float, float]],
    *,
    start: float = 0.0,
    tolerance: float = 1e-6,
    max_steps: int = 200,
) -> float:
    """Find where an increasing function is zero, by Newton steps that cannot leave the bracket.

    Args:
        function: Returns the value and the slope at a point. It must rise from below to above zero.
        start: Where to begin; the result does not depend on it beyond the tolerance.
        tolerance: Stop after a step shorter than this; Newton's error is then about its square.
        max_steps: Give up, with a :class:`~calibrant.errors.FitError`, after this many evaluations.

    Example:
        >>> round(increasing_root(lambda x: (x**3 - 8, 3 * x**2), start=50.0), 9)
        2.0
    """
    x, low, high = start, -math.inf, math.inf
    for _ in range(max_steps):
        value, slope = function(x)
        if value == 0:
            return x
        if value < 0:
            low = x
        else:
            high = x
        # A step is cut to a length of 4, so that a flat region cannot throw the search to infinity.
        newton = -value / slope if slope > 0 else math.copysign(math.inf, -value)
        following = x + max(-4.0, min(4.0, newton))
        if not low < following < high:
            following = (low + high) / 2
        if abs(following - x) < tolerance:
            return following
        x = following
    raise FitError(f"the search for a root did not settle within {max_steps} steps; it stands at {x:.6g}")


def minimum_between(
    function: Callable[[float], float], low: float, high: float, *, tolerance: float, max_steps: int = 500
) -> tuple[float, float]:
    """Find where a function of one number is lowest between two bounds, and its value there (Brent, 1973).

    A step goes to the floor of the parabola through the three lowest points, or where that is no progress, to
    the golden section of the longer side. Written here because importing SciPy's takes longer than most fits.

    Args:
        function: Has one valley between the bounds; of several, one is found.
        low: The lower bound.
        high: The upper bound.
        tolerance: About how far from the floor the search may end.
        max_steps: Stop after this many steps.

    Example:
        >>> place, value = minimum_between(lambda x: (x - 2) ** 2 + 1, 0.0, 5.0, tolerance=1e-6)
        >>> round(place, 6), round(value, 6)
        (2.0, 1.0)
    """
    x = low + _GOLDEN * (high - low)
    best = second = third = (x, function(x))
    step = before = 0.0
    for _ in range(max_steps):
        x, least = best[0], _ROOT_EPSILON * abs(best[0]) + tolerance / 3
        if abs(x - (low + high) / 2) <= 2 * least - (high - low) / 2:
            break
        parabolic = _to_floor(best, second, third) if abs(before) > least else None
        if parabolic is None or not (abs(parabolic) < abs(before) / 2 and low < x + parabolic < high):
            before = low - x if x >= (low + high) / 2 else high - x
            step = _GOLDEN * before
        else:
            before, step = step, parabolic
            if min(x + step - low, high - x - step) < 2 * least:
                step = math.copysign(least, (low + high) / 2 - x)
        there = x + math.copysign(max(abs(step), least), step)
        new = there, function(there)
        if new[1] <= best[1]:
            low, high = (x, high) if there >= x else (low, x)
            best, second, third = new, best, second
            continue
        low, high = (there, high) if there < x else (low, there)
        if new[1] <= second[1] or second[0] == x:
            second, third = new, second
        elif new[1] <= third[1] or third[0] in (x, second[0]):
            third = new
    return best


def _to_floor(
    best: tuple[float, float], second: tuple[float, float], third: tuple[float, float]
) -> float | None:
    """Return the way from the best point to the floor of the parabola through three; None if it has none."""
    (x, value), (x2, value2), (x3, value3) = best, second, third
    r, q = (x - x2) * (value - value3), (x - x3) * (value - value2)
    p, q = (x - x3) * q - (x - x2) * r, 2 * (r - q)
    return p / q if q else None


def convex_minimum(
    function: Callable[[Tensor], tuple[float, Tensor]],
    start: Tensor,
    *,
    tolerance: float = 1e-8,
    max_steps: int = 200,
    memory: int = 20,
) -> Tensor:
    r"""Find where a smooth convex function is lowest, by L-BFGS (Nocedal and Wright, chapter 7).

    The last steps and the changes of the gradient along them stand for the curvature. They are kept as two
    matrices, so that a step costs a few products of matrices and not a loop over what is remembered. The
    first ``torch.optim`` optimizer would import torch's compiler, which takes longer than most fits.

    Args:
        function: Returns the value and the gradient at a point.
        start: Where to begin; coordinates should be scaled so that the curvature is about 1 in each.
        tolerance: Stop when a step lowers the value, or promises to lower it, by less than this.
        max_steps: Stop after this many steps.
        memory: How many steps are remembered.

    Example:
        >>> target = torch.tensor([1.0, -2.0])
        >>> convex_minimum(lambda x: (float((x - target).square().sum()), 2 * (x - target)), torch.zeros(2))
        tensor([ 1., -2.])
    """
    point, curvature = start.flatten(), _Curvature(start.flatten(), memory)

    def at(place: Tensor) -> tuple[float, Tensor]:
        value, gradient = function(place.view_as(start))
        return value, gradient.flatten()

    value, gradient = at(point)
    for _ in range(max_steps):
        direction = curvature.downhill(gradient)
        if -float(gradient @ direction) < tolerance:  # twice what the step promises
            break
        step = _convex_line_search(at, point, value, gradient, direction)
        if step is None or step.value >= value:
            break
        curvature.add(step.point - point, step.gradient - gradient)
        gained = value - step.value
        point, value, gradient = step.point, step.value, step.gradient
        if gained < tolerance:
            break
    return point.view_as(start)


@dataclass(frozen=True, eq=False)
class _Step:
    point: Tensor
    value: float
    gradient: Tensor


def _convex_line_search(
    at: Callable[[Tensor], tuple[float, Tensor]],
    point: Tensor,
    value: float,
    gradient: Tensor,
    direction: Tensor,
) -> _Step | None:
    """Walk downhill until the slope is smaller; along a line the slope of a convex function only rises."""
    slope, length = float(gradient @ direction), 1.0
    best: _Step | None = None
    for _ in range(20):
        here = point + length * direction
        step = _Step(here, *at(here))
        if math.isfinite(step.value) and (best is None or step.value < best.value):
            best = step
        slope_here = float(step.gradient @ direction)
        if abs(slope_here) <= 0.9 * abs(slope) and step.value <= value + 1e-4 * length * slope:
            return step
        # Where a straight slope would reach zero, but neither close to the start nor far beyond this point.
        zero = slope / (slope - slope_here) if slope_here > slope else math.inf
        length *= min(max(zero, 0.1), 4.0) if math.isfinite(slope_here) else 0.1
    return best


class _Curvature:
    """The inverse Hessian that the last steps suggest, in the compact form of Byrd, Nocedal and Schnabel.

    Steps are stored in float32: they only suggest where to look, and reading them takes most of the time.
    """

    def __init__(self, like: Tensor, memory: int) -> None:
        self._steps, self._changes = like.new_zeros((2, memory, len(like)), dtype=torch.float32)
        # Products of all steps with all changes, and of all changes with each other.
        self._products, self._squares = like.new_zeros((2, memory, memory))
        self._count = 0

    def add(self, step: Tensor, change: Tensor) -> None:
        """Remember a step and how the gradient changed along it, in place of the oldest one."""
        if float(step @ change) <= 0:
            return
        place = self._count % len(self._steps)
        s, y = self._steps, self._changes
        s[place], y[place] = step, change
        self._products[place], self._products[:, place] = y @ s[place], s @ y[place]
        self._squares[place] = self._squares[:, place] = y @ y[place]
        self._count += 1

    def downhill(self, gradient: Tensor) -> Tensor:
        """Return the Newton step of this curvature."""
        kept = min(self._count, len(self._steps))
        if not kept:
            return -gradient
        s, y = self._steps[:kept], self._changes[:kept]
        oldest_first = (torch.arange(kept, device=s.device) + self._count - kept) % kept
        order = oldest_first[:, None], oldest_first
        products, squares = self._products[order], self._squares[order]
        upper = products.triu()
        unit = products[-1, -1] / squares[-1, -1]
        slope = gradient.to(s.dtype)
        along, across = (s @ slope).to(upper)[oldest_first], unit * (y @ slope).to(upper)[oldest_first]
        solved = torch.linalg.solve_triangular(upper, along[:, None], upper=True)[:, 0]
        inner = products.diagonal() * solved + unit * (squares @ solved) - across
        back = torch.linalg.solve_triangular(upper.T, inner[:, None], upper=False)[:, 0]
        of_steps, of_changes = s.new_empty((2, kept))
        of_steps[oldest_first], of_changes[oldest_first] = back.to(s), (-unit * solved).to(s)
        step: Tensor = unit * gradient + of_steps @ s + of_changes @ y
        return -step


def likeliest_shares(
    likelihoods: Floats, *, weights: Floats | None = None, tolerance: float = 1e-10, max_steps: int = 100
) -> Floats:
    r"""Mix distributions so that what was observed is likeliest: shares on the simplex, shape ``(m,)``.

    .. math:: \min_w \; -\frac1n \sum_i \log \sum_j w_j \ell_{ij}, \quad w \ge 0, \; \sum_j w_j = 1

    The problem is convex. With :math:`\sum_j w_j` added to the objective the shares need only be at least 0:
    at the optimum they sum to 1. Each Newton step is then a quadratic problem with non-negative unknowns.

    Args:
        likelihoods: Probability of each observation under each distribution, shape ``(n, m)``; only their
            ratios within a row matter, and no row may be all zeros.
        weights: How much each observation counts, shape ``(n,)``, all above 0; the mean is weighted by them.
        tolerance: Stop when the mean log-likelihood is within this of the optimum.
        max_steps: Give up, with a :class:`~calibrant.errors.FitError`, after this many steps.

    Example:
        >>> likeliest_shares(np.array([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9]])).round(4)
        array([0.7083, 0.2917])
    """
    n, m = likelihoods.shape
    scaled = likelihoods / likelihoods.max(axis=1, keepdims=True)
    parts = None if weights is None else weights / weights.sum()
    shares: Floats = np.full(m, 1 / m)
    for _ in range(max_steps):
        # The ratios' mean is 1 for every distribution in use, and at most 1 for the others, at the optimum.
        ratios = scaled / (scaled @ shares)[:, None]
        gain = ratios.mean(axis=0) if parts is None else parts @ ratios
        if math.log(gain.max()) <= tolerance:
            return np.asarray(shares / shares.sum(), dtype=np.float64)
        curvature = ratios.T @ ratios / n if parts is None else (ratios.T * parts) @ ratios
        # Distributions that are the same leave it singular.
        curvature += 1e-10 * np.trace(curvature) * np.eye(m)
        step = lowest_from_zero(curvature, curvature @ shares + gain - 1) - shares
        shares = shares + _shortened(step, shares, scaled, parts) * step
    raise FitError(f"the search for shares did not settle within {max_steps} steps")


def lowest_from_zero(curvature: Floats, slope: Floats) -> Floats:
    r"""Return where :math:`x^\top C x / 2 - s^\top x` is lowest over :math:`x \ge 0`.

    This is the method of Lawson and Hanson (1974). One unknown after the other leaves 0, that which promises
    most first; those that would become negative return to it. SciPy's solver would take ten times longer to
    import than this one takes.
    """
    x, free = np.zeros(len(slope)), np.zeros(len(slope), dtype=bool)
    for _ in range(3 * len(slope)):
        promise = np.where(free, -np.inf, slope - curvature @ x)
        if promise.max() <= _ROUNDING * np.abs(slope).max():
            break
        free[promise.argmax()] = True
        while free.any():
            there = np.zeros(len(slope))
            there[free] = np.linalg.solve(curvature[np.ix_(free, free)], slope[free])
            below = free & (there <= 0)
            if not below.any():
                x = there
                break
            x = x + (x[below] / (x[below] - there[below])).min() * (there - x)
            free &= ~below | (x > _ROUNDING * x.max())
            x[~free] = 0.0
    return x


def _shortened(step: Floats, shares: Floats, likelihoods: Floats, parts: Floats | None) -> float:
    """Return the largest of 1, 1/2, 1/4, ... at which a step lowers the objective of the shares.

    At the optimum no observation of ``n`` is less likely than a share of 1/n in its likeliest distribution
    makes it. Steps stay within twice of that, so that ratios of likelihoods are bounded. With weights, the
    part of an observation in their sum takes the place of 1/n.
    """
    n, m = likelihoods.shape
    lowest = 0.5 / max(n, m) if parts is None else 0.5 * np.minimum(parts, 1 / m)

    def objective(at: Floats) -> float:
        mixed = likelihoods @ at
        if np.any(mixed <= lowest):
            return math.inf
        return float(at.sum() - (np.log(mixed).mean() if parts is None else parts @ np.log(mixed)))

    length, now = 1.0, objective(shares)
    while length > 1e-6 and objective(shares + length * step) > now:
        length /= 2
    return length
