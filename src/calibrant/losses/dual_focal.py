"""Dual focal loss (Tao et al., "Dual Focal Loss for Calibration", ICML 2023)."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.losses.focal import check_gamma
from calibrant.losses.loss import SampleLoss
from calibrant.losses.parts.known_gradient import Gradient
from calibrant.losses.parts.samples import SampleOptions, Samples, takes_sample_options


@takes_sample_options
def dual_focal_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    gamma: float = 5.0,
    released: bool = False,
    **shared: Unpack[SampleOptions],
) -> Tensor:
    r"""Return the focal loss, faded out by the lead over the strongest other class, not by confidence alone.

    .. math:: L(z, y) = -(1 - p_y + p_j)^\gamma \log p_y, \quad p_j = \max_{c \ne y} p_c

    This is what the paper intends. Its released code leaves ``p_j`` out where the rival is ahead
    (``p_y < p_j``), so the loss jumps down exactly where a sample becomes a mistake; ``released=True``
    computes that form as "Revisiting Reweighted Risk for Calibration" states it (Eq. 34 and 35). Where
    ``p_j = 0`` both are focal loss; with two classes the intended form is focal loss times ``2^\gamma``.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes.
        gamma: How fast samples with a lead fade out; 0 is cross-entropy.
        released: Whether to leave out the rival of a misclassified sample.
        weight: One weight per class.
        ignore_index: Label of the samples to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> logits, label = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0])
        >>> round(float(dual_focal_loss(logits, label, gamma=2.0)), 4)
        0.1369
    """
    samples = Samples(logits, labels, **shared)
    check_gamma(gamma)
    index, kept = samples.true_class()
    z = samples.scores
    if z.shape[1] == 1:
        # A rival that never wins.
        z = F.pad(z, (0, 0) * (z.ndim - 2) + (0, 1), value=torch.finfo(z.dtype).min)
    return samples.reduce_known(
        kept,
        scores=z,
        definition=lambda z: _definition(z, index, gamma, released=released),
        shortcut=lambda z: _shortcut(z, index, gamma, released=released),
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
    """Return the largest logit of the other classes, and its class."""
    return logits.scatter(1, index, -torch.inf).max(dim=1, keepdim=True)


def _bounded(lead_lost: Tensor) -> Tensor:
    # 0 for a confident sample, where a power below 1 has an infinite slope.
    return lead_lost.clamp_min(torch.finfo(lead_lost.dtype).eps)


@dataclass(eq=False, repr=False)
class DualFocalLoss(SampleLoss):
    """Module form of :func:`dual_focal_loss`."""

    gamma: Annotated[float, "How fast samples with a lead fade out; 0 is cross-entropy."] = 5.0
    _: KW_ONLY
    released: Annotated[bool, "Whether to leave out the rival of a misclassified sample."] = False

    function = staticmethod(dual_focal_loss)

    def extra_repr(self) -> str:
        """Return the options that distinguish this loss from others of its class."""
        return f"gamma={self.gamma}" + (", released=True" if self.released else "")
