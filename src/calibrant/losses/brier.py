"""Brier loss (Brier, "Verification of Forecasts Expressed in Terms of Probability", 1950)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.errors import InputError
from calibrant.losses.loss import SampleLoss
from calibrant.losses.parts.batch import (
    IGNORED,
    Reduction,
    check_weight,
    is_soft,
    reduce_loss,
    reduce_soft_loss,
    widened,
)
from calibrant.losses.parts.known_gradient import Gradient, with_known_gradient
from calibrant.losses.parts.true_class import true_class_index


def brier_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Squared distance between the predicted distribution and the label, at most 2.

    .. math:: L(z, y) = \sum_c (p_c - [c = y])^2, \quad p = \mathrm{softmax}(z)

    A proper score that is bounded, so a sure mistake weighs no more than 2 and pulls with a vanishing
    gradient: training starts slower than with cross-entropy when there are many classes.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes, or distributions in the shape of the logits.
        weight: One weight per class; for integer labels.
        ignore_index: Label of the samples that count for nothing.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> round(float(brier_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))), 4)
        0.0284
    """
    check_weight(weight, logits)
    z = widened(logits)
    if is_soft(logits, labels):
        if weight is not None:
            raise InputError("weight: expected none with soft labels, got one; weigh the samples instead")
        return reduce_soft_loss((torch.softmax(z, dim=1) - labels).square().sum(dim=1), reduction=reduction)
    index, kept = true_class_index(logits, labels, ignore_index=ignore_index)
    values = with_known_gradient(
        z, kept, definition=lambda z: _definition(z, index), shortcut=lambda z: _shortcut(z, index)
    )
    return reduce_loss(
        values,
        labels,
        reduction=reduction,
        weight=weight,
        ignore_index=ignore_index,
        all_count=kept is None,
    )


def _definition(logits: Tensor, index: Tensor) -> Tensor:
    p = F.softmax(logits, dim=1)
    distance = p.scatter_add(1, index, p.new_full(index.shape, -1.0))
    return distance.square().sum(dim=1)


def _shortcut(logits: Tensor, index: Tensor) -> tuple[Tensor, Gradient]:
    p = F.softmax(logits, dim=1)
    true = p.gather(1, index)
    squares: Tensor = torch.linalg.vector_norm(p, dim=1, keepdim=True).square_()
    # The other classes' part may round below 0 for a sure sample.
    values = (1 - true).square_() + (squares - true.square()).clamp_min_(0)

    def gradient(outer: Tensor) -> Tensor:
        # p_c (d_c - sum_j p_j d_j) with d = p - [c = y], times two.
        inner = (p - (squares - true)).mul_(p).scatter_add_(1, index, -true)
        return inner.mul_(2 * outer.unsqueeze(1))

    return values.squeeze(1), gradient


class BrierLoss(SampleLoss):
    """Module form of :func:`brier_loss`."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return brier_loss(logits, labels, **self.shared)
