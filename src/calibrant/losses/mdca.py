"""MDCA (Hebbalaguppe et al., "A Stitch in Time Saves Nine", CVPR 2022)."""

import torch
from torch import Tensor

from calibrant.losses.loss import Loss
from calibrant.losses.parts.batch import IGNORED, rows
from calibrant.losses.parts.global_batch import global_sum


def mdca_loss(logits: Tensor, labels: Tensor, *, ignore_index: int = IGNORED) -> Tensor:
    r"""Gap, averaged over classes, between how often a class is expected and how often it occurs.

    .. math:: \frac{1}{K} \sum_k \Big| \frac{1}{n} \sum_i p_{ik} - \frac{1}{n} \sum_i [y_i = k] \Big|

    A term to add to a loss that classifies, usually focal loss: ``FocalLoss() + MDCALoss()``. It is zero for
    a model that always predicts the class frequencies of the batch, so it does nothing alone. The batch is
    the global one under data-parallel training.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes.
        ignore_index: Label of the samples that count for nothing.

    Example:
        >>> round(float(mdca_loss(torch.zeros(2, 2), torch.tensor([0, 0]))), 4)
        0.5
    """
    z, y = rows(logits, labels, ignore_index=ignore_index)
    # The last entry counts the samples, so that one exchange suffices.
    occurred = torch.bincount(y, minlength=z.shape[1]).to(z.dtype)
    totals = torch.cat([torch.softmax(z, dim=1).sum(dim=0) - occurred, occurred.sum()[None]])
    totals = global_sum(totals)
    return totals[:-1].abs().mean() / totals[-1].detach().clamp_min(1)


class MDCALoss(Loss):
    """Module form of :func:`mdca_loss`."""

    def __init__(self, *, ignore_index: int = IGNORED) -> None:
        super().__init__()
        self.ignore_index = ignore_index

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the term of a batch."""
        return mdca_loss(logits, labels, ignore_index=self.ignore_index)
