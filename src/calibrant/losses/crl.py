"""Correctness ranking loss, CRL (Moon et al., ICML 2020).

"Confidence-Aware Learning for Deep Neural Networks".
"""

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import check_count
from calibrant.losses.loss import EpochRecords, FunctionLoss
from calibrant.losses.parts.batch import IGNORED, is_readable, masks_ignored, number_of, two_classes
from calibrant.losses.parts.confidence import top_label_confidence
from calibrant.losses.parts.global_batch import global_rows


def crl_loss(logits: Tensor, labels: Tensor, *, correctness: Tensor, ignore_index: int = IGNORED) -> Tensor:
    r"""Return how far confidences deviate from the order in which samples were learned.

    .. math:: \frac{1}{n} \sum_i \max\big(0, |c_i - c_j| - \mathrm{sign}(c_i - c_j) (\kappa_i - \kappa_j)\big)

    ``j`` follows ``i`` in the batch of all processes, and the first sample follows the last; ``\kappa`` is
    the largest probability and ``c`` how often the sample was classified correctly so far. A term to add:
    the paper trains ``CrossEntropyLoss() + CRLLoss(n_samples)``.

    Args:
        logits: Scores of shape ``(n, k)``.
        labels: Integer classes.
        correctness: Share of epochs in which each sample was correct, shape ``(n,)``.
        ignore_index: Label of the samples to ignore.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])  # equal confidence in both
        >>> float(crl_loss(logits, torch.tensor([0, 1]), correctness=torch.tensor([1.0, 0.5])))
        0.5
    """
    logits, labels = two_classes(logits, labels, ignore_index=ignore_index)
    _check_samples(labels, correctness, "correctness")
    confidence, _, kept = top_label_confidence(logits, labels, ignore_index=ignore_index)
    shares = global_rows(_kept(correctness, labels, ignore_index).to(confidence.dtype))
    return _disorder(confidence, shares, kept).to(torch.promote_types(logits.dtype, torch.float32))


def _kept(values: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    """Return the values of samples that are not ignored; while torch compiles, 0 for those that are."""
    kept = labels != ignore_index
    return torch.where(kept, values, 0) if masks_ignored() else values[kept]


def _disorder(confidence: Tensor, correctness: Tensor, kept: Tensor | None) -> Tensor:
    if kept is None:
        following = torch.arange(len(confidence), device=confidence.device).roll(-1)
    else:  # of those that count, in their order; the first follows the last
        order = torch.argsort(~kept, stable=True)
        place = torch.arange(len(confidence), device=confidence.device)
        after = torch.where(place + 1 < kept.sum(), place + 1, 0)
        following = torch.empty_like(order).scatter_(0, order, order[after])
    wanted = correctness - correctness[following]
    given = confidence - confidence[following]
    disorder = (wanted.abs() - wanted.sign() * given).relu()
    return (disorder if kept is None else disorder * kept).sum() / number_of(kept, len(confidence))


def _check_samples(labels: Tensor, values: Tensor, name: str) -> None:
    if labels.ndim != 1:
        raise InputError(
            f"labels: expected one class per sample, shape (n,), got shape {tuple(labels.shape)}; "
            "correctness ranking has no history for single positions"
        )
    if values.shape != labels.shape:
        raise InputError(
            f"{name}: expected one entry per sample, shape {tuple(labels.shape)}, got {tuple(values.shape)}"
        )


@dataclass(eq=False, repr=False)
class CRLLoss(FunctionLoss):
    """Correctness ranking with the history of the training set; a term to add to another loss.

    ``forward`` needs the ``indices`` of the samples in the training set. During training (in training mode,
    with logits that have a gradient) it records which of them are classified correctly, and ``update()`` at
    the end of an epoch adds these to the history. A sample that is seen once per epoch is therefore compared
    by what was known before the epoch, as in the paper. Until the first update the term is 0. ``history``
    has, per update, the ``mean`` share of correct predictions and the shares of samples that were ``always``
    and ``never`` correct.

    Example:
        >>> loss = CRLLoss(n_samples=2)
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]], requires_grad=True)
        >>> _ = loss(logits, torch.tensor([0, 1]), indices=torch.tensor([0, 1]))
        >>> loss.update()
        >>> loss.correctness
        tensor([1., 0.])
    """

    n_samples: Annotated[int, "Number of training samples."]
    correct: Tensor = field(init=False)
    seen: Tensor = field(init=False)
    new_correct: Tensor = field(init=False)
    new_seen: Tensor = field(init=False)

    function = staticmethod(crl_loss)
    needs = ("indices",)

    def __post_init__(self) -> None:
        super().__post_init__()
        n = check_count(self.n_samples, "n_samples")
        for name in ("correct", "seen", "new_correct", "new_seen"):
            self.register_buffer(name, torch.zeros(n, dtype=torch.int32))
        self.records = EpochRecords({"mean": 1, "always": 1, "never": 1})

    @property
    def correctness(self) -> Tensor:
        """Share of epochs in which each training sample was correct; 0 for a sample never seen."""
        return self.correct / self.seen.clamp_min(1)

    def forward(self, logits: Tensor, labels: Tensor, *, indices: Tensor) -> Tensor:
        """Return the term of a batch, given the indices of its samples in the training set."""
        self._remind(logits)
        logits, labels = two_classes(logits, labels, ignore_index=self.ignore_index)
        _check_samples(labels, indices, "indices")
        place = global_rows(_kept(indices, labels, self.ignore_index))
        if is_readable(place) and not 0 <= int(place.min()) <= int(place.max()) < len(self.seen):
            raise InputError(
                f"indices: expected numbers from 0 to {len(self.seen) - 1}, "
                f"got {int(place.min())} to {int(place.max())}; give CRLLoss the size of the training set"
            )
        confidence, correct, kept = top_label_confidence(logits, labels, ignore_index=self.ignore_index)
        if self.training and logits.requires_grad:
            seen = torch.ones_like(correct) if kept is None else kept
            self.new_correct.index_add_(0, place, (correct.detach() * seen).to(torch.int32))
            self.new_seen.index_add_(0, place, seen.to(torch.int32))
        shares = self.correct[place] / self.seen[place].clamp_min(1).to(confidence.dtype)
        return _disorder(confidence, shares, kept).to(torch.promote_types(logits.dtype, torch.float32))

    @torch.no_grad()
    def update(self, logits: Tensor | None = None, labels: Tensor | None = None) -> None:  # noqa: ARG002  # learns from training only
        """Add what was recorded in this epoch to the history of the training set."""
        for total, new in ((self.correct, self.new_correct), (self.seen, self.new_seen)):
            total.add_(new)
            new.zero_()
        shares = self.correctness[self.seen > 0].double()
        count = max(len(shares), 1)
        self.records.add(
            mean=shares.sum() / count, always=(shares == 1).sum() / count, never=(shares == 0).sum() / count
        )
