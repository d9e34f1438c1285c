"""Direction of miscalibration: is a model surer than it should be, or less sure?

Two definitions are in use. ``"binned"``, the default, splits the expected calibration error into what lies
above the accuracy and what lies below: the two parts add up to it. ``"conditional"`` looks at wrong and at
right predictions apart, so that only a model which is always right and always sure gets 0 for both.
"""

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from calibrant.bins import Binning, top_label_bins
from calibrant.errors import InputError
from calibrant.inputs import ArrayLike
from calibrant.outcomes import check_outcomes

Definition: TypeAlias = Literal["binned", "conditional"]


def overconfidence(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    confidence: ArrayLike | None = None,
    correct: ArrayLike | None = None,
    definition: Definition = "binned",
    n_bins: int = 15,
    binning: Binning = "width",
) -> float:
    r"""How much surer a model is than right: the part of the calibration error where it is too high.

    .. math:: \sum_b \frac{n_b}{n} \max(\mathrm{conf}_b - \mathrm{acc}_b, 0)
        \quad\text{or, conditional,}\quad \mathrm{mean}(\mathrm{conf} \mid \text{wrong})

    Args:
        probs: Class probabilities of shape ``(n, k)``, with ``labels``.
        labels: Integer classes of shape ``(n,)``.
        confidence: Confidences of shape ``(n,)``, with ``correct``, instead of ``probs``.
        correct: Whether each prediction was right, shape ``(n,)``.
        definition: ``"binned"``: with :func:`underconfidence` it adds up to the expected calibration error of
            the same bins. ``"conditional"``: mean confidence of the wrong predictions; NaN if none is wrong.
        n_bins: Number of bins of the binned definition.
        binning: Bins of equal ``"width"`` or of equal ``"mass"``.

    Example:
        >>> pairs = {"confidence": [0.9, 0.8, 0.6], "correct": [True, False, True]}
        >>> round(overconfidence(**pairs, n_bins=10), 4)
        0.2667
        >>> overconfidence(**pairs, definition="conditional")
        0.8

    References:
        Mund, Triebel and Cremers, "Active Online Confidence Boosting for Efficient Object Classification",
        ICRA 2015 (conditional).
        Wenger, Kjellström and Triebel, "Non-Parametric Calibration for Classification", AISTATS 2020.
    """
    if _is_binned(definition):
        bins = top_label_bins(
            probs, labels, confidence=confidence, correct=correct, n_bins=n_bins, binning=binning
        )
        return float(bins.overconfident_part())
    outcomes = check_outcomes(probs, labels, confidence=confidence, correct=correct)
    return _mean(outcomes.confidence[~outcomes.correct])


def underconfidence(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    confidence: ArrayLike | None = None,
    correct: ArrayLike | None = None,
    definition: Definition = "binned",
    n_bins: int = 15,
    binning: Binning = "width",
) -> float:
    r"""How much less sure a model is than right: the part of the calibration error where it is too low.

    .. math:: \sum_b \frac{n_b}{n} \max(\mathrm{acc}_b - \mathrm{conf}_b, 0)
        \quad\text{or, conditional,}\quad \mathrm{mean}(1 - \mathrm{conf} \mid \text{right})

    Arguments and references are those of :func:`overconfidence`; the conditional form is NaN if no
    prediction is right.

    Example:
        >>> pairs = {"confidence": [0.9, 0.8, 0.6], "correct": [True, False, True]}
        >>> round(underconfidence(**pairs, n_bins=10), 4)
        0.1667
        >>> underconfidence(**pairs, definition="conditional")
        0.25
    """
    if _is_binned(definition):
        bins = top_label_bins(
            probs, labels, confidence=confidence, correct=correct, n_bins=n_bins, binning=binning
        )
        return float(bins.underconfident_part())
    outcomes = check_outcomes(probs, labels, confidence=confidence, correct=correct)
    return _mean(1 - outcomes.confidence[outcomes.correct].double())


def _is_binned(definition: Definition) -> bool:
    if definition not in ("binned", "conditional"):
        raise InputError(f"definition: expected 'binned' or 'conditional', got {definition!r}")
    return definition == "binned"


def _mean(values: Tensor) -> float:
    return float(values.mean(dtype=torch.float64)) if len(values) else math.nan
