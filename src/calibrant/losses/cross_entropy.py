"""Cross-entropy, the negative log-likelihood of the labels: what every other loss is compared with."""

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.losses.loss import SampleLoss
from calibrant.losses.parts.batch import (
    IGNORED,
    Reduction,
    check_batch,
    check_weight,
    is_soft,
    reduce_loss,
    reduce_soft_loss,
    true_class_nll,
    widened,
)


def cross_entropy_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""How surprised the model is by the true class; torch's, but 0 where torch has nothing to average.

    .. math:: L(z, y) = -\log p_y, \quad p = \mathrm{softmax}(z)

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes, or distributions in the shape of the logits.
        weight: One weight per class; with soft labels it scales each class's share of the label.
        ignore_index: Label of the samples that count for nothing.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> round(float(cross_entropy_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))), 4)
        0.1269
        >>> float(cross_entropy_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([-100])))
        0.0
    """
    check_weight(weight, logits)
    return smoothed_cross_entropy(
        logits, labels, smoothing=0.0, weight=weight, ignore_index=ignore_index, reduction=reduction
    )


def smoothed_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    smoothing: float,
    weight: Tensor | None,
    ignore_index: int,
    reduction: Reduction,
) -> Tensor:
    """Return torch's cross-entropy against labels that are mixed with the uniform distribution."""
    z = widened(logits)
    scale = None if weight is None else weight.to(z.dtype)
    if is_soft(logits, labels):
        values = F.cross_entropy(
            z, labels.to(z.dtype), weight=scale, reduction="none", label_smoothing=smoothing
        )
        return reduce_soft_loss(values, reduction=reduction)
    check_batch(logits, labels)
    try:
        values = F.cross_entropy(
            z,
            labels,
            weight=scale,
            ignore_index=ignore_index,
            reduction="none",
            label_smoothing=smoothing,
        )
    except IndexError:
        true_class_nll(logits.detach(), labels, ignore_index=ignore_index)  # raises and names the label
        raise
    if scale is None or reduction != "mean":
        return reduce_loss(values, labels, reduction=reduction, ignore_index=ignore_index)
    kept = labels != ignore_index
    total = (scale[torch.where(kept, labels, 0)] * kept).sum()
    return values.sum() / torch.where(total > 0, total, 1)


class CrossEntropyLoss(SampleLoss):
    """Module form of :func:`cross_entropy_loss`."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return cross_entropy_loss(logits, labels, **self.shared)
