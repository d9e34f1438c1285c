"""Cross-entropy, the negative log-likelihood of the labels: the baseline of all other losses."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.losses.loss import SampleLoss
from calibrant.losses.parts.batch import check_batch
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
    """Return the cross-entropy of torch against labels that are mixed with the uniform distribution."""
    z, labels, ignored = samples.scores, samples.labels, samples.ignore_index
    scale = None if samples.weight is None else samples.weight.to(z.dtype)
    cross_entropy = partial(F.cross_entropy, z, weight=scale, reduction="none", label_smoothing=smoothing)
    if samples.soft:
        return samples.reduce_soft(cross_entropy(labels.to(z.dtype)))
    check_batch(samples.logits, labels)
    try:
        values = cross_entropy(labels, ignore_index=ignored)
    except IndexError:
        samples.nll()  # raises an error that names the label
        raise
    # The weights are already in the values.
    if scale is None or samples.reduction != "mean":
        return replace(samples, weight=None).reduce(values)
    kept = labels != ignored
    total = (scale[torch.where(kept, labels, 0)] * kept).sum()
    return values.sum() / torch.where(total > 0, total, 1)


@dataclass(eq=False, repr=False)
class CrossEntropyLoss(SampleLoss):
    """Module form of :func:`cross_entropy_loss`."""

    function = staticmethod(cross_entropy_loss)
