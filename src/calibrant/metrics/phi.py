"""Post-hoc improvement (PHI): how much a proper score gains through calibration."""

import math
from typing import Literal

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike
from calibrant.metrics.proper import brier_score, negative_log_likelihood

_SCORES = {"nll": negative_log_likelihood, "brier": brier_score}


def post_hoc_improvement(
    probs_before: ArrayLike,
    probs_after: ArrayLike,
    labels: ArrayLike,
    *,
    score: Literal["nll", "brier"] = "nll",
    relative: bool = True,
) -> float:
    r"""Share of a proper score that calibration took away; positive is better, 0 is no change.

    .. math:: \Phi = \frac{S(p_\mathrm{before}) - S(p_\mathrm{after})}{S(p_\mathrm{before})}

    Unlike a drop in ECE it cannot be won by giving up discrimination: calibration cannot improve the
    refinement part of a proper score, so a gain is a gain in calibration, and what calibration destroys is
    deducted. 1 is a perfect result; below 0 calibration did harm, without a lower bound.

    A perfect score before leaves nothing to gain: 0 if it stays perfect, else minus infinity. An infinite
    NLL before (a true class had probability 0) is fully gained by a finite one after: 1; if both are
    infinite the gain is NaN.

    Args:
        probs_before: Class probabilities of shape ``(n, k)``.
        probs_after: The same after calibration.
        labels: Integer classes of shape ``(n,)``.
        score: ``"nll"`` or ``"brier"``, which is always finite.
        relative: Divide by the score before. CalArena's own PHI is the plain difference, ``False``, which
            ranks methods on one task in the same way; relative gains can be averaged over tasks.

    Example:
        >>> before, after = [[0.9, 0.1], [0.9, 0.1]], [[0.6, 0.4], [0.6, 0.4]]
        >>> round(post_hoc_improvement(before, after, [0, 1], score="brier"), 4)
        0.3659
        >>> round(post_hoc_improvement(before, after, [0, 1], score="brier", relative=False), 4)
        0.3

    References:
        Berta, Holzmüller, Bach and Jordan, "CalArena: A Large-Scale Post-Hoc Calibration Benchmark",
        arXiv 2605.30188, 2026.
    """
    if score not in _SCORES:
        raise InputError(f"score: expected 'nll' or 'brier', got {score!r}")
    before, after = _SCORES[score](probs_before, labels), _SCORES[score](probs_after, labels)
    gain = before - after
    if not relative or gain == 0:
        return gain
    if before == 0:
        return -math.inf
    return 1.0 if math.isinf(before) and math.isfinite(after) else gain / before
