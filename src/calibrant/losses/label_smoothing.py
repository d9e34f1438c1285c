"""Label smoothing (Szegedy et al., "Rethinking the Inception Architecture", CVPR 2016).

Müller et al. ("When Does Label Smoothing Help?", NeurIPS 2019) found that it calibrates.
"""

from dataclasses import dataclass
from typing import Annotated, Unpack

from torch import Tensor

from calibrant.errors import InputError
from calibrant.losses.cross_entropy import smoothed_cross_entropy
from calibrant.losses.loss import SampleLoss
from calibrant.losses.parts.samples import SampleOptions, Samples, takes_sample_options


@takes_sample_options
def label_smoothing_loss(
    logits: Tensor, labels: Tensor, *, smoothing: float = 0.05, **shared: Unpack[SampleOptions]
) -> Tensor:
    r"""Return the cross-entropy against labels that give a little probability to every class.

    .. math:: L(z, y) = -(1 - \epsilon) \log p_y - \frac{\epsilon}{k} \sum_c \log p_c,
        \quad p = \mathrm{softmax}(z)

    Masked classes, whose logits are ``-inf``, have no share, and ``k`` counts the others. The best logits are
    finite. Where the classes are easy to separate, smoothing does too much: the model
    becomes underconfident and needs a temperature below 1 afterwards.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes, or distributions in the shape of the logits.
        smoothing: Share :math:`\epsilon` of the label that is spread over all classes; 0 is cross-entropy.
        weight: One weight per class; it scales each class's share of the label, as in torch.
        ignore_index: Label of the samples to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> import torch
        >>> round(float(label_smoothing_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))), 4)
        0.1769
    """
    samples = Samples(logits, labels, **shared)
    if not 0 <= smoothing <= 1:
        raise InputError(f"smoothing: expected a number from 0 to 1, got {smoothing}")
    return smoothed_cross_entropy(samples, smoothing)


@dataclass(eq=False, repr=False)
class LabelSmoothingLoss(SampleLoss):
    """Module form of :func:`label_smoothing_loss`."""

    smoothing: Annotated[float, "Share of the label that is spread over all classes; 0 is cross-entropy."] = (
        0.05
    )

    function = staticmethod(label_smoothing_loss)
