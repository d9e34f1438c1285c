"""Soft-binned calibration error as a training term, with a sharp and with a smooth absolute value.

SoftECE: Karandikar et al., NeurIPS 2021. Charbonnier-SoftECE: "Sample Margin-Aware Recalibration of
Temperature", Sec. 3.4.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from calibrant.inputs import check_number
from calibrant.losses.loss import BatchLoss
from calibrant.losses.parts.batch import IGNORED
from calibrant.losses.parts.confidence import top_label_confidence
from calibrant.surrogates import SoftBins, soft_bins


def soft_ece_loss(
    logits: Tensor, labels: Tensor, *, n_bins: int = 15, lam: float = 200.0, ignore_index: int = IGNORED
) -> Tensor:
    r"""Return the mean gap between confidence and accuracy over bins with soft membership.

    .. math:: \sum_b \frac{\sum_i w_{ib}}{n}
        \Big| \frac{\sum_i w_{ib} (r_i - [\hat y_i = y_i])}{\sum_i w_{ib}} \Big|, \quad
        w_{ib} = \mathrm{softmax}_b\big(-\lambda (r_i - c_b)^2\big), \quad r_i = \max_k p_{ik}

    A term to add to a classification loss: ``CrossEntropyLoss() + SoftECELoss()``. A bin with few samples is
    noisy, so use few bins with small batches. Under data-parallel training the batch is the global one.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes.
        n_bins: Number of bins over the unit interval.
        lam: Sharpness of the bins; see :func:`~calibrant.surrogates.soft_membership`.
        ignore_index: Label of the samples to ignore.

    Example:
        >>> round(float(soft_ece_loss(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]))), 4)
        0.3808
    """
    bins = _bins_of_top_label(logits, labels, n_bins, lam, ignore_index)
    return bins.expected_gap().to(torch.promote_types(logits.dtype, torch.float32))


def charbonnier_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    n_bins: int = 15,
    lam: float = 200.0,
    delta: float = 1e-3,
    ignore_index: int = IGNORED,
) -> Tensor:
    r"""Return the soft-binned calibration error with a gradient that fades as the gap of a bin closes.

    .. math:: \sum_b \frac{\sum_i w_{ib}}{n} \sqrt{\mathrm{gap}_b^2 + \delta^2}

    Bins and gaps are those of ``soft_ece_loss``; this is its smooth form. When every gap is zero the value is
    ``delta``, not zero. A term to add to a classification loss: ``CrossEntropyLoss() + CharbonnierLoss()``.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes.
        n_bins: Number of bins over the unit interval.
        lam: Sharpness of the bins.
        delta: Size below which a gap is treated as closed.
        ignore_index: Label of the samples to ignore.

    Example:
        >>> round(float(charbonnier_loss(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]))), 6)
        0.001
    """
    check_number(delta, "delta")
    bins = _bins_of_top_label(logits, labels, n_bins, lam, ignore_index)
    return bins.charbonnier_gap(delta=delta).to(torch.promote_types(logits.dtype, torch.float32))


def _bins_of_top_label(
    logits: Tensor, labels: Tensor, n_bins: int, lam: float, ignore_index: int
) -> SoftBins:
    confidence, correct, kept = top_label_confidence(logits, labels, ignore_index=ignore_index)
    weights = None if kept is None else kept.to(confidence.dtype)
    return soft_bins(confidence, correct, n_bins=n_bins, lam=lam, weights=weights)


@dataclass(eq=False, repr=False)
class SoftECELoss(BatchLoss):
    """Module form of :func:`soft_ece_loss`."""

    n_bins: Annotated[int, "Number of bins over the unit interval."] = 15
    lam: Annotated[float, "Sharpness of the bins."] = 200.0

    function = staticmethod(soft_ece_loss)


@dataclass(eq=False, repr=False)
class CharbonnierLoss(BatchLoss):
    """Module form of :func:`charbonnier_loss`."""

    n_bins: Annotated[int, "Number of bins over the unit interval."] = 15
    lam: Annotated[float, "Sharpness of the bins."] = 200.0
    delta: Annotated[float, "Size below which a gap is treated as closed."] = 1e-3

    function = staticmethod(charbonnier_loss)
