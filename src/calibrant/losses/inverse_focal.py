"""Inverse focal loss (Wang et al., "Rethinking Calibration of Deep Neural Networks", NeurIPS 2021)."""

import warnings
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

# The slope in p is positive where -gamma p log p > 1 + p, which happens for some p above 1 / W(1 / e).
_STEEPEST_GAMMA = 3.5911


def inverse_focal_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    gamma: float = 1.0,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Cross-entropy that weighs samples the model already gets right more, against underconfidence.

    .. math:: L(z, y) = -(1 + p_y)^\gamma \log p_y, \quad p = \mathrm{softmax}(z)

    Above a gamma of about 3.59 the loss grows with :math:`p_y` around 0.28, so samples are driven away from
    their class there: a warning says so. Values from 1 to 3 were chosen by validation in "Revisiting
    Reweighted Risk for Calibration", 1 most often.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes, or distributions in the shape of the logits.
        gamma: How much sure samples gain; 0 is cross-entropy.
        weight: One weight per class; for integer labels.
        ignore_index: Label of the samples that count for nothing.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> round(float(inverse_focal_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), gamma=2.0)), 4)
        0.449
    """
    check_weight(weight, logits)
    if gamma < 0:
        raise InputError(f"gamma: expected a number of at least 0, got {gamma}")
    if gamma > _STEEPEST_GAMMA:
        warnings.warn(
            f"gamma: above {_STEEPEST_GAMMA} inverse focal loss pushes some samples away from their class, "
            f"got {gamma}",
            stacklevel=2,
        )
    if is_soft(logits, labels):
        if weight is not None:
            raise InputError("weight: expected none with soft labels, got one; scale the labels instead")
        nll = -F.log_softmax(widened(logits), dim=1)
        return reduce_soft_loss((labels * inverse_focal_value(nll, gamma)).sum(dim=1), reduction=reduction)
    nll = true_class_nll(logits, labels, ignore_index=ignore_index)
    return reduce_loss(
        inverse_focal_value(nll, gamma), labels, reduction=reduction, weight=weight, ignore_index=ignore_index
    )


def inverse_focal_value(nll: Tensor, gamma: float) -> Tensor:
    """Return the inverse focal loss of classes whose cross-entropy ``-log p`` is given."""
    return (1 + torch.exp(-nll)).pow(gamma) * nll


class InverseFocalLoss(SampleLoss):
    """Module form of :func:`inverse_focal_loss`."""

    def __init__(self, gamma: float = 1.0, **shared: Unpack[SampleOptions]) -> None:
        super().__init__(**shared)
        self.gamma = gamma

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return inverse_focal_loss(logits, labels, gamma=self.gamma, **self.shared)

    def extra_repr(self) -> str:
        """Say what makes this loss differ from another of its kind."""
        return f"gamma={self.gamma}"
