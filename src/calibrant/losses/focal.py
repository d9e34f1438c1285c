"""Focal loss (Lin et al., "Focal Loss for Dense Object Detection", ICCV 2017), and its form FLSD-53.

Mukhoti et al. ("Calibrating Deep Neural Networks using Focal Loss", NeurIPS 2020) found that it calibrates,
and made its exponent depend on the sample: 5 and 3 are the exponents of FLSD-53.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Unpack

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.losses.loss import SampleLoss
from calibrant.losses.parts.samples import SampleOptions, Samples, takes_sample_options


@takes_sample_options
def focal_loss(
    logits: Tensor, labels: Tensor, *, gamma: float = 3.0, **shared: Unpack[SampleOptions]
) -> Tensor:
    r"""Return the cross-entropy, faded out for samples that the model already classifies correctly.

    .. math:: L(z, y) = -(1 - p_y)^\gamma \log p_y, \quad p = \mathrm{softmax}(z)

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes, or distributions in the shape of the logits.
        gamma: How fast confident samples fade out; 0 is cross-entropy.
        weight: One weight per class; for integer labels.
        ignore_index: Label of the samples to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> round(float(focal_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), gamma=2.0)), 5)
        0.0018
    """
    samples = Samples(logits, labels, **shared)
    check_gamma(gamma)
    return samples.reduce_of_nll(lambda nll: focal_value(nll, gamma))


def check_gamma(gamma: float) -> None:
    """Refuse a negative exponent."""
    if gamma < 0:
        raise InputError(f"gamma: expected a number of at least 0, got {gamma}")


def focal_value(nll: Tensor, gamma: float | Tensor) -> Tensor:
    """Return the focal loss of classes with the cross-entropy ``nll``, that is ``-log p``."""
    return miss(nll).pow(gamma) * nll


def miss(nll: Tensor) -> Tensor:
    """Return ``1 - p``, but never 0, where a power below 1 has an infinite slope."""
    return (-torch.expm1(-nll)).clamp_min(torch.finfo(nll.dtype).eps)


@dataclass(eq=False, repr=False)
class FocalLoss(SampleLoss):
    """Module form of :func:`focal_loss`."""

    gamma: Annotated[float, "How fast confident samples fade out; 0 is cross-entropy."] = 3.0

    function = staticmethod(focal_loss)


@takes_sample_options
def flsd_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    gammas: tuple[float, float] = (5.0, 3.0),
    threshold: float = 0.2,
    **shared: Unpack[SampleOptions],
) -> Tensor:
    r"""Return the focal loss with a larger exponent for samples whose true class is still improbable.

    .. math:: L(z, y) = -(1 - p_y)^{\gamma(p_y)} \log p_y, \quad
        \gamma(p) = 5 \text{ if } p < 0.2 \text{ else } 3

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes.
        gammas: Exponent below the threshold, and exponent from the threshold on.
        threshold: Probability of the true class that separates the two exponents.
        weight: One weight per class.
        ignore_index: Label of the samples to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> logits, label = torch.tensor([[0.0, 2.0]]), torch.tensor([0])
        >>> round(float(flsd_loss(logits, label)), 4)  # p_y = 0.12, so gamma is 5
        1.1275
    """
    samples = Samples(logits, labels, **shared)
    if min(gammas) < 0:
        raise InputError(f"gammas: expected two numbers of at least 0, got {gammas}")
    if not 0 < threshold < 1:
        raise InputError(f"threshold: expected a probability between 0 and 1, got {threshold}")
    nll = samples.nll()
    below, above = gammas
    gamma = torch.where(nll.detach() > -math.log(threshold), below, above)
    return samples.reduce(focal_value(nll, gamma))


@dataclass(eq=False, repr=False)
class FLSDLoss(SampleLoss):
    """Module form of :func:`flsd_loss`."""

    gammas: Annotated[tuple[float, float], "Exponents below the threshold, and from the threshold on."] = (
        5.0,
        3.0,
    )
    threshold: Annotated[float, "Probability of the true class that separates the two exponents."] = 0.2

    function = staticmethod(flsd_loss)
