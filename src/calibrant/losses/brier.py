"""Brier loss (Brier, "Verification of Forecasts Expressed in Terms of Probability", 1950)."""

from dataclasses import dataclass
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.losses.loss import SampleLoss
from calibrant.losses.parts.known_gradient import Gradient
from calibrant.losses.parts.samples import SampleOptions, Samples, takes_sample_options


@takes_sample_options
def brier_loss(logits: Tensor, labels: Tensor, **shared: Unpack[SampleOptions]) -> Tensor:
    r"""Return the squared distance between the predicted distribution and the label, at most 2.

    .. math:: L(z, y) = \sum_c (p_c - [c = y])^2, \quad p = \mathrm{softmax}(z)

    This is a bounded proper score: a confident mistake costs at most 2 and has a vanishing gradient, so
    training with many classes starts more slowly than with cross-entropy.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes, or distributions in the shape of the logits.
        weight: One weight per class; for integer labels.
        ignore_index: Label of the samples to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> round(float(brier_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))), 4)
        0.0284
    """
    samples = Samples(logits, labels, **shared)
    if samples.soft:
        samples.refuse_weight()
        return samples.reduce_soft((torch.softmax(samples.scores, dim=1) - labels).square().sum(dim=1))
    index, kept = samples.true_class()
    return samples.reduce_known(
        kept, definition=lambda z: _definition(z, index), shortcut=lambda z: _shortcut(z, index)
    )


def _definition(logits: Tensor, index: Tensor) -> Tensor:
    p = F.softmax(logits, dim=1)
    distance = p.scatter_add(1, index, p.new_full(index.shape, -1.0))
    return distance.square().sum(dim=1)


def _shortcut(logits: Tensor, index: Tensor) -> tuple[Tensor, Gradient]:
    p = F.softmax(logits, dim=1)
    true = p.gather(1, index)
    squares: Tensor = torch.linalg.vector_norm(p, dim=1, keepdim=True).square_()
    # The part of the other classes may round below 0 for a confident sample.
    values = (1 - true).square_() + (squares - true.square()).clamp_min_(0)

    def gradient(outer: Tensor) -> Tensor:
        # p_c (d_c - sum_j p_j d_j) with d = p - [c = y], times two.
        inner = (p - (squares - true)).mul_(p).scatter_add_(1, index, -true)
        return inner.mul_(2 * outer.unsqueeze(1))

    return values.squeeze(1), gradient


@dataclass(eq=False, repr=False)
class BrierLoss(SampleLoss):
    """Module form of :func:`brier_loss`."""

    function = staticmethod(brier_loss)
