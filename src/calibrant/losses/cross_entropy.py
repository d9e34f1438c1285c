"""Cross-entropy, the negative log-likelihood of the labels: the baseline of all other losses."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.losses.loss import SampleLoss
from calibrant.losses.parts.batch import FAR_BELOW, IGNORED, check_batch, masked_in_batch, without_masked
from calibrant.losses.parts.samples import SampleOptions, Samples, takes_sample_options


@takes_sample_options
def cross_entropy_loss(logits: Tensor, labels: Tensor, **shared: Unpack[SampleOptions]) -> Tensor:
    r"""Return the cross-entropy of torch, but 0 instead of NaN where torch has no sample to average over.

    .. math:: L(z, y) = -\log p_y, \quad p = \mathrm{softmax}(z)

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes, or distributions in the shape of the logits.
        weight: One weight per class; with soft labels it scales each class's share of the label.
        ignore_index: Label of the samples to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> round(float(cross_entropy_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))), 4)
        0.1269
        >>> float(cross_entropy_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([-100])))
        0.0
    """
    return smoothed_cross_entropy(Samples(logits, labels, **shared), 0.0)


def smoothed_cross_entropy(samples: Samples, smoothing: float) -> Tensor:
    """Return the cross-entropy of torch against labels that are mixed with the uniform distribution.

    Masked classes have no share of that distribution.
    """
    z, labels, ignored = samples.scores, samples.labels, samples.ignore_index
    scale = None if samples.weight is None else samples.weight.to(z.dtype)
    if samples.soft:
        return samples.reduce_soft(_against(z, labels.to(z.dtype), scale, smoothing))
    check_batch(samples.logits, labels)
    try:
        values = _against(z, labels, scale, smoothing, ignore_index=ignored)
    except IndexError:
        samples.nll()  # raises an error that names the label
        raise
    # The weights are already in the values.
    if scale is None or samples.reduction != "mean":
        return replace(samples, weight=None).reduce(values)
    kept = labels != ignored
    total = (scale[torch.where(kept, labels, 0)] * kept).sum()
    return values.sum() / torch.where(total > 0, total, 1)


def _against(
    z: Tensor, labels: Tensor, scale: Tensor | None, smoothing: float, *, ignore_index: int = IGNORED
) -> Tensor:
    """Return the cross-entropy of each sample against smoothed labels."""
    masked = masked_in_batch(z) if smoothing or labels.is_floating_point() else None
    cross_entropy = partial(F.cross_entropy, weight=scale, reduction="none", ignore_index=ignore_index)
    if masked is None:
        return cross_entropy(z, labels, label_smoothing=smoothing)
    soft = labels.is_floating_point()
    ignored = torch.zeros_like(masked) if soft else (labels == ignore_index).unsqueeze(1)
    finite = z.clamp_min(-FAR_BELOW).masked_fill(ignored, 0)
    spread = without_masked(torch.ones_like(z), masked).masked_fill(ignored, 0)
    hard = cross_entropy(finite if soft else z, labels)
    return (1 - smoothing) * hard + smoothing * cross_entropy(finite, spread)


@dataclass(eq=False, repr=False)
class CrossEntropyLoss(SampleLoss):
    """Module form of :func:`cross_entropy_loss`."""

    function = staticmethod(cross_entropy_loss)
