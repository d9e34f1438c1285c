"""Typical mistakes in predictions and labels: how each is recognised, and what to do about it.

The functions look at values that have been refused, and return the advice at the end of the error message.
"""

from torch import Tensor

#: What to do with probabilities that are no distribution over classes but one number for each label.
SEVERAL_LABELS = (
    "if each entry is the probability of a label of its own (several labels at once), pass them as "
    "LabelPredictions, or write a column labels_<name> of 0 and 1 for each label into the file"
)
_AS_LOGITS = "if these are logits, pass them as logits; in a file, rename the columns to logits"
# Whole numbers below this are taken for classes, others for percent.
_FEW = 20
# A share whose digits were cut differs from the whole one by less than this.
_CUT = 0.05


def advice_on_values(probs: Tensor) -> str:
    """Return what to do about probabilities that are finite but not all between 0 and 1.

    Example:
        >>> import torch
        >>> advice_on_values(torch.tensor([[81.0, 19.0], [40.0, 60.0]]))
        'these look like percent; divide by 100, or read a file with percent=True'
    """
    low, high = float(probs.min()), float(probs.max())
    if low < 0 or high > 100:
        return _AS_LOGITS
    whole = bool((probs == probs.round()).all())
    if probs.ndim == 1:
        if whole and high < _FEW:
            return "these look like predicted classes; pass probabilities, such as those of predict_proba"
        return f"divide by 100 if these are percent (percent=True for a file); {_AS_LOGITS}"
    if bool(((probs.sum(dim=1) - 100).abs() < 100 * _CUT).all()):
        return "these look like percent; divide by 100, or read a file with percent=True"
    if whole:
        return f"divide each row by its sum if it holds votes or counts; {_AS_LOGITS}"
    return _AS_LOGITS


def advice_on_sums(probs: Tensor, *, tolerance: float) -> str:
    """Return what to do about rows of numbers between 0 and 1 that do not sum to one.

    Example:
        >>> import torch
        >>> advice_on_sums(torch.tensor([[0.7, 0.2, 0.5], [0.3, 0.8, 0.5]]), tolerance=1e-3)
        'the columns sum to one, so the array is transposed; pass probs.T'
    """
    sums = probs.sum(dim=1)
    if bool(((probs.sum(dim=0) - 1).abs() <= tolerance).all()):
        return "the columns sum to one, so the array is transposed; pass probs.T"
    if bool(((sums - 1).abs() < _CUT).all()):
        return "the digits look cut; store more of them, or divide each row by its sum"
    if bool((sums < 1 + tolerance).all()):
        return f"if classes are left out, add them or one column for the rest; {SEVERAL_LABELS}"
    return SEVERAL_LABELS


def advice_on_label_matrix(labels: Tensor, *, name: str) -> str:
    """Return what to do about labels of shape ``(n, m)``.

    Example:
        >>> import torch
        >>> advice_on_label_matrix(torch.tensor([[0, 1], [1, 0]]), name="labels")
        'which looks one-hot; pass labels.argmax(axis=1)'
    """
    if labels.shape[1] == 1:
        return f"pass {name}.ravel()"
    whole = bool(((labels == 0) | (labels == 1)).all())
    single = bool(((labels.double().sum(dim=1) - 1).abs() < 1e-3).all())
    if whole and single:
        return f"which looks one-hot; pass {name}.argmax(axis=1)"
    if whole:
        return "which looks like several labels at once; pass them as LabelPredictions"
    if single:
        return f"which looks like probabilities of the labels; pass {name}.argmax(axis=1)"
    return "give one class for each sample"


def advice_on_range(low: int, high: int, *, k: int, name: str) -> str:
    """Return what to do about whole numbers from ``low`` to ``high`` that exceed 0 to ``k - 1``."""
    if low < 0:
        return "drop rows that mark something to ignore"
    if low >= 1 and high == k:
        named = ",".join(map(str, range(1, k + 1))) if k < _FEW else "1,2,..."
        return f"if classes are counted from one, pass {name} - 1, or read a file with classes={named}"
    return f"the predictions have {k} classes" + (" (a single column is that of class 1)" if k == 2 else "")


def look_like_probs(scores: Tensor, *, tolerance: float) -> bool:
    """Say whether logits of shape ``(n, k)`` are in truth probabilities: rows of at least 0 that sum to one.

    A few rows decide for almost all real logits; fewer than these are never taken for probabilities.

    Example:
        >>> import torch
        >>> look_like_probs(torch.softmax(torch.randn(20, 3), dim=1), tolerance=1e-3)
        True
    """
    first = scores[:_FEW]
    if len(first) < _FEW or not _are_probs(first, tolerance):
        return False
    return _are_probs(scores, tolerance)


def _are_probs(scores: Tensor, tolerance: float) -> bool:
    return float(scores.min()) >= 0 and bool(((scores.sum(dim=1) - 1).abs() <= tolerance).all())
