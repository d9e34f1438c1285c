"""Small deterministic solvers: no random start, no step size to tune, no silent failure."""

import math
from collections.abc import Callable

from calibrant.errors import FitError


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
