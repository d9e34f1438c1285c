"""LogitNorm (Wei et al., "Mitigating Neural Network Overconfidence with Logit Normalization", ICML 2022)."""

from dataclasses import dataclass
from typing import Annotated, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.errors import InputError
from calibrant.losses.loss import SampleLoss
from calibrant.losses.parts.batch import FAR_BELOW, has_one_logit, masked_in_batch
from calibrant.losses.parts.known_gradient import Gradient
from calibrant.losses.parts.samples import SampleOptions, Samples, takes_sample_options

# Added to the length, because a row of zeros has no direction; the authors' value.
_SHORTEST = 1e-7


@takes_sample_options
def logit_norm_loss(
    logits: Tensor, labels: Tensor, *, temperature: float = 0.04, **shared: Unpack[SampleOptions]
) -> Tensor:
    r"""Return the cross-entropy of normalised logits: longer logits do not lower it.

    .. math:: L(z, y) = -\log \mathrm{softmax}\Big(\frac{z}{\tau \lVert z \rVert}\Big)_y

    Masked classes, whose logits are ``-inf``, do not count in the length.

    After training, the network is used without the normalisation, so the scale of its logits is not trained:
    an MLP on CLINC150 stayed near uniform confidence (ECE 92 %) until a temperature was fitted (2 %). Fit one
    before you read its confidence. A head whose logits are all exactly zero at the start gets gradients near
    ``10^8``: give it small random weights.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes, or distributions in the shape of the logits.
        temperature: All logits get the length :math:`1 / \tau`; the default is the paper's for CIFAR-10.
        weight: One weight per class; for integer labels.
        ignore_index: Label of the samples to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> logits = torch.tensor([[3.0, 4.0], [300.0, 400.0]])
        >>> logit_norm_loss(logits, torch.tensor([1, 1]), reduction="none")
        tensor([0.0067, 0.0067])
    """
    if has_one_logit(logits):
        raise InputError(
            f"logits: expected one score for each of two or more classes, got shape {tuple(logits.shape)}; "
            "of a single logit the normalisation leaves only the sign, so give the model two outputs"
        )
    samples = Samples(logits, labels, **shared)
    if not temperature > 0:
        raise InputError(f"temperature: expected a positive number, got {temperature}")
    if samples.soft:
        samples.refuse_weight()
        z = _normalised(samples.scores, temperature)
        return samples.reduce_soft(F.cross_entropy(z, labels.to(z.dtype), reduction="none"))
    index, kept = samples.true_class()
    return samples.reduce_known(
        kept,
        definition=lambda z: F.cross_entropy(_normalised(z, temperature), index.squeeze(1), reduction="none"),
        shortcut=lambda z: _shortcut(z, index, temperature),
    )


def _normalised(logits: Tensor, temperature: float) -> Tensor:
    masked = masked_in_batch(logits)
    existing = logits if masked is None else logits.masked_fill(masked, 0)
    length: Tensor = torch.linalg.vector_norm(existing, dim=1, keepdim=True)
    normalised = existing / (temperature * (length + _SHORTEST))
    return normalised if masked is None else normalised.masked_fill(masked, -FAR_BELOW)


def _shortcut(logits: Tensor, index: Tensor, temperature: float) -> tuple[Tensor, Gradient]:
    masked = masked_in_batch(logits)
    if masked is not None:
        logits = logits.masked_fill(masked, 0)
    length = torch.linalg.vector_norm(logits, dim=1, keepdim=True).clamp_min_(torch.finfo(logits.dtype).tiny)
    longer = length + _SHORTEST
    scale = longer.reciprocal().mul_(1 / temperature)
    true = logits.gather(1, index)
    u = logits * scale
    if masked is not None:
        u.masked_fill_(masked, -FAR_BELOW)
    top = u.amax(dim=1, keepdim=True)
    p = F.softmax(u, dim=1)
    # The log of the normaliser follows from the largest probability.
    nll = top - true * scale - p.amax(dim=1, keepdim=True).log()
    mean = u.mul_(p).sum(dim=1, keepdim=True)

    def gradient(outer: Tensor) -> Tensor:
        # Cross-entropy's p - [c = y], less what would only change the length.
        along = (mean / scale).sub_(true).div_(length * longer)
        inner = torch.addcmul(p, logits, along, value=-1)
        return inner.scatter_add_(1, index, torch.full_like(true, -1)).mul_(outer.unsqueeze(1) * scale)

    return nll.squeeze(1), gradient


@dataclass(eq=False, repr=False)
class LogitNormLoss(SampleLoss):
    """Module form of :func:`logit_norm_loss`."""

    temperature: Annotated[float, "All logits get the length 1 / temperature; the paper's for CIFAR-10."] = (
        0.04
    )

    function = staticmethod(logit_norm_loss)
