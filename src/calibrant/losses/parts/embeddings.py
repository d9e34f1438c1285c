"""What losses of embeddings do with a batch: flatten the views, leave out ignored labels, gather."""

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.losses.parts.batch import widened
from calibrant.losses.parts.global_batch import global_rows


def embedding_rows(embeddings: Tensor, labels: Tensor, *, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Return the embeddings of the global batch, shape ``(m, d)``, and their labels, shape ``(m,)``.

    Args:
        embeddings: Shape ``(n, d)``, or ``(n, views, d)`` with several views of each sample, which share its
            label.
        labels: Integer classes of shape ``(n,)``.
        ignore_index: Label of the samples that count for nothing.
    """
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
    z = widened(embeddings)
    if z.ndim == 3:
        labels = labels.repeat_interleave(z.shape[1])
        z = z.flatten(0, 1)
    kept = labels != ignore_index
    if not bool(kept.all()):
        z, labels = z[kept], labels[kept]
    return global_rows(z), global_rows(labels)
