"""SECA ("Self-guided model calibration"): the mean prediction for a class is added to its label."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias, Unpack

import torch
from torch import Tensor

from calibrant.inputs import check_count
from calibrant.losses.loss import SampleLoss
from calibrant.losses.parts.batch import FAR_BELOW, Rows, masked_in_batch, without_masked
from calibrant.losses.parts.global_batch import global_rows, global_sum, world_size
from calibrant.losses.parts.known_gradient import ValuesAndGradient, with_known_gradient
from calibrant.losses.parts.samples import SampleOptions, Samples, takes_sample_options


@takes_sample_options
def seca_loss(logits: Tensor, labels: Tensor, **shared: Unpack[SampleOptions]) -> Tensor:
    r"""Return the cross-entropy against the label plus the mean prediction for samples of that class.

    .. math:: L(z_i, y_i) = -\sum_c \big([c = y_i] + \mu_{y_i c}\big) \log p_{ic}, \quad
        \mu_j = \frac{1}{|S_j|} \sum_{i \in S_j} p_i

    ``S_j`` are the samples of class ``j`` in the batch of all processes. The means have no gradient, so the
    gradient is ``2p - (q + \mu)``, as the paper states (Eq. 12). The target sums to two, so at equal fit
    the value is about twice the cross-entropy. For the only sample of a class the mean is its own
    prediction, and its gradient is that of cross-entropy. There is nothing to tune. Where a sample has masked
    classes, whose logits are ``-inf``, the others share their part of the mean.

    With soft labels, as those of mixup, a sample contributes to the mean of each class by its share of the
    label, and the loss is the mixture of the losses of the classes by these shares.

    Args:
        logits: Scores of shape ``(n, k)`` or ``(n, k, ...)``.
        labels: Integer classes, or distributions in the shape of the logits.
        weight: One weight per class; for integer labels.
        ignore_index: Label of the samples to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> round(float(seca_loss(logits, torch.tensor([0, 0, 1]))), 4)
        0.786
    """
    return _loss(Samples(logits, labels, **shared), class_means)


# Gets probabilities, labels and the mask of the samples that count; gives a mean for each sample.
_Means: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def _loss(samples: Samples, means: _Means) -> Tensor:
    z, y, kept = _soft_rows(samples) if samples.soft else samples.rows()
    with torch.no_grad():
        p = torch.softmax(z, dim=1)
        target = without_masked(means(p, y, kept), masked_in_batch(z))
        if samples.soft:
            target += y
        else:
            target.scatter_add_(1, y[:, None], torch.ones_like(target[:, :1]))
        mass = target.sum(dim=1) if samples.soft else 2

    def definition(z: Tensor) -> Tensor:
        return -(target * torch.log_softmax(z, dim=1).clamp_min(-FAR_BELOW)).sum(dim=1)

    def shortcut(z: Tensor) -> ValuesAndGradient:
        # log p_c = (z_c - z_top) + log p_top, and the target sums to two.
        below_top = (z - z.amax(dim=1, keepdim=True)).clamp_min_(-FAR_BELOW)
        values = -below_top.mul_(target).sum(dim=1) - mass * p.amax(dim=1).log()
        slope = p.mul_(mass if isinstance(mass, int) else mass[:, None]).sub_(target)  # Eq. 12
        return values, lambda outer: outer[:, None] * slope

    values = with_known_gradient(z, None, definition=definition, shortcut=shortcut)
    if not samples.soft:
        return samples.reduce_rows(values)
    samples.refuse_weight()
    return samples.reduce_soft(values.view(samples.labels.shape[:1] + samples.labels.shape[2:]))


def _soft_rows(samples: Samples) -> Rows:
    z, y = (
        each.movedim(1, -1).flatten(0, -2) for each in (samples.scores, samples.labels.to(samples.scores))
    )
    return Rows(z, y)


@torch.no_grad()
def class_means(probs: Tensor, labels: Tensor, kept: Tensor | None = None) -> Tensor:
    """Return for each sample the mean prediction for the samples of its class in the global batch.

    With soft labels it is the mixture of the class means, to which samples contribute by their shares. With
    integer labels only the classes that occur are stored, so memory does not grow with the square of their
    number.

    Args:
        probs: Probabilities of shape ``(n, k)``.
        labels: Integer classes of shape ``(n,)``, or distributions of shape ``(n, k)``.
        kept: Which samples count; all if None.
    """
    if labels.is_floating_point():
        return _mixture(*class_sums(probs, labels), labels)
    place, size = _places(labels, probs.shape[1])
    sums, counts = (global_sum(each) for each in _sums(probs, place, size, kept))
    return sums.div_(counts.clamp_min_(1)[:, None]).index_select(0, place)


@torch.no_grad()
def class_sums(probs: Tensor, labels: Tensor, kept: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the sum of the predictions for each class, shape ``(k, k)``, and its number of samples."""
    if labels.is_floating_point():
        # A matrix product, which autocast would compute in half precision.
        with torch.autocast(probs.device.type, enabled=False):
            return global_sum(labels.T @ probs), global_sum(labels.sum(dim=0))
    sums, counts = _sums(probs, labels, probs.shape[1], kept)
    return global_sum(sums), global_sum(counts)


