"""SECA ("Self-guided model calibration"): the mean prediction for a class is added to its label."""

from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor

from calibrant.losses.loss import SampleLoss
from calibrant.losses.parts.batch import FAR_BELOW, masked_in_batch, without_masked
from calibrant.losses.parts.global_batch import global_rows, global_sum
from calibrant.losses.parts.known_gradient import Gradient, with_known_gradient
from calibrant.losses.parts.samples import SampleOptions, Samples, takes_sample_options


@takes_sample_options
def seca_loss(logits: Tensor, labels: Tensor, **shared: Unpack[SampleOptions]) -> Tensor:
    r"""Return the cross-entropy against the label plus the mean prediction for samples of that class.

    .. math:: L(z_i, y_i) = -\sum_c \big([c = y_i] + \mu_{y_i c}\big) \log p_{ic}, \quad
        \mu_j = \frac{1}{|S_j|} \sum_{i \in S_j} p_i

    ``S_j`` are the samples of class ``j`` in the batch of all processes. The means have no gradient, so the
    gradient is ``2p - (q + \mu)``, as the paper states (Eq. 12). The target sums to two, so at equal fit
    the value is about twice the cross-entropy. For the only sample of a class the mean is its own
    prediction, and its gradient is that of cross-entropy. There is nothing to tune. Where a sample has masked
    classes, whose logits are ``-inf``, the others share their part of the mean.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes.
        weight: One weight per class.
        ignore_index: Label of the samples to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> round(float(seca_loss(logits, torch.tensor([0, 0, 1]))), 4)
        0.786
    """
    samples = Samples(logits, labels, **shared)
    z, y = samples.rows()
    with torch.no_grad():
        p = torch.softmax(z, dim=1)
        target = without_masked(class_means(p, y), masked_in_batch(z))
        target[torch.arange(len(y), device=y.device), y] += 1

    def definition(z: Tensor) -> Tensor:
        return -(target * torch.log_softmax(z, dim=1).clamp_min(-FAR_BELOW)).sum(dim=1)

    def shortcut(z: Tensor) -> tuple[Tensor, Gradient]:
        # log p_c = (z_c - z_top) + log p_top, and the target sums to two.
        below_top = (z - z.amax(dim=1, keepdim=True)).clamp_min_(-FAR_BELOW)
        values = -below_top.mul_(target).sum(dim=1) - 2 * p.amax(dim=1).log()
        slope = p.mul_(2).sub_(target)  # Eq. 12
        return values, lambda outer: outer[:, None] * slope

    return samples.reduce_rows(with_known_gradient(z, None, definition=definition, shortcut=shortcut))


@torch.no_grad()
def class_means(probs: Tensor, labels: Tensor) -> Tensor:
    """Return for each sample the mean prediction for the samples of its class in the global batch.

    Only the classes that occur are stored, so memory does not grow with the square of their number.
    """
    classes = torch.unique(global_rows(labels))
    place = torch.searchsorted(classes, labels.contiguous())
    sums = global_sum(probs.new_zeros(len(classes), probs.shape[1]).index_add_(0, place, probs))
    counts = global_sum(torch.bincount(place, minlength=len(classes)))
    return sums.div_(counts[:, None]).index_select(0, place)


@dataclass(eq=False, repr=False)
class SECALoss(SampleLoss):
    """Module form of :func:`seca_loss`."""

    function = staticmethod(seca_loss)
