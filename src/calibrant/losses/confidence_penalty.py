"""The confidence penalty (Pereyra et al., ICLR 2017 workshop).

"Regularizing Neural Networks by Penalizing Confident Output Distributions".
"""

from dataclasses import dataclass
from typing import Unpack

import torch.nn.functional as F
from torch import Tensor

from calibrant.losses.loss import SampleLoss
from calibrant.losses.parts.batch import FAR_BELOW
from calibrant.losses.parts.known_gradient import Gradient
from calibrant.losses.parts.samples import SampleOptions, Samples, takes_sample_options


@takes_sample_options
def confidence_penalty_loss(logits: Tensor, labels: Tensor, **shared: Unpack[SampleOptions]) -> Tensor:
    r"""Return the negative entropy of the predictions: 0 for a certain one, lowest for a uniform one.

    .. math:: L(z) = \sum_c p_c \log p_c, \quad p = \mathrm{softmax}(z)

    A term to add: the paper trains ``CrossEntropyLoss() + 0.1 * ConfidencePenaltyLoss()``; alone it learns
    nothing.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes; they only decide which samples are ignored and how the others are weighted.
        weight: One weight per class.
        ignore_index: Label of the samples to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> import torch
        >>> round(float(confidence_penalty_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))), 4)
        -0.6931
    """
    samples = Samples(logits, labels, **shared)
    _, kept = samples.true_class()
    return samples.reduce_known(kept, definition=_definition, shortcut=_shortcut)


def _definition(logits: Tensor) -> Tensor:
    log_p = F.log_softmax(logits, dim=1).clamp_min(-FAR_BELOW)
    return (log_p.exp() * log_p).sum(dim=1)


def _shortcut(logits: Tensor) -> tuple[Tensor, Gradient]:
    # With u = z - max z, log p is u plus the log of the largest probability: no second table of logarithms.
    top = logits.amax(dim=1, keepdim=True)
    p = F.softmax(logits, dim=1)
    mean = (logits - top).clamp_min_(-FAR_BELOW).mul_(p).sum(dim=1, keepdim=True)

    def gradient(outer: Tensor) -> Tensor:
        return (logits - top).clamp_min_(-FAR_BELOW).sub_(mean).mul_(p).mul_(outer.unsqueeze(1))

    return mean.squeeze(1) + p.amax(dim=1).log(), gradient


@dataclass(eq=False, repr=False)
class ConfidencePenaltyLoss(SampleLoss):
    """Module form of :func:`confidence_penalty_loss`; a term to add to another loss."""

    function = staticmethod(confidence_penalty_loss)
