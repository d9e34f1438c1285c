"""Soft bins (Karandikar et al., "Soft Calibration Objectives for Neural Networks", NeurIPS 2021).

A hard bin has no gradient: a confidence is in it or not. Here every sample belongs to every bin, mostly to
the near ones, so that the gap between confidence and accuracy can be trained away.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import check_count


@dataclass(frozen=True, eq=False)
class SoftBins:
    """Samples shared out among bins; the tensors have shape ``(n_bins,)``.

    Attributes:
        weight: Share of all samples that each bin holds; sums to one.
        gap: Mean confidence minus accuracy in each bin: positive is overconfident, an empty bin has none.
        noise: Standard deviation that the gap would have by chance alone if every confidence were the true
            probability of being right; without gradient.
    """

    weight: Tensor
    gap: Tensor
    noise: Tensor

    def expected_gap(self) -> Tensor:
        """Return the mean size of the gap over samples: the soft calibration error."""
        return (self.weight * self.gap.abs()).sum()

    def expected_by_chance(self) -> Tensor:
        r"""Return the soft calibration error that a perfectly calibrated model would show by chance.

        A gap with standard deviation :math:`\sigma_b` about zero has the mean size
        :math:`\sqrt{2/\pi}\,\sigma_b`.
        """
        return math.sqrt(2 / math.pi) * (self.weight.detach() * self.noise).sum()


def soft_membership(confidence: Tensor, *, n_bins: int = 15, lam: float = 200.0) -> Tensor:
    r"""Share of each sample in each of equally spaced bins, shape ``(n, n_bins)``; rows sum to one.

    .. math:: w_{ib} = \mathrm{softmax}_b\big(-\lambda (p_i - c_b)^2\big), \quad c_b = (b + 1/2) / B

    Args:
        confidence: Numbers between 0 and 1 of shape ``(n,)``; half precision is widened.
        n_bins: Number of bins over the unit interval.
        lam: Sharpness: the kernel's standard deviation is ``1 / sqrt(2 * lam)``, 0.05 for 200.

    Example:
        >>> soft_membership(torch.tensor([0.5]), n_bins=3, lam=20.0).round(decimals=3)
        tensor([[0.0890, 0.8220, 0.0890]])
    """
    check_count(n_bins, "n_bins")
    if not 0 < lam < math.inf:
        raise InputError(f"lam: expected a positive number, got {lam}")
    p = confidence.to(torch.promote_types(confidence.dtype, torch.float32))
    centers = (torch.arange(n_bins, device=p.device, dtype=p.dtype) + 0.5) / n_bins
    # The square of p is the same in every bin, so softmax does not need it.
    return torch.softmax(lam * centers * (2 * p[:, None] - centers), dim=1)


def soft_bins(confidence: Tensor, correct: Tensor, *, n_bins: int = 15, lam: float = 200.0) -> SoftBins:
    r"""Share samples out among bins and compare confidence with accuracy in each.

    .. math:: \mathrm{gap}_b = \frac{\sum_i w_{ib} (p_i - a_i)}{\sum_i w_{ib}}

    Args:
        confidence: Confidence in the predicted class, shape ``(n,)``.
        correct: 1 or true where that class was the true one, shape ``(n,)``.
        n_bins: Number of bins over the unit interval.
        lam: Sharpness of :func:`soft_membership`.
    """
    p = confidence.to(torch.promote_types(confidence.dtype, torch.float32))
    share = soft_membership(p, n_bins=n_bins, lam=lam)
    held = share.sum(dim=0)
    # A bin that no sample reaches underflows to zero; it then has no gap and no gradient.
    divisor = held.clamp_min(torch.finfo(p.dtype).tiny)
    gap = (p - correct.to(p.dtype)) @ share / divisor
    with torch.no_grad():
        noise = ((p * (1 - p)) @ share.square()).sqrt() / divisor
    return SoftBins(weight=held / len(p), gap=gap, noise=noise)


def soft_ece(confidence: Tensor, correct: Tensor, *, n_bins: int = 15, lam: float = 200.0) -> Tensor:
    r"""Soft-binned calibration error: the mean size of the gap over samples, with a gradient.

    .. math:: \sum_b \frac{\sum_i w_{ib}}{n}\,|\mathrm{gap}_b|

    Example:
        >>> round(float(soft_ece(torch.tensor([0.9, 0.9]), torch.tensor([1.0, 0.0]))), 3)
        0.4
    """
    return soft_bins(confidence, correct, n_bins=n_bins, lam=lam).expected_gap()
