"""Corrections of p-values for the number of tests: Holm, and Benjamini and Hochberg."""

from typing import Literal, TypeAlias, get_args

import numpy as np

from calibrant.inputs import Floats, check_choice

Correction: TypeAlias = Literal["holm", "benjamini_hochberg"]
CORRECTIONS: tuple[Correction, ...] = get_args(Correction)


def corrected(p_values: Floats, correction: Correction) -> Floats:
    """Return p-values corrected for their number; NaN stays NaN and does not count.

    Args:
        p_values: Probabilities of each of the tests.
        correction: ``"holm"`` limits the chance of any false alarm, ``"benjamini_hochberg"`` the share of
            false alarms among the alarms.

    Example:
        >>> corrected(np.array([0.01, 0.04, np.nan, 0.03]), "holm").round(3).tolist()
        [0.03, 0.06, nan, 0.06]
        >>> corrected(np.array([0.01, 0.04, np.nan, 0.03]), "benjamini_hochberg").round(3).tolist()
        [0.03, 0.04, nan, 0.04]

    References:
        Holm, "A simple sequentially rejective multiple test procedure", 1979.
        Benjamini and Hochberg, "Controlling the false discovery rate", JRSS B 1995.
    """
    found = np.full(len(p_values), np.nan)
    tested = np.flatnonzero(~np.isnan(p_values))
    order = tested[np.argsort(p_values[tested], kind="stable")]
    rank, m = np.arange(len(order)), len(order)
    if check_choice(correction, "correction", CORRECTIONS) == "holm":
        found[order] = np.maximum.accumulate(p_values[order] * (m - rank))
    else:
        found[order] = np.minimum.accumulate((p_values[order] * m / (rank + 1))[::-1])[::-1]
    return found.clip(max=1.0)
