"""BSCE-GRA (Lin et al., "Uncertainty Weighted Gradients for Model Calibration", CVPR 2025)."""

from dataclasses import dataclass
from typing import Annotated, Unpack

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.losses.focal import check_gamma
from calibrant.losses.loss import SampleLoss
from calibrant.losses.parts.samples import SampleOptions, Samples, takes_sample_options


@takes_sample_options
def bsce_gra_loss(
    logits: Tensor, labels: Tensor, *, gamma: float = 4.0, norm: float = 2.0, **shared: Unpack[SampleOptions]
) -> Tensor:
    r"""Return the cross-entropy, whose gradient is weighted by the distance between prediction and label.

    .. math:: L(z, y) = -\mathrm{stopgrad}\big(\lVert e_y - p \rVert_q^\gamma\big) \log p_y,
        \quad p = \mathrm{softmax}(z)

    with the unit vector :math:`e_y` of the true class. The weight is a constant to the gradient, so that
    uncertain samples get larger steps than certain ones; in focal loss, which differentiates its weight, they
    need not. Unlike the weight of focal loss it reads the probabilities of all classes, unless ``norm`` is 1:
    the weight is then :math:`(2 (1 - p_y))^\gamma`. The defaults are those of the authors' script.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes.
        gamma: How fast certain samples fade out; 0 is cross-entropy.
        norm: The order of the norm, at least 1; with 2 it is the root of the Brier score.
        weight: One weight per class.
        ignore_index: Label of the samples to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> round(float(bsce_gra_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), gamma=2.0)), 5)
        0.00361
    """
    samples = Samples(logits, labels, **shared)
    check_gamma(gamma)
    if not norm >= 1:
        raise InputError(f"norm: expected a number of at least 1, got {norm}")
    nll = samples.nll()
    with torch.no_grad():
        index, used = samples.true_class()
        missing = -torch.expm1(-nll).unsqueeze(1)
        distance = torch.softmax(samples.scores, dim=1).scatter_(1, index, missing)
        uncertainty = torch.linalg.vector_norm(distance, ord=norm, dim=1).pow(gamma)
        if used is not None:
            uncertainty = torch.where(used, uncertainty, 0)
    return samples.reduce(uncertainty * nll)


@dataclass(eq=False, repr=False)
class BSCEGRALoss(SampleLoss):
    """Module form of :func:`bsce_gra_loss`."""

    gamma: Annotated[float, "How fast certain samples fade out; 0 is cross-entropy."] = 4.0
    norm: Annotated[float, "The order of the norm; with 2 it is the root of the Brier score."] = 2.0

    function = staticmethod(bsce_gra_loss)
