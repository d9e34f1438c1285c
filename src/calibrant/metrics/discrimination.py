"""Discrimination: does confidence tell right predictions from wrong ones?"""

import math

import numpy as np

from calibrant.inputs import ArrayLike
from calibrant.outcomes import check_outcomes


def auroc_correctness(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    confidence: ArrayLike | None = None,
    correct: ArrayLike | None = None,
) -> float:
    """Chance that a right prediction is more confident than a wrong one; ties count one half.

    NaN when all predictions are right or all are wrong: there is nothing to tell apart.

    Example:
        >>> auroc_correctness(confidence=[0.9, 0.8, 0.7, 0.6], correct=[True, False, True, False])
        0.75
    """
    ordered = check_outcomes(probs, labels, confidence=confidence, correct=correct).sorted()
    values, hits = ordered.confidence.numpy(), ordered.correct.numpy()
    n_right = int(np.count_nonzero(hits))
    n_wrong = len(hits) - n_right
    if n_right == 0 or n_wrong == 0:
        return math.nan
    ends = np.flatnonzero(np.append(values[1:] != values[:-1], True))
    right = np.diff(np.cumsum(hits)[ends], prepend=0)
    wrong = np.diff(ends + 1, prepend=0) - right
    wrong_below = np.cumsum(wrong) - wrong
    return float((right * (wrong_below + 0.5 * wrong)).sum() / (n_right * n_wrong))