def _sums(probs: Tensor, place: Tensor, size: int, kept: Tensor | None) -> tuple[Tensor, Tensor]:
    shares = probs.new_ones(len(probs)) if kept is None else kept.to(probs.dtype)
    counted = probs if kept is None else probs * shares[:, None]
    sums = probs.new_zeros(size, probs.shape[1]).index_add_(0, place, counted)
    return sums, probs.new_zeros(size).index_add_(0, place, shares)


def _places(labels: Tensor, k: int) -> tuple[Tensor, int]:
    """Return a row for the class of each sample, in a table of few rows, and the number of rows."""
    if world_size() > 1:
        classes = torch.unique(global_rows(labels))
        return torch.searchsorted(classes, labels.contiguous()), len(classes)
    if k <= len(labels):
        return labels, k
    ranked, order = labels.sort()
    first = torch.ones_like(ranked)
    first[1:] = ranked[1:] != ranked[:-1]
    return torch.empty_like(order).scatter_(0, order, first.cumsum(dim=0) - 1), len(labels)


def _mixture(sums: Tensor, counts: Tensor, labels: Tensor) -> Tensor:
    """Return the class means of integer labels, or their mixtures by soft labels."""
    means = sums / counts.clamp_min(torch.finfo(counts.dtype).tiny)[:, None]
    if not labels.is_floating_point():
        return means.index_select(0, labels)
    with torch.autocast(means.device.type, enabled=False):
        return labels @ means


@dataclass(eq=False, repr=False)
class SECALoss(SampleLoss):
    """Module form of :func:`seca_loss`.

    With gradient accumulation a micro-batch has few samples of each class, and their means differ from those
    of the whole batch. ``accumulate`` is the number of micro-batches of an optimiser step: the means are then
    those of all micro-batches of the step so far. ``update`` begins a new step, which matters if the last one
    of an epoch was shorter. Batches without a gradient are not counted.
    """

    accumulate: Annotated[int, "Micro-batches of an optimiser step, whose class means are shared."] = 1
    sums: Tensor = field(init=False)
    counts: Tensor = field(init=False)
    step: Tensor = field(init=False)

    function = staticmethod(seca_loss)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.accumulate = check_count(self.accumulate, "accumulate")
        for name, shape in (("sums", (0, 0)), ("counts", (0,)), ("step", ())):
            self.register_buffer(name, torch.zeros(shape), persistent=False)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        adds = self.accumulate > 1 and self.training and logits.requires_grad
        return _loss(Samples(logits, labels, **self.shared), self._means_so_far if adds else class_means)

    def _means_so_far(self, probs: Tensor, labels: Tensor, kept: Tensor | None) -> Tensor:
        sums, counts = class_sums(probs, labels, kept)
        if self.counts.shape != counts.shape:
            self.sums, self.counts = torch.zeros_like(sums), torch.zeros_like(counts)
        continued = (self.step % self.accumulate != 0).to(self.sums)
        self.sums.mul_(continued).add_(sums)
        self.counts.mul_(continued).add_(counts)
        self.step.add_(1)
        return _mixture(self.sums, self.counts, labels).to(probs.dtype)

    def update(self, logits: Tensor | None = None, labels: Tensor | None = None) -> None:  # noqa: ARG002  # the hook of all losses
        """Begin a new optimiser step."""
        self.step.zero_()
