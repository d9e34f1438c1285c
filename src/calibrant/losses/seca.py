"""SECA ("Self-guided model calibration"): the batch's own mean prediction per class joins the label."""

import torch
from torch import Tensor

from calibrant.losses.loss import SampleLoss
from calibrant.losses.parts.batch import IGNORED, Reduction, check_weight, rows
from calibrant.losses.parts.global_batch import global_rows, global_sum
from calibrant.losses.parts.known_gradient import Gradient, with_known_gradient
from calibrant.losses.parts.sample_values import reduce_rows


def seca_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Cross-entropy against the label plus what the batch believes about samples of that class.

    .. math:: L(z_i, y_i) = -\sum_c \big([c = y_i] + \mu_{y_i c}\big) \log p_{ic}, \quad
        \mu_j = \frac{1}{|S_j|} \sum_{i \in S_j} p_i

    ``S_j`` are the batch's samples of class ``j``, of all processes together. The means are constants to the
    gradient, which then is :math:`2p - (q + \mu)` as the paper states (Eq. 12); with a gradient through the
    means it would not be. The target sums to two, so at equal fit the value is about twice the
    cross-entropy's. A sample that is alone in its class has its own prediction as its target: its gradient
    is cross-entropy's. There is nothing to tune.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes.
        weight: One weight per class.
        ignore_index: Label of the samples that count for nothing.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> round(float(seca_loss(logits, torch.tensor([0, 0, 1]))), 4)
        0.786
    """
    check_weight(weight, logits)
    z, y = rows(logits, labels, ignore_index=ignore_index)
    with torch.no_grad():
        p = torch.softmax(z, dim=1)
        target = class_means(p, y)
        target[torch.arange(len(y), device=y.device), y] += 1

    def definition(z: Tensor) -> Tensor:
        return -(target * torch.log_softmax(z, dim=1)).sum(dim=1)

    def shortcut(z: Tensor) -> tuple[Tensor, Gradient]:
        # log p_c = (z_c - z_top) + log p_top, and the target sums to two.
        below_top = z - z.amax(dim=1, keepdim=True)
        values = -below_top.mul_(target).sum(dim=1) - 2 * p.amax(dim=1).log()
        slope = p.mul_(2).sub_(target)  # Eq. 12
        return values, lambda outer: outer[:, None] * slope

    values = with_known_gradient(z, None, definition=definition, shortcut=shortcut)
    return reduce_rows(values, labels, reduction=reduction, weight=weight, ignore_index=ignore_index)


@torch.no_grad()
def class_means(probs: Tensor, labels: Tensor) -> Tensor:
    """Return for each sample the mean distribution of the global batch's samples of its class.

    Only the classes that occur are kept, so memory does not grow with the square of their number.
    """
    classes = torch.unique(global_rows(labels))
    place = torch.searchsorted(classes, labels.contiguous())
    sums = global_sum(probs.new_zeros(len(classes), probs.shape[1]).index_add_(0, place, probs))
    counts = global_sum(torch.bincount(place, minlength=len(classes)))
    return sums.div_(counts[:, None]).index_select(0, place)


class SECALoss(SampleLoss):
    """Module form of :func:`seca_loss`."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return seca_loss(logits, labels, **self.shared)
