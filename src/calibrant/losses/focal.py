"""Focal loss (Lin et al., "Focal Loss for Dense Object Detection", ICCV 2017).

Mukhoti et al. ("Calibrating Deep Neural Networks using Focal Loss", NeurIPS 2020) found that it calibrates.
"""

from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.errors import InputError
from calibrant.losses.loss import SampleLoss, SampleOptions
from calibrant.losses.parts.batch import (
    IGNORED,
    Reduction,
    check_weight,
    is_soft,
    reduce_loss,
    reduce_soft_loss,
    true_class_nll,
    widened,
)


def focal_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    gamma: float = 3.0,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Cross-entropy that fades out for samples the model already gets right.

    .. math:: L(z, y) = -(1 - p_y)^\gamma \log p_y, \quad p = \mathrm{softmax}(z)

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes, or distributions in the shape of the logits.
        gamma: How fast sure samples fade; 0 is cross-entropy.
        weight: One weight per class; for integer labels.
        ignore_index: Label of the samples that count for nothing.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> round(float(focal_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), gamma=2.0)), 5)
        0.0018
    """
    check_weight(weight, logits)
    if gamma < 0:
        raise InputError(f"gamma: expected a number of at least 0, got {gamma}")
    if is_soft(logits, labels):
        if weight is not None:
            raise InputError("weight: expected none with soft labels, got one; scale the labels instead")
        log_p = F.log_softmax(widened(logits), dim=1)
        return reduce_soft_loss((labels * focal_value(-log_p, gamma)).sum(dim=1), reduction=reduction)
    nll = true_class_nll(logits, labels, ignore_index=ignore_index)
    return reduce_loss(
        focal_value(nll, gamma), labels, reduction=reduction, weight=weight, ignore_index=ignore_index
    )


def focal_value(nll: Tensor, gamma: float | Tensor) -> Tensor:
    """Return the focal loss of classes whose cross-entropy ``-log p`` is given."""
    # 1 - p rounds to 0 for a sure sample, where a power below 1 has no finite slope.
    miss = (-torch.expm1(-nll)).clamp_min(torch.finfo(nll.dtype).eps)
    return miss.pow(gamma) * nll


class FocalLoss(SampleLoss):
    """Module form of :func:`focal_loss`."""

    def __init__(self, gamma: float = 3.0, **shared: Unpack[SampleOptions]) -> None:
        super().__init__(**shared)
        self.gamma = gamma

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return focal_loss(logits, labels, gamma=self.gamma, **self.shared)

    def extra_repr(self) -> str:
        """Say what makes this loss differ from another of its kind."""
        return f"gamma={self.gamma}"
