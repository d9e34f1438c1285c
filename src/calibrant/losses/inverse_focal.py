"""Inverse focal loss (Wang et al., "Rethinking Calibration of Deep Neural Networks", NeurIPS 2021)."""

import warnings
from dataclasses import dataclass
from typing import Annotated, Unpack

import torch
from torch import Tensor

from calibrant.losses.focal import check_gamma
from calibrant.losses.loss import SampleLoss
from calibrant.losses.parts.samples import SampleOptions, Samples, takes_sample_options

# The slope in p is positive where -gamma p log p > 1 + p, which happens for some p above 1 / W(1 / e).
_STEEPEST_GAMMA = 3.5911


@takes_sample_options
def inverse_focal_loss(
    logits: Tensor, labels: Tensor, *, gamma: float = 1.0, **shared: Unpack[SampleOptions]
) -> Tensor:
    r"""Return the cross-entropy with more weight on confident correct samples, against underconfidence.

    .. math:: L(z, y) = -(1 + p_y)^\gamma \log p_y, \quad p = \mathrm{softmax}(z)

    With a gamma above about 3.59 the loss grows with ``p_y`` around 0.28, so training pushes such samples
    away from their class; a warning says so. "Revisiting Reweighted Risk for Calibration" chose values from
    1 to 3 by validation, most often 1.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes, or distributions in the shape of the logits.
        gamma: How much weight confident samples gain; 0 is cross-entropy.
        weight: One weight per class; for integer labels.
        ignore_index: Label of the samples to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> round(float(inverse_focal_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), gamma=2.0)), 4)
        0.449
    """
    samples = Samples(logits, labels, **shared)
    check_gamma(gamma)
    if gamma > _STEEPEST_GAMMA:
        warnings.warn(
            f"gamma: above {_STEEPEST_GAMMA} inverse focal loss pushes some samples away from their class, "
            f"got {gamma}",
            stacklevel=2,
        )
    return samples.reduce_of_nll(lambda nll: (1 + torch.exp(-nll)).pow(gamma) * nll)


@dataclass(eq=False, repr=False)
class InverseFocalLoss(SampleLoss):
    """Module form of :func:`inverse_focal_loss`."""

    gamma: Annotated[float, "How much weight confident samples gain; 0 is cross-entropy."] = 1.0

    function = staticmethod(inverse_focal_loss)
