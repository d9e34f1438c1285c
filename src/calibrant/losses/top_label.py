"""Confidence in the predicted class and whether it was right, which calibration terms compare."""

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.losses.batch import IGNORED, rows
from calibrant.losses.global_batch import global_rows


def top_label(logits: Tensor, labels: Tensor, *, ignore_index: int = IGNORED) -> tuple[Tensor, Tensor]:
    """Return the log-probability of the predicted class and 1 where it was right, of the global batch.

    Both have shape ``(n,)`` and are in double precision: they are few, and sums over them cancel. Ignored
    samples are left out; the samples of all processes are there, with the gradient of the global batch.
    """
    z, y = rows(logits, labels, ignore_index=ignore_index)
    log_confidence, predicted = F.log_softmax(z, dim=1).max(dim=1)
    pairs = torch.stack([log_confidence.double(), (predicted == y).double()], dim=1)
    log_confidence, correct = global_rows(pairs).unbind(dim=1)
    return log_confidence, correct


def top_label_confidence(
    logits: Tensor, labels: Tensor, *, ignore_index: int = IGNORED
) -> tuple[Tensor, Tensor]:
    """Return the confidence in the predicted class and 1 where it was right; see :func:`top_label`."""
    log_confidence, correct = top_label(logits, labels, ignore_index=ignore_index)
    return log_confidence.exp(), correct
