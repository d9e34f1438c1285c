"""Debiased calibration error: the binned error without what chance alone adds to it."""

import math
from typing import Literal, Unpack

import torch
from torch import Tensor

from calibrant.bins import Binning, Bins, top_label_bins
from calibrant.errors import InputError
from calibrant.inputs import ArrayLike
from calibrant.outcomes import Pairs


def debiased_calibration_error(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    n_bins: int = 15,
    binning: Binning = "mass",
    norm: Literal["l1", "l2"] = "l2",
    **pairs: Unpack[Pairs],
) -> float:
    r"""Binned calibration error minus the part that noise in the bins' accuracy adds on average.

    A perfectly calibrated model has a positive ECE, because the accuracy of a bin scatters around its
    confidence. With :math:`s_b^2 = \mathrm{acc}_b (1 - \mathrm{acc}_b) / (n_b - 1)`,

    .. math:: \ell_2: \sqrt{\max\Big(0, \sum_b \frac{n_b}{n} (g_b^2 - s_b^2)\Big)}, \qquad
        \ell_1: \max\Big(0, \sum_b \frac{n_b}{n} \big(2 |g_b| - \mathbb{E}\,|g_b + s_b' \varepsilon|\big)\Big)

    where :math:`g_b` is the gap, :math:`\varepsilon` standard normal and :math:`s_b'` has :math:`n_b`
    for :math:`n_b - 1`. The mean of the folded normal is taken in closed form instead of by simulation.

    A bin with a single sample says nothing about its noise; as in the authors' code it counts as zero
    in the first form, and it adds its plain gap in the second. Where the correction exceeds the error
    the result is 0.

    Args:
        probs: Class probabilities of shape ``(n, k)``, with ``labels``.
        labels: Integer classes of shape ``(n,)``.
        confidence: Confidences of shape ``(n,)``, with ``correct``, instead of ``probs``.
        correct: Whether each prediction was right, shape ``(n,)``.
        n_bins: Number of bins.
        binning: ``"mass"`` as in the paper, or ``"width"``.
        norm: ``"l2"`` (root mean square, as in the paper's analysis) or ``"l1"`` (to compare with ECE).

    Example:
        >>> confidence, correct = [0.6] * 10, [True] * 6 + [False] * 4
        >>> debiased_calibration_error(confidence=confidence, correct=correct)
        0.0

    References:
        Kumar, Liang and Ma, "Verified Uncertainty Calibration", NeurIPS 2019.
    """
    bins = top_label_bins(probs, labels, n_bins=n_bins, binning=binning, **pairs)
    if norm == "l2":
        return float(_debiased_square(bins).clamp(min=0).sqrt())
    if norm == "l1":
        return float(_debiased_absolute(bins).clamp(min=0))
    raise InputError(f"norm: expected 'l1' or 'l2', got {norm!r}")


def _debiased_square(bins: Bins) -> Tensor:
    variance = _spread(bins) / (bins.count - 1).clamp(min=1)
    terms = torch.where(bins.count > 1, bins.gap.square() - variance, 0.0)
    return (bins.weight * terms).sum(dim=-1)


def _debiased_absolute(bins: Bins) -> Tensor:
    size = bins.gap.abs()
    deviation = (_spread(bins) / bins.count.clamp(min=1)).sqrt()
    ratio = size / deviation.clamp(min=torch.finfo(torch.float64).tiny)
    # E |g + s e| = g erf(g / (s sqrt 2)) + 2 s phi(g / s)
    bell = torch.exp(-ratio.square() / 2) / math.sqrt(2 * math.pi)
    folded = size * torch.erf(ratio / math.sqrt(2)) + 2 * deviation * bell
    return (bins.weight * (2 * size - folded)).sum(dim=-1)


def _spread(bins: Bins) -> Tensor:
    return (bins.accuracy * (1 - bins.accuracy)).nan_to_num(0.0)
