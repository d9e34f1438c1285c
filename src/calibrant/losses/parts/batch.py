"""What every loss does with a batch: check it, read the true class, leave out ignored labels, reduce.

Logits have shape ``(n, k)``, or ``(n, k, ...)`` for dense predictions such as segmentation; integer labels
have shape ``(n,)`` or ``(n, ...)``. Soft labels have the shape of the logits. Half precision is widened.
"""

from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.errors import InputError

Reduction: TypeAlias = Literal["mean", "sum", "none"]

# The label that torch leaves out by default.
IGNORED = -100


def check_batch(logits: Tensor, labels: Tensor) -> None:
    """Refuse shapes and types that do not belong together; values are not read, which would stall a GPU."""
    if logits.ndim < 2 or logits.shape[1] == 0:
        raise InputError(
            f"logits: expected shape (n, k) or (n, k, ...) with at least one class, got {tuple(logits.shape)}"
        )
    if not logits.is_floating_point():
        raise InputError(f"logits: expected floating-point scores, got {logits.dtype}")
    if labels.shape != logits.shape[:1] + logits.shape[2:]:
        raise InputError(
            f"labels: expected integer classes of shape {tuple(logits.shape[:1] + logits.shape[2:])} "
            f"for logits of shape {tuple(logits.shape)}, got shape {tuple(labels.shape)}"
        )
    if labels.dtype != torch.int64:
        raise InputError(f"labels: expected integer classes (torch.int64), got {labels.dtype}; use .long()")


def is_soft(logits: Tensor, labels: Tensor) -> bool:
    """Whether the labels are distributions over the classes rather than class numbers."""
    return (
        labels.is_floating_point()
        and labels.shape == logits.shape
        and logits.ndim > 1
        and logits.is_floating_point()
    )


def check_weight(weight: Tensor | None, logits: Tensor) -> None:
    """Refuse class weights that are not one for each class of the logits."""
    if weight is not None and weight.shape != logits.shape[1:2]:
        raise InputError(
            f"weight: expected one number per class, shape {tuple(logits.shape[1:2])}, "
            f"got shape {tuple(weight.shape)}"
        )


def widened(logits: Tensor) -> Tensor:
    """Return logits in at least single precision, which softmax over many classes needs."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def true_class_nll(logits: Tensor, labels: Tensor, *, ignore_index: int = IGNORED) -> Tensor:
    """Return ``-log p_y`` of each sample, in the shape of the labels; ignored samples have 0.

    This is torch's fused cross-entropy: a loss that depends on the true class's probability alone is a
    function of these ``n`` numbers and costs little more than cross-entropy itself.
    """
    check_batch(logits, labels)
    try:
        return F.cross_entropy(widened(logits), labels, reduction="none", ignore_index=ignore_index)
    except IndexError:
        raise _out_of_range(labels, logits.shape[1], ignore_index) from None


def reduce_loss(
    values: Tensor,
    labels: Tensor,
    *,
    reduction: Reduction = "mean",
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    all_count: bool = False,
) -> Tensor:
    """Reduce one value per sample as torch's cross-entropy does; nothing to average over gives 0, not NaN.

    Args:
        values: Loss of each sample, in the shape of the labels; 0 where the label is ignored.
        labels: Integer classes.
        reduction: ``"mean"`` over what is not ignored (weighted by the weights of the true classes),
            ``"sum"``, or ``"none"``.
        weight: One weight per class, or none.
        ignore_index: Label of the samples that count for nothing.
        all_count: Whether it is known that there are samples and none of them is ignored.
    """
    if all_count and weight is None and reduction == "mean":
        return values.mean()
    kept = labels != ignore_index
    if weight is not None:
        share = weight.to(values.dtype)[torch.where(kept, labels, 0)] * kept
        values = values * share
    if reduction == "mean" and weight is None:
        return values.sum() / kept.sum().clamp_min(1)
    if reduction == "mean":
        total = share.sum()
        return values.sum() / torch.where(total > 0, total, 1)
    if reduction == "sum":
        return values.sum()
    if reduction == "none":
        return values
    raise InputError(f"reduction: expected 'mean', 'sum' or 'none', got {reduction!r}")


def reduce_soft_loss(values: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """Reduce the loss of samples with soft labels, of which none is ignored."""
    if reduction == "mean":
        return values.sum() / max(values.numel(), 1)
    if reduction == "sum":
        return values.sum()
    if reduction == "none":
        return values
    raise InputError(f"reduction: expected 'mean', 'sum' or 'none', got {reduction!r}")


def rows(logits: Tensor, labels: Tensor, *, ignore_index: int = IGNORED) -> tuple[Tensor, Tensor]:
    """Return logits of shape ``(m, k)`` and labels of shape ``(m,)`` of the samples that are not ignored.

    For losses that compare the samples of a batch with one another; dense predictions count every position
    as a sample.
    """
    check_batch(logits, labels)
    z = widened(logits)
    if z.ndim > 2:
        z = z.movedim(1, -1).flatten(0, -2)
        labels = labels.flatten()
    if labels.numel() == 0:
        return z, labels
    low, high = (int(bound) for bound in torch.aminmax(labels))
    if low < 0 or low <= ignore_index <= high:
        kept = labels != ignore_index
        z, labels = z[kept], labels[kept]
        low, high = (int(bound) for bound in torch.aminmax(labels)) if labels.numel() else (0, 0)
    if low < 0 or high >= z.shape[1]:
        raise _out_of_range(labels, z.shape[1], ignore_index)
    return z, labels


def _out_of_range(labels: Tensor, k: int, ignore_index: int) -> InputError:
    wrong = labels[(labels != ignore_index) & ((labels < 0) | (labels >= k))]
    return InputError(
        f"labels: expected classes from 0 to {k - 1} (or {ignore_index}, which is ignored), "
        f"got {int(wrong[0])}"
    )
