"""Selective prediction: how much error is left when the least confident predictions are refused."""

import numpy as np
import numpy.typing as npt

from calibrant.inputs import ArrayLike
from calibrant.outcomes import Outcomes, check_outcomes


def aurc(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    confidence: ArrayLike | None = None,
    correct: ArrayLike | None = None,
) -> float:
    r"""Mean error rate over all coverages, answering the most confident samples first.

    .. math:: \mathrm{AURC} = \frac{1}{n} \sum_{j=1}^{n} \frac{1}{j} \sum_{i \le j} [\hat y_i \ne y_i]

    Samples of equal confidence count as the average over their orders, so the order of the rows does
    not matter and a constant confidence gives the error rate.

    Example:
        >>> round(aurc(confidence=[0.9, 0.8, 0.7], correct=[True, False, True]), 6)
        0.277778
        >>> round(aurc(confidence=[0.5, 0.5, 0.5], correct=[True, False, True]), 6)
        0.333333

    References:
        Geifman, Uziel and El-Yaniv, "Bias-reduced uncertainty estimation for deep neural classifiers",
        ICLR 2019.
    """
    outcomes = check_outcomes(probs, labels, confidence=confidence, correct=correct)
    errors = errors_by_coverage(outcomes)
    return float((errors / np.arange(1, len(errors) + 1)).mean())


def errors_by_coverage(outcomes: Outcomes) -> npt.NDArray[np.float64]:
    """Count the expected errors among the ``j`` most confident samples, for ``j`` from 1 to ``n``."""
    ordered = outcomes.sorted()
    values, hits = ordered.confidence.numpy()[::-1], ordered.correct.numpy()[::-1]
    errors = np.cumsum(~hits, dtype=np.float64)
    # Within a run of equal confidences every order is as likely as any other: errors grow linearly.
    ends = np.flatnonzero(np.append(values[1:] != values[:-1], True))
    if len(ends) < len(values):
        at = np.concatenate([[0.0], errors[ends]])
        errors = np.interp(np.arange(1, len(values) + 1), np.concatenate([[0], ends + 1]), at)
    return errors
