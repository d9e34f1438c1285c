"""Where in the table of classes the true class of each sample is, when some samples are ignored."""

import torch
from torch import Tensor

from calibrant.losses.parts.batch import IGNORED, check_batch, true_class_nll


def true_class_index(
    logits: Tensor, labels: Tensor, *, ignore_index: int = IGNORED
) -> tuple[Tensor, Tensor | None]:
    """Return the index of the true class along dimension 1, kept as a dimension, and which samples count.

    Ignored samples point to class 0. Where reading the labels does not stall the device, those out of range
    are refused, and none is returned for which samples count if all do; elsewhere torch stops at the first
    use of a wrong label, as it does in cross-entropy.
    """
    check_batch(logits, labels)
    readable = labels.device.type == "cpu" and labels.numel() > 0
    if readable:
        low, high = (int(bound) for bound in torch.aminmax(labels))
        if low >= 0 and high < logits.shape[1] and not low <= ignore_index <= high:
            return labels.unsqueeze(1), None
    kept = labels != ignore_index
    index = torch.where(kept, labels, 0)
    if readable and not bool(((index >= 0) & (index < logits.shape[1])).all()):
        true_class_nll(logits.detach(), labels, ignore_index=ignore_index)  # raises and names the label
    return index.unsqueeze(1), kept
