"""Ends of bootstrap intervals that allow for the bias of an estimate, and the matching p-value."""

import math

import numpy as np

from calibrant.inputs import Floats

# An error that is a norm, such as ECE, is positive by chance if the true one is 0. A resample then has the
# noise of the sample and its own: on average it is sqrt(2) times the error of the sample, so the bias of the
# sample itself is 1 / (sqrt(2) - 1) times the step from the sample to its resamples.
_AT_ZERO = 1 + math.sqrt(2)

# A step within two of its own standard errors is the noise of a limited number of resamples.
_NOISE = 2.0


def corrected_ends(
    value: float, replicates: Floats, *, level: float, biased: bool = True, floor: float = 0.0
) -> tuple[float, float]:
    r"""Return the ends of an interval that contains its estimate and allows for its bias.

    With the mean step :math:`b` from the estimate to its resamples, percentiles are moved by :math:`-b`, so
    they surround the estimate. The bias of the estimate itself is unknown: about :math:`b` if the true value
    is far from a limit such as 0, up to :math:`(1 + \sqrt 2)\,b` if it is there, and none if the estimate is
    corrected already. The interval is extended by the largest of these, on the side of the true value only.

    Args:
        value: The estimate.
        replicates: The estimates of resamples, all finite.
        level: Level of the interval.
        biased: False for means over samples: their interval has plain percentiles as its ends.
        floor: The bias for calibrated models, if it is known.
    """
    low, high = np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2])
    down, up = _shifts(value, replicates, floor) if biased else (0.0, 0.0)
    return min(float(low) - down, value), max(float(high) - up, value)


def two_sided_p_value(value: float, replicates: Floats, *, biased: bool = True, floor: float = 0.0) -> float:
    """Return the smallest ``1 - level`` at which :func:`corrected_ends` of a difference exclude 0."""
    if value == 0:
        return 1.0
    down, up = _shifts(value, replicates, floor) if biased else (0.0, 0.0)
    beyond = np.count_nonzero(replicates <= down) if value > 0 else np.count_nonzero(replicates >= up)
    return min(1.0, 2 * (1 + int(beyond)) / (1 + len(replicates)))


def _shifts(value: float, replicates: Floats, floor: float) -> tuple[float, float]:
    """Return how far the lower and the upper percentile are moved down."""
    bias = float(replicates.mean()) - value
    if abs(bias) <= _NOISE * replicates.std(ddof=1) / math.sqrt(len(replicates)):
        bias = 0.0
    return bias + max(0.0, _AT_ZERO * bias, floor), bias + min(0.0, _AT_ZERO * bias, floor)
