"""Label smoothing (Szegedy et al., "Rethinking the Inception Architecture", CVPR 2016).

Müller et al. ("When Does Label Smoothing Help?", NeurIPS 2019) found that it calibrates.
"""

from typing import Unpack

from torch import Tensor

from calibrant.errors import InputError
from calibrant.losses.cross_entropy import smoothed_cross_entropy
from calibrant.losses.loss import SampleLoss, SampleOptions
from calibrant.losses.parts.batch import IGNORED, Reduction, check_weight


def label_smoothing_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    smoothing: float = 0.05,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Cross-entropy against labels that leave a little probability to every class.

    .. math:: L(z, y) = -(1 - \epsilon) \log p_y - \frac{\epsilon}{k} \sum_c \log p_c,
        \quad p = \mathrm{softmax}(z)

    No finite score reaches certainty any more, which overshoots where the classes are easily told apart:
    the model becomes underconfident and wants a temperature below 1 afterwards.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes, or distributions in the shape of the logits.
        smoothing: Share :math:`\epsilon` of the label that is spread over all classes; 0 is cross-entropy.
        weight: One weight per class; it scales each class's share of the label, as in torch.
        ignore_index: Label of the samples that count for nothing.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> import torch
        >>> round(float(label_smoothing_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))), 4)
        0.1769
    """
    check_weight(weight, logits)
    if not 0 <= smoothing <= 1:
        raise InputError(f"smoothing: expected a number from 0 to 1, got {smoothing}")
    return smoothed_cross_entropy(
        logits, labels, smoothing=smoothing, weight=weight, ignore_index=ignore_index, reduction=reduction
    )


class LabelSmoothingLoss(SampleLoss):
    """Module form of :func:`label_smoothing_loss`."""

    def __init__(self, smoothing: float = 0.05, **shared: Unpack[SampleOptions]) -> None:
        super().__init__(**shared)
        self.smoothing = smoothing

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return label_smoothing_loss(logits, labels, smoothing=self.smoothing, **self.shared)

    def extra_repr(self) -> str:
        """Say what makes this loss differ from another of its kind."""
        return f"smoothing={self.smoothing}"
