"""Sample-dependent focal loss, FLSD-53 (Mukhoti et al., NeurIPS 2020).

"Calibrating Deep Neural Networks using Focal Loss"; 5 and 3 are the two exponents.
"""

import math
from typing import Unpack

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.losses.focal import focal_value
from calibrant.losses.loss import SampleLoss, SampleOptions
from calibrant.losses.parts.batch import IGNORED, Reduction, check_weight, reduce_loss, true_class_nll


def flsd_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    gammas: tuple[float, float] = (5.0, 3.0),
    threshold: float = 0.2,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Focal loss with a larger exponent for samples whose true class is still improbable.

    .. math:: L(z, y) = -(1 - p_y)^{\gamma(p_y)} \log p_y, \quad
        \gamma(p) = 5 \text{ if } p < 0.2 \text{ else } 3

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes.
        gammas: Exponents below the threshold, and from the threshold on.
        threshold: Probability of the true class that parts the two.
        weight: One weight per class.
        ignore_index: Label of the samples that count for nothing.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> logits, label = torch.tensor([[0.0, 2.0]]), torch.tensor([0])
        >>> round(float(flsd_loss(logits, label)), 4)  # p_y = 0.12, so gamma is 5
        1.1275
    """
    check_weight(weight, logits)
    if min(gammas) < 0:
        raise InputError(f"gammas: expected two numbers of at least 0, got {gammas}")
    if not 0 < threshold < 1:
        raise InputError(f"threshold: expected a probability between 0 and 1, got {threshold}")
    nll = true_class_nll(logits, labels, ignore_index=ignore_index)
    below, above = gammas
    gamma = torch.where(nll.detach() > -math.log(threshold), below, above)
    return reduce_loss(
        focal_value(nll, gamma), labels, reduction=reduction, weight=weight, ignore_index=ignore_index
    )


class FLSDLoss(SampleLoss):
    """Module form of :func:`flsd_loss`."""

    def __init__(
        self,
        gammas: tuple[float, float] = (5.0, 3.0),
        threshold: float = 0.2,
        **shared: Unpack[SampleOptions],
    ) -> None:
        super().__init__(**shared)
        self.gammas = gammas
        self.threshold = threshold

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return flsd_loss(logits, labels, gammas=self.gammas, threshold=self.threshold, **self.shared)

    def extra_repr(self) -> str:
        """Say what makes this loss differ from another of its kind."""
        return f"gammas={self.gammas}, threshold={self.threshold}"
