"""Dual focal loss (Tao et al., "Dual Focal Loss for Calibration", ICML 2023)."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal, TypeAlias, Unpack, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.inputs import check_choice
from calibrant.losses.focal import check_gamma
from calibrant.losses.loss import SampleLoss
from calibrant.losses.parts.known_gradient import Gradient
from calibrant.losses.parts.samples import SampleOptions, Samples, takes_sample_options

Rival: TypeAlias = Literal["below", "strongest", "dropped"]


@takes_sample_options
def dual_focal_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    gamma: float = 5.0,
    rival: Rival = "below",
    **shared: Unpack[SampleOptions],
) -> Tensor:
    r"""Return the focal loss, faded out by the lead over a rival class, not by confidence alone.

    .. math:: L(z, y) = -(1 - p_y + p_j)^\gamma \log p_y, \quad p_j = \max \{p_c : p_c < p_y\}

    The rival is the class next after the true one, as the paper defines it and its program computes it; there
    is none if the true class is the last. "Revisiting Reweighted Risk for Calibration" describes two other
    forms. With the strongest other class as rival (Eq. 33), mistakes get larger weights, and two classes give
    focal loss times ``2^\gamma``. If that rival is dropped where it is ahead (Eqs. 34 and 35, which it takes
    for the program), mistakes have focal loss. Where ``p_j = 0`` all are focal loss. Except for the strongest
    rival, the loss jumps where another class draws level.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes.
        gamma: How fast samples with a lead fade out; 0 is cross-entropy.
        rival: The class next ``"below"`` the true one, the ``"strongest"`` other one, or the strongest one
            ``"dropped"`` where it is ahead.
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
    check_choice(rival, "rival", get_args(Rival))
    index, kept = samples.true_class()
    z = samples.scores
    if z.shape[1] == 1:
        # A rival that never wins.
        z = F.pad(z, (0, 0) * (z.ndim - 2) + (0, 1), value=torch.finfo(z.dtype).min)
    return samples.reduce_known(
        kept,
        scores=z,
        definition=lambda z: _definition(z, index, gamma, rival),
        shortcut=lambda z: _shortcut(z, index, gamma, rival),
    )


def _definition(logits: Tensor, index: Tensor, gamma: float, rival: Rival) -> Tensor:
    log_p = F.log_softmax(logits, dim=1)
    log_true = log_p.gather(1, index)
    _, place, counts = _rivals(logits.detach(), index, rival)
    p_rival = torch.where(counts, torch.exp(log_p.gather(1, place)), 0)
    lead_lost = _bounded(p_rival - torch.expm1(log_true))
    return (-lead_lost.pow(gamma) * log_true).squeeze(1)


def _shortcut(logits: Tensor, index: Tensor, gamma: float, rival: Rival) -> tuple[Tensor, Gradient]:
    strongest, place, counts = _rivals(logits, index, rival)
    p = F.softmax(logits, dim=1)
    true = p.gather(1, index)
    # The log of the normaliser follows from the largest probability.
    nll = (strongest - logits.gather(1, index)).clamp_min_(0).sub_(p.amax(dim=1, keepdim=True).log_())
    p_rival = torch.where(counts, p.gather(1, place), 0)
    lead_lost = _bounded(p_rival - torch.expm1(-nll))
    weight = lead_lost.pow(gamma)
    values = weight * nll

    def gradient(outer: Tensor) -> Tensor:
        outer = outer.unsqueeze(1)
        steepness = (values / lead_lost).mul_(outer).mul_(gamma)
        to_true = torch.addcmul(weight * outer, steepness, true)
        to_rival = steepness * p_rival
        # to_true (p - [c = y]) + to_rival ([c = j] - p)
        inner = p * (to_true - to_rival)
        return inner.scatter_add_(1, index, -to_true).scatter_add_(1, place, to_rival)

    return values.squeeze(1), gradient


def _rivals(logits: Tensor, index: Tensor, rival: Rival) -> tuple[Tensor, Tensor, Tensor]:
    """Return the largest logit of the other classes, the rival class, and whether there is one."""
    strongest, place = logits.scatter(1, index, -torch.inf).max(dim=1, keepdim=True)
    true = logits.gather(1, index)
    if rival == "strongest":
        return strongest, place, torch.ones_like(true, dtype=torch.bool)
    if rival == "dropped":
        return strongest, place, true >= strongest
    below, place = logits.masked_fill(logits >= true, -torch.inf).max(dim=1, keepdim=True)
    return strongest, place, below > -torch.inf


def _bounded(lead_lost: Tensor) -> Tensor:
    # 0 for a confident sample, where a power below 1 has an infinite slope.
    return lead_lost.clamp_min(torch.finfo(lead_lost.dtype).eps)


@dataclass(eq=False, repr=False)
class DualFocalLoss(SampleLoss):
    """Module form of :func:`dual_focal_loss`."""

    gamma: Annotated[float, "How fast samples with a lead fade out; 0 is cross-entropy."] = 5.0
    _: KW_ONLY
    rival: Annotated[
        Rival, 'The class next "below" the true one, the "strongest" other, or that one "dropped".'
    ] = "below"

    function = staticmethod(dual_focal_loss)

    def extra_repr(self) -> str:
        """Return the options that distinguish this loss from others of its class."""
        return f"gamma={self.gamma}" + ("" if self.rival == "below" else f", rival={self.rival!r}")
