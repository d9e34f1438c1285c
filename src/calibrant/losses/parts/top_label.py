"""Confidence in the predicted class and whether it was right, which calibration terms compare."""

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.losses.parts.batch import IGNORED, rows
from calibrant.losses.parts.global_batch import global_rows


def top_label(logits: Tensor, labels: Tensor, *, ignore_index: int = IGNORED) -> tuple[Tensor, Tensor]:
    """Return the log-probability of the predicted class and 1 where it was right, of the global batch.

    Both have shape ``(n,)`` and are in double precision: they are few, and sums over them cancel. Ignored
    samples are left out; the samples of all processes are there, with the gradient of the global batch.
    """
    z, y = rows(logits, labels, ignore_index=ignore_index)
    log_confidence, predicted = F.log_softmax(z, dim=1).max(dim=1)
    return _of_all_processes(log_confidence, predicted == y)


def top_label_confidence(
    logits: Tensor, labels: Tensor, *, ignore_index: int = IGNORED
) -> tuple[Tensor, Tensor]:
    """Return the confidence in the predicted class and 1 where it was right; see :func:`top_label`."""
    z, y = rows(logits, labels, ignore_index=ignore_index)
    confidence, predicted = F.softmax(z, dim=1).max(dim=1)
    return _of_all_processes(confidence, predicted == y)


def _of_all_processes(scores: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    pairs = torch.stack([scores.double(), correct.double()], dim=1)
    scores, correct = global_rows(pairs).unbind(dim=1)
    return scores, correct
