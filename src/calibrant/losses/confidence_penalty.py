"""The confidence penalty (Pereyra et al., ICLR 2017 workshop).

"Regularizing Neural Networks by Penalizing Confident Output Distributions".
"""

import torch.nn.functional as F
from torch import Tensor

from calibrant.losses.loss import SampleLoss
from calibrant.losses.parts.batch import IGNORED, Reduction, check_weight, reduce_loss, widened
from calibrant.losses.parts.known_gradient import Gradient, with_known_gradient
from calibrant.losses.parts.true_class import true_class_index


def confidence_penalty_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Minus the entropy of the predictions: 0 for a sure one, lowest for an undecided one. A term to add.

    .. math:: L(z) = \sum_c p_c \log p_c, \quad p = \mathrm{softmax}(z)

    The paper trains ``CrossEntropyLoss() + 0.1 * ConfidencePenaltyLoss()``; alone it learns nothing.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes; they say only which samples are ignored and how the rest are weighed.
        weight: One weight per class.
        ignore_index: Label of the samples that count for nothing.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> import torch
        >>> round(float(confidence_penalty_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))), 4)
        -0.6931
    """
    check_weight(weight, logits)
    _, kept = true_class_index(logits, labels, ignore_index=ignore_index)
    values = with_known_gradient(widened(logits), kept, definition=_definition, shortcut=_shortcut)
    return reduce_loss(
        values,
        labels,
        reduction=reduction,
        weight=weight,
        ignore_index=ignore_index,
        all_count=kept is None,
    )


def _definition(logits: Tensor) -> Tensor:
    log_p = F.log_softmax(logits, dim=1)
    return (log_p.exp() * log_p).sum(dim=1)


def _shortcut(logits: Tensor) -> tuple[Tensor, Gradient]:
    # With u = z - max z, log p is u plus the log of the largest probability: no second table of logarithms.
    top = logits.amax(dim=1, keepdim=True)
    p = F.softmax(logits, dim=1)
    mean = (logits - top).mul_(p).sum(dim=1, keepdim=True)

    def gradient(outer: Tensor) -> Tensor:
        return (logits - top).sub_(mean).mul_(p).mul_(outer.unsqueeze(1))

    return mean.squeeze(1) + p.amax(dim=1).log(), gradient


class ConfidencePenaltyLoss(SampleLoss):
    """Module form of :func:`confidence_penalty_loss`; a term to add to another loss."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the term of a batch."""
        return confidence_penalty_loss(logits, labels, **self.shared)
