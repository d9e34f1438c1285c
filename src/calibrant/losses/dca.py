"""DCA and MDCA: the difference between confidence and accuracy of a batch, overall and averaged over classes.

DCA: Liang et al., "Improved Trainable Calibration Method for Neural Networks on Medical Imaging
Classification", BMVC 2020. MDCA: Hebbalaguppe et al., "A Stitch in Time Saves Nine", CVPR 2022.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.losses.loss import BatchLoss
from calibrant.losses.parts.batch import IGNORED, number_of, rows
from calibrant.losses.parts.confidence import top_label_confidence
from calibrant.losses.parts.global_batch import global_sum


def dca_loss(logits: Tensor, labels: Tensor, *, ignore_index: int = IGNORED) -> Tensor:
    r"""Return the distance between the mean confidence of the batch and its accuracy.

    .. math:: \Big| \frac{1}{n} \sum_i [\hat y_i = y_i] - \frac{1}{n} \sum_i \max_k p_{ik} \Big|

    A term to add to a classification loss: ``CrossEntropyLoss() + 10.0 * DCALoss()``. Errors of opposite
    sign cancel over the whole batch; in ``mmce_loss`` only errors of neighbours cancel. Accuracy has no
    gradient. Under data-parallel training the batch is the global one.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes.
        ignore_index: Label of the samples to ignore.

    Example:
        >>> round(float(dca_loss(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]))), 4)
        0.3808
    """
    confidence, correct, kept = top_label_confidence(logits, labels, ignore_index=ignore_index)
    error = confidence - correct
    gap = (error if kept is None else error * kept).sum() / number_of(kept, len(error))
    return gap.abs().to(torch.promote_types(logits.dtype, torch.float32))


@dataclass(eq=False, repr=False)
class DCALoss(BatchLoss):
    """Module form of :func:`dca_loss`."""

    function = staticmethod(dca_loss)


def mdca_loss(logits: Tensor, labels: Tensor, *, ignore_index: int = IGNORED) -> Tensor:
    r"""Return the difference between predicted and actual frequency of a class, averaged over the classes.

    .. math:: \frac{1}{K} \sum_k \Big| \frac{1}{n} \sum_i p_{ik} - \frac{1}{n} \sum_i [y_i = k] \Big|

    A term to add to a classification loss, usually focal loss: ``FocalLoss() + MDCALoss()``. It is zero for
    a model that always predicts the class frequencies of the batch, so alone it trains nothing. Under
    data-parallel training the batch is the global one.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes.
        ignore_index: Label of the samples to ignore.

    Example:
        >>> round(float(mdca_loss(torch.zeros(2, 2), torch.tensor([0, 0]))), 4)
        0.5
    """
    samples = rows(logits, labels, ignore_index=ignore_index)
    z, shares = samples.logits, samples.shares
    # The last entry counts the samples, so that one exchange suffices.
    occurred = z.new_zeros(z.shape[1]).index_add_(0, samples.labels, shares)
    p = torch.softmax(z, dim=1)
    predicted = p if samples.kept is None else p * shares[:, None]
    totals = torch.cat([predicted.sum(dim=0) - occurred, occurred.sum()[None]])
    totals = global_sum(totals)
    return totals[:-1].abs().mean() / totals[-1].detach().clamp_min(1)


@dataclass(eq=False, repr=False)
class MDCALoss(BatchLoss):
    """Module form of :func:`mdca_loss`."""

    function = staticmethod(mdca_loss)
