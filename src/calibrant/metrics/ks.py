"""Kolmogorov-Smirnov calibration error: no bins, the largest drift between promised and kept."""

from typing import Unpack

import numpy as np

from calibrant.inputs import ArrayLike
from calibrant.outcomes import Pairs, check_outcomes


def ks_error(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    **pairs: Unpack[Pairs],
) -> float:
    r"""Largest distance between the cumulative confidence and the cumulative accuracy.

    .. math:: \mathrm{KS} = \max_t \Big| \frac{1}{n} \sum_{i: p_i \le t} (a_i - p_i) \Big|

    Equal confidences enter together. It never exceeds the expected gap between confidence and accuracy
    at each confidence, and equals it when the model is overconfident everywhere, or underconfident
    everywhere.

    Example:
        >>> round(ks_error(confidence=[0.9, 0.8, 0.6], correct=[True, False, True]), 6)
        0.133333

    References:
        Gupta et al., "Calibration of Neural Networks using Splines", ICLR 2021.
    """
    ordered = check_outcomes(probs, labels, **pairs).sorted()
    values, hits = ordered.confidence.numpy(), ordered.correct.numpy()
    drift = np.cumsum(hits - values.astype(np.float64))
    last_of_equals = np.append(values[1:] != values[:-1], True)
    return float(np.abs(drift[last_of_equals]).max() / len(values))
