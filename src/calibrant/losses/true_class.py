"""Where in the table of classes the true class of each sample is, when some samples are ignored."""

import torch
from torch import Tensor

from calibrant.losses.batch import IGNORED, check_batch, true_class_nll


def true_class_index(logits: Tensor, labels: Tensor, *, ignore_index: int = IGNORED) -> tuple[Tensor, Tensor]:
    """Return the index of the true class along dimension 1, kept as a dimension, and which samples count.

    Ignored samples point to class 0. Labels out of range are refused where reading them does not stall the
    device; elsewhere torch stops at the first use, as it does in cross-entropy.
    """
    check_batch(logits, labels)
    kept = labels != ignore_index
    index = torch.where(kept, labels, 0)
    if index.device.type == "cpu" and index.numel():
        low, high = torch.aminmax(index)
        if low.item() < 0 or high.item() >= logits.shape[1]:
            true_class_nll(logits.detach(), labels, ignore_index=ignore_index)  # raises and names the label
    return index.unsqueeze(1), kept
