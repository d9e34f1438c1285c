"""Values of samples that were computed together: back into the shape of the labels, and reduced globally.

A loss that weighs its samples by statistics of the global batch has local values; their mean must be taken
over the global batch too, or shards of unequal size count unequally.
"""

import torch
from torch import Tensor

from calibrant.losses.parts.batch import IGNORED, Reduction, reduce_loss
from calibrant.losses.parts.global_batch import global_sum, world_size


def reduce_rows(
    values: Tensor,
    labels: Tensor,
    *,
    reduction: Reduction = "mean",
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
) -> Tensor:
    """Reduce the values of this process's rows so that the mean over processes is that of the global batch.

    Args:
        values: One value per sample that is not ignored, in the order of
            :func:`~calibrant.losses.parts.batch.rows`.
        labels: The labels as the caller gave them.
        reduction: ``"mean"`` over the global batch, ``"sum"`` over this process, or ``"none"``.
        weight: One weight per class, or none.
        ignore_index: Label of the samples that count for nothing.
    """
    processes = world_size()
    if reduction == "mean" and weight is None and processes == 1 and 0 < labels.numel() == values.numel():
        return values.mean()  # nothing is ignored: the common case, in one step
    values = _in_label_shape(values, labels, ignore_index)
    if reduction != "mean" or processes == 1:
        return reduce_loss(values, labels, reduction=reduction, weight=weight, ignore_index=ignore_index)
    total = reduce_loss(values, labels, reduction="sum", weight=weight, ignore_index=ignore_index)
    with torch.no_grad():
        ones = (labels != ignore_index).to(values.dtype)
        share = reduce_loss(ones, labels, reduction="sum", weight=weight, ignore_index=ignore_index)
        share = global_sum(share)
    return total * processes / torch.where(share > 0, share, 1)


def _in_label_shape(values: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    if values.numel() == labels.numel():
        return values.view(labels.shape)
    kept = labels != ignore_index
    return values.new_zeros(labels.shape).masked_scatter(kept, values)
