"""LogitNorm (Wei et al., "Mitigating Neural Network Overconfidence with Logit Normalization", ICML 2022)."""

from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.errors import InputError
from calibrant.losses.loss import SampleLoss, SampleOptions
from calibrant.losses.parts.batch import (
    IGNORED,
    Reduction,
    check_weight,
    is_soft,
    reduce_loss,
    reduce_soft_loss,
    widened,
)
from calibrant.losses.parts.known_gradient import Gradient, with_known_gradient
from calibrant.losses.parts.true_class import true_class_index

# The length of a row of zeros, which has no direction; the authors' value.
_SHORTEST = 1e-7


def logit_norm_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    temperature: float = 0.04,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Cross-entropy of the direction of the logits: making them longer wins nothing.

    .. math:: L(z, y) = -\log \mathrm{softmax}\Big(\frac{z}{\tau \lVert z \rVert}\Big)_y

    The network is used without the normalisation afterwards, so the scale of its logits is not trained: an
    MLP on CLINC150 stayed near uniform confidence (ECE 92 %) until a temperature was fitted (2 %). Fit one
    before reading its confidence. A head whose logits are all exactly zero at the start gets gradients near
    :math:`10^8`: give it small random weights.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes, or distributions in the shape of the logits.
        temperature: The length :math:`1 / \tau` is given to all logits; the paper's value for CIFAR-10.
        weight: One weight per class; for integer labels.
        ignore_index: Label of the samples that count for nothing.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> logits = torch.tensor([[3.0, 4.0], [300.0, 400.0]])
        >>> logit_norm_loss(logits, torch.tensor([1, 1]), reduction="none")
        tensor([0.0067, 0.0067])
    """
    check_weight(weight, logits)
    if not temperature > 0:
        raise InputError(f"temperature: expected a positive number, got {temperature}")
    z = widened(logits)
    if is_soft(logits, labels):
        if weight is not None:
            raise InputError("weight: expected none with soft labels, got one; weigh the samples instead")
        values = F.cross_entropy(_normalised(z, temperature), labels.to(z.dtype), reduction="none")
        return reduce_soft_loss(values, reduction=reduction)
    index, kept = true_class_index(logits, labels, ignore_index=ignore_index)
    values = with_known_gradient(
        z,
        kept,
        definition=lambda z: F.cross_entropy(_normalised(z, temperature), index.squeeze(1), reduction="none"),
        shortcut=lambda z: _shortcut(z, index, temperature),
    )
    return reduce_loss(
        values,
        labels,
        reduction=reduction,
        weight=weight,
        ignore_index=ignore_index,
        all_count=kept is None,
    )


def _normalised(logits: Tensor, temperature: float) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(logits, dim=1, keepdim=True)
    return logits / (temperature * (length + _SHORTEST))


def _shortcut(logits: Tensor, index: Tensor, temperature: float) -> tuple[Tensor, Gradient]:
    length = torch.linalg.vector_norm(logits, dim=1, keepdim=True).clamp_min_(torch.finfo(logits.dtype).tiny)
    longer = length + _SHORTEST
    scale = longer.reciprocal().mul_(1 / temperature)
    top, true = logits.amax(dim=1, keepdim=True), logits.gather(1, index)
    u = logits * scale
    p = F.softmax(u, dim=1)
    # The log of the normaliser follows from the largest probability.
    nll = (top - true) * scale - p.amax(dim=1, keepdim=True).log()
    mean = u.mul_(p).sum(dim=1, keepdim=True)

    def gradient(outer: Tensor) -> Tensor:
        # Cross-entropy's p - [c = y], less what would only change the length.
        along = (mean / scale).sub_(true).div_(length * longer)
        inner = torch.addcmul(p, logits, along, value=-1)
        return inner.scatter_add_(1, index, torch.full_like(true, -1)).mul_(outer.unsqueeze(1) * scale)

    return nll.squeeze(1), gradient


class LogitNormLoss(SampleLoss):
    """Module form of :func:`logit_norm_loss`."""

    def __init__(self, temperature: float = 0.04, **shared: Unpack[SampleOptions]) -> None:
        super().__init__(**shared)
        self.temperature = temperature

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return logit_norm_loss(logits, labels, temperature=self.temperature, **self.shared)

    def extra_repr(self) -> str:
        """Say what makes this loss differ from another of its kind."""
        return f"temperature={self.temperature}"
