"""Margin-based label smoothing, MbLS (Liu et al., "The Devil is in the Margin", CVPR 2022)."""

from dataclasses import dataclass
from typing import Annotated, Unpack

from torch import Tensor

from calibrant.errors import InputError
from calibrant.losses.loss import SampleLoss
from calibrant.losses.parts.batch import masked_in_batch
from calibrant.losses.parts.known_gradient import Gradient
from calibrant.losses.parts.samples import SampleOptions, Samples, takes_sample_options


@takes_sample_options
def mbls_loss(
    logits: Tensor, labels: Tensor, *, margin: float = 10.0, **shared: Unpack[SampleOptions]
) -> Tensor:
    r"""Return how far logits lie below the largest one, beyond a margin.

    .. math:: L(z) = \frac{1}{k} \sum_c \max(0, \max_j z_j - z_c - m)

    Masked classes, whose logits are ``-inf``, are left out of the mean.

    A term to add: the paper trains ``CrossEntropyLoss() + 0.1 * MbLSLoss(margin=10)``. Its formula sums over
    the classes, but its code, where the 0.1 comes from, averages over them; this averages. A margin of 0
    pulls all logits together, as label smoothing does; a margin that no logit reaches changes nothing.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes; they only decide which samples are ignored and how the others are weighted.
        margin: Distance from the largest logit that costs nothing.
        weight: One weight per class.
        ignore_index: Label of the samples to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> import torch
        >>> float(mbls_loss(torch.tensor([[14.0, 5.0, 0.0, 0.0]]), torch.tensor([0])))
        2.0
    """
    samples = Samples(logits, labels, **shared)
    if not margin >= 0:
        raise InputError(f"margin: expected a number of at least 0, got {margin}")
    _, kept = samples.true_class()
    return samples.reduce_known(
        kept,
        definition=lambda z: _definition(z, margin),
        shortcut=lambda z: _shortcut(z, margin),
    )


def _definition(logits: Tensor, margin: float) -> Tensor:
    top, masked = logits.amax(dim=1, keepdim=True), masked_in_batch(logits)
    beyond = (top - logits - margin).relu()
    if masked is None:
        return beyond.mean(dim=1)
    return beyond.masked_fill(masked, 0).sum(dim=1) / (~masked).sum(dim=1)


def _shortcut(logits: Tensor, margin: float) -> tuple[Tensor, Gradient]:
    top, masked = logits.amax(dim=1, keepdim=True), masked_in_batch(logits)
    beyond = (top - margin - logits).clamp_min_(0)
    share: Tensor | float = 1 / logits.shape[1]
    if masked is not None:
        beyond.masked_fill_(masked, 0)
        share = 1 / (~masked).sum(dim=1, keepdim=True).to(logits.dtype)
    values = (beyond.sum(dim=1, keepdim=True) * share).squeeze(1)
    beyond.sign_()

    def gradient(outer: Tensor) -> Tensor:
        # Equal largest logits share the pull of all that lie beyond the margin.
        largest = (logits - top).sign_().add_(1)
        pull = beyond.sum(dim=1, keepdim=True) / largest.sum(dim=1, keepdim=True)
        return largest.mul_(pull).sub_(beyond).mul_(outer.unsqueeze(1) * share)

    return values, gradient


@dataclass(eq=False, repr=False)
class MbLSLoss(SampleLoss):
    """Module form of :func:`mbls_loss`; a term to add to another loss."""

    margin: Annotated[float, "Distance from the largest logit that costs nothing."] = 10.0

    function = staticmethod(mbls_loss)
