"""Dual focal loss (Tao et al., "Dual Focal Loss for Calibration", ICML 2023)."""

from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.errors import InputError
from calibrant.losses.loss import SampleLoss, SampleOptions
from calibrant.losses.parts.batch import IGNORED, Reduction, check_weight, reduce_loss, widened
from calibrant.losses.parts.known_gradient import Gradient, with_known_gradient
from calibrant.losses.parts.true_class import true_class_index


def dual_focal_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    gamma: float = 5.0,
    released: bool = False,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Focal loss that fades out with the lead over the strongest rival class, not with certainty alone.

    .. math:: L(z, y) = -(1 - p_y + p_j)^\gamma \log p_y, \quad p_j = \max_{c \ne y} p_c

    This is what the paper intends. Its released code leaves :math:`p_j` out where the rival is ahead
    (:math:`p_y < p_j`), so the loss jumps down just where a sample becomes a mistake; ``released=True``
    computes that form as "Revisiting Reweighted Risk for Calibration" states it (Eq. 34 and 35). Where
    :math:`p_j = 0` both are focal loss; with two classes the intended form is focal loss times
    :math:`2^\gamma`.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes.
        gamma: How fast samples with a lead fade; 0 is cross-entropy.
        released: Whether to forget the rival of a misclassified sample.
        weight: One weight per class.
        ignore_index: Label of the samples that count for nothing.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> logits, label = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0])
        >>> round(float(dual_focal_loss(logits, label, gamma=2.0)), 4)
        0.1369
    """
    check_weight(weight, logits)
    if gamma < 0:
        raise InputError(f"gamma: expected a number of at least 0, got {gamma}")
    index, kept = true_class_index(logits, labels, ignore_index=ignore_index)
    z = widened(logits)
    if z.shape[1] == 1:
        # A rival that never wins.
        z = F.pad(z, (0, 0) * (z.ndim - 2) + (0, 1), value=torch.finfo(z.dtype).min)
    values = with_known_gradient(
        z,
        kept,
        definition=lambda z: _definition(z, index, gamma, released=released),
        shortcut=lambda z: _shortcut(z, index, gamma, released=released),
    )
    return reduce_loss(
        values,
        labels,
        reduction=reduction,
        weight=weight,
        ignore_index=ignore_index,
        all_count=kept is None,
    )


def _definition(logits: Tensor, index: Tensor, gamma: float, *, released: bool) -> Tensor:
    log_p = F.log_softmax(logits, dim=1)
    log_true = log_p.gather(1, index)
    log_rival = log_p.gather(1, _rival_logit(logits.detach(), index)[1])
    rival = torch.exp(log_rival)
    if released:
        rival = torch.where(log_true >= log_rival, rival, 0)
    lead_lost = _bounded(rival - torch.expm1(log_true))
    return (-lead_lost.pow(gamma) * log_true).squeeze(1)


def _shortcut(logits: Tensor, index: Tensor, gamma: float, *, released: bool) -> tuple[Tensor, Gradient]:
    rival_logit, rival_index = _rival_logit(logits, index)
    p = F.softmax(logits, dim=1)
    true, rival = p.gather(1, index), p.gather(1, rival_index)
    # The log of the normaliser follows from the largest probability.
    nll = (rival_logit - logits.gather(1, index)).clamp_min_(0).sub_(torch.maximum(true, rival).log_())
    if released:
        rival = torch.where(true >= rival, rival, 0)
    lead_lost = _bounded(rival - torch.expm1(-nll))
    weight = lead_lost.pow(gamma)
    values = weight * nll

    def gradient(outer: Tensor) -> Tensor:
        outer = outer.unsqueeze(1)
        steepness = (values / lead_lost).mul_(outer).mul_(gamma)
        to_true = torch.addcmul(weight * outer, steepness, true)
        to_rival = steepness * rival
        # to_true (p - [c = y]) + to_rival ([c = j] - p)
        inner = p * (to_true - to_rival)
        return inner.scatter_add_(1, index, -to_true).scatter_add_(1, rival_index, to_rival)

    return values.squeeze(1), gradient


def _rival_logit(logits: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest logit beside the true class's, and its class."""
    return logits.scatter(1, index, -torch.inf).max(dim=1, keepdim=True)


def _bounded(lead_lost: Tensor) -> Tensor:
    # 0 for a sure sample, where a power below 1 has no finite slope.
    return lead_lost.clamp_min(torch.finfo(lead_lost.dtype).eps)


class DualFocalLoss(SampleLoss):
    """Module form of :func:`dual_focal_loss`."""

    def __init__(
        self, gamma: float = 5.0, *, released: bool = False, **shared: Unpack[SampleOptions]
    ) -> None:
        super().__init__(**shared)
        self.gamma = gamma
        self.released = released

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return dual_focal_loss(logits, labels, gamma=self.gamma, released=self.released, **self.shared)

    def extra_repr(self) -> str:
        """Say what makes this loss differ from another of its kind."""
        return f"gamma={self.gamma}" + (", released=True" if self.released else "")
