"""Charbonnier-SoftECE ("Sample Margin-Aware Recalibration of Temperature", Sec. 3.4)."""

import math

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.surrogates.soft_bins import SoftBins, soft_bins


def charbonnier_soft_ece(
    confidence: Tensor, correct: Tensor, *, n_bins: int = 15, lam: float = 200.0, delta: float = 1e-3
) -> Tensor:
    r"""Soft-binned calibration error with the kink of the absolute value rounded off.

    .. math:: \sum_b \frac{\sum_i w_{ib}}{n} \sqrt{\mathrm{gap}_b^2 + \delta^2}

    The root is taken of each bin's gap, as in :func:`~calibrant.surrogates.soft_ece`, not of each sample's
    error as the paper's Eq. (6) reads to the letter: errors of opposite sign must be able to cancel, or the
    best confidence is 1 wherever the model is right more often than not. When every gap is zero the value
    is ``delta``, not zero.

    Args:
        confidence: Confidence in the predicted class, shape ``(n,)``.
        correct: 1 or true where that class was the true one, shape ``(n,)``.
        n_bins: Number of bins over the unit interval.
        lam: Sharpness of the soft bins.
        delta: Size below which a gap is treated as settled; smaller is closer to the absolute value.

    Example:
        >>> settled = charbonnier_soft_ece(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0]))
        >>> round(float(settled), 6)
        0.001
    """
    if not 0 < delta < math.inf:
        raise InputError(f"delta: expected a positive number, got {delta}")
    return charbonnier_gap(soft_bins(confidence, correct, n_bins=n_bins, lam=lam), delta=delta)


def charbonnier_gap(bins: SoftBins, *, delta: float = 1e-3) -> Tensor:
    """Return the mean over samples of the rounded-off size of the gap of bins that are already filled."""
    return (bins.weight * torch.sqrt(bins.gap.square() + delta**2)).sum()
