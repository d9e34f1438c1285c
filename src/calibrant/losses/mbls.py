"""Margin-based label smoothing, MbLS (Liu et al., "The Devil is in the Margin", CVPR 2022)."""

from typing import Unpack

from torch import Tensor

from calibrant.errors import InputError
from calibrant.losses.loss import SampleLoss, SampleOptions
from calibrant.losses.parts.batch import IGNORED, Reduction, check_weight, reduce_loss, widened
from calibrant.losses.parts.known_gradient import Gradient, with_known_gradient
from calibrant.losses.parts.true_class import true_class_index


def mbls_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    margin: float = 10.0,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""How far logits lie below the largest one beyond a margin. A term to add.

    .. math:: L(z) = \frac{1}{k} \sum_c \max(0, \max_j z_j - z_c - m)

    The paper trains ``CrossEntropyLoss() + 0.1 * MbLSLoss(margin=10)``. Its formula sums over the classes
    and its code, from which the 0.1 comes, averages over them; this averages. A margin of 0 pulls all logits
    together, which is what label smoothing does; a margin that no logit reaches changes nothing.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes; they say only which samples are ignored and how the rest are weighed.
        margin: Distance from the largest logit that costs nothing.
        weight: One weight per class.
        ignore_index: Label of the samples that count for nothing.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> import torch
        >>> float(mbls_loss(torch.tensor([[14.0, 5.0, 0.0, 0.0]]), torch.tensor([0])))
        2.0
    """
    check_weight(weight, logits)
    if not margin >= 0:
        raise InputError(f"margin: expected a number of at least 0, got {margin}")
    _, kept = true_class_index(logits, labels, ignore_index=ignore_index)
    values = with_known_gradient(
        widened(logits),
        kept,
        definition=lambda z: (z.amax(dim=1, keepdim=True) - z - margin).relu().mean(dim=1),
        shortcut=lambda z: _shortcut(z, margin),
    )
    return reduce_loss(
        values,
        labels,
        reduction=reduction,
        weight=weight,
        ignore_index=ignore_index,
        all_count=kept is None,
    )


def _shortcut(logits: Tensor, margin: float) -> tuple[Tensor, Gradient]:
    top = logits.amax(dim=1, keepdim=True)
    beyond = (top - margin - logits).clamp_min_(0)
    values = beyond.mean(dim=1)
    beyond.sign_()

    def gradient(outer: Tensor) -> Tensor:
        # Equal largest logits share the pull of all that lie beyond the margin.
        largest = (logits - top).sign_().add_(1)
        pull = beyond.sum(dim=1, keepdim=True) / largest.sum(dim=1, keepdim=True)
        return largest.mul_(pull).sub_(beyond).mul_(outer.unsqueeze(1) / logits.shape[1])

    return values, gradient


class MbLSLoss(SampleLoss):
    """Module form of :func:`mbls_loss`; a term to add to another loss."""

    def __init__(self, margin: float = 10.0, **shared: Unpack[SampleOptions]) -> None:
        super().__init__(**shared)
        self.margin = margin

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the term of a batch."""
        return mbls_loss(logits, labels, margin=self.margin, **self.shared)

    def extra_repr(self) -> str:
        """Say what makes this loss differ from another of its kind."""
        return f"margin={self.margin}"
