"""Read a batch: check it and leave out ignored samples.

Logits have shape ``(n, k)``, or ``(n, k, ...)`` for dense predictions such as segmentation; integer labels
have shape ``(n,)`` or ``(n, ...)``. Soft labels have the shape of the logits. Half precision is widened. A
binary model may give one logit per sample, of shape ``(n,)``, ``(n, 1)`` or ``(n, 1, ...)``.

While torch compiles a loss, no value is read: labels are not checked, and ignored samples stay in the batch
and are masked, because the size of what is left would depend on the values.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import at_least_float32
from calibrant.losses.parts.global_batch import global_rows, world_size

# The label that torch ignores by default.
IGNORED = -100

#: Log-probabilities of masked classes (logit -inf) count as -FAR: in a product with probability 0 they are 0.
FAR_BELOW = 1e30


def check_batch(logits: Tensor, labels: Tensor) -> None:
    """Refuse shapes and types that do not fit together; reading the values would stall a GPU."""
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


def check_tensor(value: Tensor, name: str) -> None:
    """Refuse arrays, lists and all else that is no tensor."""
    if not isinstance(value, Tensor):
        raise InputError(f"{name}: expected a tensor, got {type(value).__name__}; use torch.as_tensor(...)")


def has_one_logit(logits: Tensor) -> bool:
    """Return whether there is one logit per sample, the log-odds of class 1, instead of one per class."""
    check_tensor(logits, "logits")
    return logits.ndim == 1 or (logits.ndim > 1 and logits.shape[1] == 1)


def two_classes(logits: Tensor, labels: Tensor, *, ignore_index: int = IGNORED) -> tuple[Tensor, Tensor]:
    """Return a batch with one logit ``z`` per sample as one of two classes, ``[0, z]``; others as they are.

    The softmax of ``[0, z]`` is the sigmoid of ``z``, so every loss of two classes has the value and the
    gradient of its binary form. Labels are 0 or 1, as whole numbers, truth values or floats.

    Example:
        >>> two_classes(torch.tensor([2.0, -1.0]), torch.tensor([1.0, 0.0]))
        (tensor([[ 0.,  2.],
                [ 0., -1.]]), tensor([1, 0]))
    """
    check_tensor(labels, "labels")
    if not has_one_logit(logits):
        return logits, labels
    z = logits.unsqueeze(1) if logits.ndim == 1 else logits
    y = labels.squeeze(1) if labels.shape == z.shape else labels
    if y.is_floating_point() and not torch.compiler.is_compiling():
        wrong = y[(y != 0) & (y != 1) & (y != ignore_index)]
        if wrong.numel():
            raise InputError(
                f"labels: expected 0 or 1 beside one logit per sample, got {float(wrong[0]):g}; soft labels "
                "need one logit and one share for each of the two classes"
            )
    return torch.cat([torch.zeros_like(z), z], dim=1), y.long()


def masks_ignored() -> bool:
    """Return whether ignored samples are masked instead of left out: while compiling for one process."""
    return torch.compiler.is_compiling() and world_size() == 1


class Rows(NamedTuple):
    """The samples of a batch: logits of shape ``(m, k)`` and labels of shape ``(m,)``.

    ``kept`` is None if ignored samples are left out, as they are unless torch compiles. Otherwise it is false
    for ignored samples, whose logits are 0 and whose label is 0.
    """

    logits: Tensor
    labels: Tensor
    kept: Tensor | None = None

    @property
    def shares(self) -> Tensor:
        """1 for each sample that counts and 0 for an ignored one, in the type of the logits."""
        z, kept = self.logits, self.kept
        return z.new_ones(len(z)) if kept is None else kept.to(z.dtype)


def number_of(kept: Tensor | None, n: int) -> Tensor | int:
    """Return how many of ``n`` samples count, but at least one, to divide by."""
    return max(n, 1) if kept is None else kept.sum(dtype=torch.float64).clamp_min(1)


def rows(logits: Tensor, labels: Tensor, *, ignore_index: int = IGNORED) -> Rows:
    """Return the samples that are not ignored, or all of them and a mask while torch compiles.

    For losses that compare the samples of a batch with each other. In dense predictions every position is a
    sample.
    """
    logits, labels = two_classes(logits, labels, ignore_index=ignore_index)
    check_batch(logits, labels)
    z = at_least_float32(logits)
    if z.ndim > 2:
        z = z.movedim(1, -1).flatten(0, -2)
        labels = labels.flatten()
    if masks_ignored():
        kept = labels != ignore_index
        return Rows(torch.where(kept[:, None], z, 0), torch.where(kept, labels, 0), kept)
    if labels.numel() == 0:
        return Rows(z, labels)
    low, high = (int(bound) for bound in torch.aminmax(labels))
    if low < 0 or low <= ignore_index <= high:
        kept = labels != ignore_index
        z, labels = z[kept], labels[kept]
        low, high = (int(bound) for bound in torch.aminmax(labels)) if labels.numel() else (0, 0)
    if low < 0 or high >= z.shape[1]:
        raise out_of_range(labels, z.shape[1], ignore_index)
    return Rows(z, labels)


def is_readable(values: Tensor) -> bool:
    """Return whether reading values stalls no device and breaks no graph that torch compiles."""
    return values.device.type == "cpu" and values.numel() > 0 and not torch.compiler.is_compiling()


def masked_in_batch(logits: Tensor) -> Tensor | None:
    """Return where logits are -inf: these classes do not exist for that sample, and are never its label.

    On the CPU, where reading the logits does not stall the device, None if every class exists.
    """
    readable = is_readable(logits)
    if readable and float(logits.detach().amin()) > -torch.inf:
        return None
    return torch.isneginf(logits)


def without_masked(target: Tensor, masked: Tensor | None) -> Tensor:
    """Return distributions along dimension 1 in which masked classes have no share and the others have more.

    Example:
        >>> masked = torch.tensor([[False, False, True]])
        >>> without_masked(torch.tensor([[0.4, 0.4, 0.2]]), masked)
        tensor([[0.5000, 0.5000, 0.0000]])
    """
    if masked is None:
        return target
    left = target.masked_fill(masked, 0)
    return left / left.sum(dim=1, keepdim=True).clamp_min(torch.finfo(target.dtype).tiny)


def embedding_rows(embeddings: Tensor, labels: Tensor, *, ignore_index: int) -> Rows:
    """Return the embeddings of the global batch, shape ``(m, d)``, and their labels, as :func:`rows` does.

    Args:
        embeddings: Shape ``(n, d)``, or ``(n, views, d)`` with several views of each sample, which share its
            label.
        labels: Integer classes of shape ``(n,)``.
        ignore_index: Label of the samples to ignore.
    """
    check_tensor(embeddings, "embeddings")
    check_tensor(labels, "labels")
    if embeddings.ndim not in (2, 3) or not embeddings.is_floating_point():
        raise InputError(
            "embeddings: expected floating-point numbers of shape (n, d) or (n, views, d), "
            f"got {embeddings.dtype} of shape {tuple(embeddings.shape)}"
        )
    if labels.shape != embeddings.shape[:1] or labels.dtype != torch.int64:
        raise InputError(
            f"labels: expected integer classes (torch.int64) of shape {tuple(embeddings.shape[:1])}, "
            f"got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    z = at_least_float32(embeddings)
    if z.ndim == 3:
        labels = labels.repeat_interleave(z.shape[1])
        z = z.flatten(0, 1)
    kept = labels != ignore_index
    if masks_ignored():
        return Rows(torch.where(kept[:, None], z, 0), labels, kept)
    if not bool(kept.all()):
        z, labels = z[kept], labels[kept]
    return Rows(global_rows(z), global_rows(labels))


def out_of_range(labels: Tensor, k: int, ignore_index: int) -> InputError:
    """Return the error for labels that are not classes; it names the first of them."""
    wrong = labels[(labels != ignore_index) & ((labels < 0) | (labels >= k))]
    return InputError(
        f"labels: expected classes from 0 to {k - 1} (or {ignore_index}, which is ignored), "
        f"got {int(wrong[0])}"
    )
