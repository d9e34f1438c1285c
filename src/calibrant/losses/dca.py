"""DCA (Liang et al., "Improved Trainable Calibration Method for Neural Networks ...", BMVC 2020)."""

import torch
from torch import Tensor

from calibrant.losses.loss import Loss
from calibrant.losses.parts.batch import IGNORED
from calibrant.losses.parts.top_label import top_label_confidence


def dca_loss(logits: Tensor, labels: Tensor, *, ignore_index: int = IGNORED) -> Tensor:
    r"""Distance between the mean confidence of the batch and its accuracy.

    .. math:: \Big| \frac{1}{n} \sum_i [\hat y_i = y_i] - \frac{1}{n} \sum_i \max_k p_{ik} \Big|

    A term to add to a loss that classifies: ``CrossEntropyLoss() + 10.0 * DCALoss()``. Errors of opposite
    sign cancel over the whole batch; :func:`~calibrant.losses.mmce.mmce_loss` lets only neighbours cancel.
    Accuracy has no gradient. The batch is the global one under data-parallel training.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes.
        ignore_index: Label of the samples that count for nothing.

    Example:
        >>> round(float(dca_loss(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]))), 4)
        0.3808
    """
    confidence, correct = top_label_confidence(logits, labels, ignore_index=ignore_index)
    gap = (confidence - correct).sum() / max(len(correct), 1)
    return gap.abs().to(torch.promote_types(logits.dtype, torch.float32))


class DCALoss(Loss):
    """Module form of :func:`dca_loss`."""

    def __init__(self, *, ignore_index: int = IGNORED) -> None:
        super().__init__()
        self.ignore_index = ignore_index

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the term of a batch."""
        return dca_loss(logits, labels, ignore_index=self.ignore_index)
