"""Bounds on means by betting: a claim about a mean is refuted once bets against it have won enough."""

import math

import numpy as np
import numpy.typing as npt

from calibrant.solvers import increasing_root

# No single bet puts more than this share of the capital at risk.
_AT_RISK = 0.75


def lower_bound(values: npt.NDArray[np.float64], *, low: float, high: float, alpha: float) -> float:
    r"""Bound the mean of independent draws from below; valid for every sample size and distribution.

    Whoever claims that the mean is at most ``m`` must grant bets that multiply capital by
    :math:`1 + \lambda_i (x_i - m)`. If the claim is true, one unit becomes ``1 / alpha`` with probability at
    most ``alpha``. The bound is the highest ``m`` against which it did. The bet :math:`\lambda_i` is the best
    one for normal draws with the variance of those before; so the bound depends a little on the order.

    Args:
        values: Draws, in the order in which they came.
        low: No draw can be lower.
        high: No draw can be higher.
        alpha: Chance of a mean below the bound.

    References:
        Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 2024.
    """
    n, span = len(values), high - low
    if n == 0:
        return low
    count = np.arange(1, n + 1)
    mean = ((low + high) / 2 + np.cumsum(values)) / (count + 1)
    spread = np.append(span**2 / 4, np.square(values - mean)[:-1])
    variance = np.cumsum(spread) / count
    bets = np.minimum(np.sqrt(2 * math.log(1 / alpha) / (n * variance)), _AT_RISK / span)

    def missing(claim: float) -> tuple[float, float]:
        """Return how much the logarithm of the capital lacks, which rises with the claim, and its slope."""
        factors = 1 + bets * (values - claim)
        return -math.log(alpha) - float(np.log(factors).sum()), float((bets / factors).sum())

    if missing(low)[0] >= 0:
        return low
    # What is missing is convex in the claim, so steps from the right stay there, where factors are positive.
    return increasing_root(missing, start=high)


def mean_region(
    values: npt.NDArray[np.float64], *, low: float, high: float, alpha: float
) -> tuple[float, float]:
    """Return an interval that misses the mean of bounded independent draws with chance ``alpha`` at most."""
    return (
        lower_bound(values, low=low, high=high, alpha=alpha / 2),
        -lower_bound(-values, low=-high, high=-low, alpha=alpha / 2),
    )
