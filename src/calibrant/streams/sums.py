"""The one summation of predictions: everything that accumulators take from a batch, in one pass over it.

A batch is checked once, where it is read. Its class probabilities are transposed to one row per class, block
by block, so that sums, comparisons and maxima over classes run along memory.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.bins import Bins, bin_number
from calibrant.errors import InputError
from calibrant.inputs import (
    ArrayLike,
    Floats,
    at_least_float32,
    check_labelled_logits,
    check_labels,
    check_probs,
    check_weights,
    to_tensor,
)
from calibrant.metrics.accuracy import confidences, hits, top_k_misses
from calibrant.metrics.measure import Measure
from calibrant.metrics.proper import log_losses, squared_errors
from calibrant.outcomes import LEAST_PROB, Outcomes, check_outcomes, log_probs

Form: TypeAlias = Literal["logits", "probs", "confidence"]
Array: TypeAlias = npt.NDArray[Any]

# Entries of a block, which stays in the processor's cache with its temporaries.
_BLOCK = 1 << 17
# Weights are summed as they come, and so are their squares.
_LARGEST = 1e100


@dataclass(frozen=True, eq=False)
class ClassSums:
    """Sums over rows of class probabilities.

    Attributes:
        outcomes: Confidence of each row, and whether its prediction was correct.
        nll: Sum of the negative log-likelihoods.
        brier: Sum of the squared distances from the true classes.
        ranks: For each row, the number of classes that rank above the true one.
        bins: Bins of each class's probability, shape ``(k, n_bins)``; a row is correct for its own class.
    """

    outcomes: Outcomes
    nll: float
    brier: float
    ranks: npt.NDArray[np.signedinteger]
    bins: Bins


@dataclass(eq=False)
class CheckedBatch:
    """A checked batch of predictions on the CPU; it is summed once, however many accumulators read it.

    Attributes:
        form: What ``outputs`` holds, as in ``Predictions``.
        outputs: Logits or probabilities of shape ``(n, k)``, or confidences of shape ``(n,)``, on any device
            and of any floating type; half precision is widened.
        truth: Labels, or for confidences whether each prediction was correct.
        n_bins: Number of bins of each class's probability.
        weights: How much each row counts, float64, on the scale of all batches; none if all count 1.
        units: The number of the unit of each row; none if rows have no units.
    """

    form: Form
    outputs: Tensor
    truth: Tensor
    n_bins: int = 1
    weights: Tensor | None = None
    units: Tensor | None = None

    def __post_init__(self) -> None:
        self.outputs, self.truth = at_least_float32(self.outputs.cpu()), self.truth.cpu()
        if self.weights is not None:
            self.weights = self.weights.cpu()
            if (largest := float(self.weights.max())) > _LARGEST:
                raise InputError(
                    f"weights: expected at most {_LARGEST} in a stream, got {largest:.6g}; divide them by "
                    "their mean"
                )

    def __len__(self) -> int:
        return len(self.outputs)

    @property
    def k(self) -> int | None:
        """Number of classes; none if only confidences are known."""
        return None if self.form == "confidence" else self.outputs.shape[1]

    @cached_property
    def probs(self) -> Tensor:
        """Class probabilities, in the precision of the logits if these are known."""
        return torch.softmax(self.outputs, dim=1) if self.form == "logits" else self.outputs

    @cached_property
    def outcomes(self) -> Outcomes:
        """Confidence of each row, and whether its prediction was correct, with the weights as they are."""
        if self.form == "confidence":
            found = Outcomes(self.outputs, self.truth)
        elif "class_sums" in vars(self):
            found = self.class_sums.outcomes
        else:
            make = Outcomes.from_logits if self.form == "logits" else Outcomes.from_probs
            found = make(self.outputs, self.truth)
        return found if self.weights is None else replace(found, weights=self.weights)

    def summed(self, terms: Tensor) -> float:
        """Return the weighted sum of one number per row; a row of weight 0 may have an infinite one."""
        if self.weights is None:
            return float(terms.sum(dtype=torch.float64))
        return float((self.weights * terms.double().masked_fill(self.weights == 0, 0.0)).sum())

    @cached_property
    def class_sums(self) -> ClassSums:
        """Sums over class probabilities; the negative log-likelihood of logits is always finite."""
        sums = _sum_probs(self.probs, self.truth, self.n_bins, self.weights)
        if self.form == "probs":
            return sums
        z, outcomes = self.outputs, Outcomes.from_logits(self.outputs, self.truth)
        # The confidence is exp(largest - logsumexp), so the logarithm of the sum need not be taken again.
        behind = z.amax(dim=1).double() - z.gather(1, self.truth[:, None]).squeeze(1).double()
        return replace(sums, outcomes=outcomes, nll=self.summed(behind - outcomes.confidence.log()))

    @cached_property
    def proper_sums(self) -> tuple[float, float]:
        """Sums of the negative log-likelihoods and of the squared errors."""
        if self.form != "confidence":
            return self.class_sums.nll, self.class_sums.brier
        pairs = {"confidence": self.outputs, "correct": self.truth}
        return self.summed(log_losses(**pairs)), self.summed(squared_errors(**pairs))

    def terms_of(self, measure: Measure) -> Tensor:
        """Return one number per row, whose mean is the measure; what is known is not computed again."""
        assert measure.terms is not None
        if measure.terms is hits:
            return self.outcomes.correct
        if measure.terms is confidences:
            return self.outcomes.confidence
        if measure.terms is top_k_misses:
            return torch.from_numpy(self.class_sums.ranks >= measure.options["k"])
        return measure.terms(**self.arguments(measure), **measure.arguments(self.n_bins))

    def arguments(self, measure: Measure) -> dict[str, Tensor]:
        """Return what a measure reads; those of logits read probabilities if only these are known."""
        if measure.reads == "outcomes" or self.form == "confidence":
            return {"confidence": self.outcomes.confidence, "correct": self.outcomes.correct}
        if measure.reads == "logits" and self.form == "logits":
            return {"logits": self.outputs, "labels": self.truth}
        return {"probs": self.probs, "labels": self.truth}


class OtherForms(TypedDict, total=False):
    """What a batch may hold instead of ``probs``, and the weights beside them."""

    logits: ArrayLike | None
    confidence: ArrayLike | None
    correct: ArrayLike | None
    weights: ArrayLike | None


def check_streamed_batch(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    n_bins: int = 1,
    **others: Unpack[OtherForms],
) -> CheckedBatch | None:
    """Check the arguments of ``Accumulator.update`` as the one-shot functions do; none without samples."""
    named: dict[str, Any] = {"probs": probs, "labels": labels, **others}
    given = {name: value for name, value in named.items() if value is not None}
    # Where only some arrays are empty, the checks name the one that is wrong.
    if given and all(to_tensor(value, name).shape[:1] == (0,) for name, value in given.items()):
        return None
    weights = given.pop("weights", None)
    form, outputs, truth = _check_form(given)
    w = None if weights is None else check_weights(weights, n=len(outputs), some=False)
    return CheckedBatch(form, outputs, truth, n_bins, w)


def _check_form(given: dict[str, Any]) -> tuple[Form, Tensor, Tensor]:
    """Return the form, outputs and truth of a batch."""
    if set(given) == {"logits", "labels"}:
        return "logits", *check_labelled_logits(given["logits"], given["labels"])
    if set(given) == {"probs", "labels"}:
        p = check_probs(given["probs"])
        return "probs", p, check_labels(given["labels"], n=p.shape[0], k=p.shape[1])
    if set(given) == {"confidence", "correct"}:
        outcomes = check_outcomes(**given)
        return "confidence", outcomes.confidence, outcomes.correct
    raise InputError(
        "arguments: expected logits with labels, probs with labels, or confidence with correct, "
        f"got {' with '.join(given) or 'none of them'}"
    )


def _sum_probs(p: Tensor, y: Tensor, n_bins: int, weights: Tensor | None) -> ClassSums:
    """Sum checked probabilities of shape ``(n, k)`` with labels."""
    probs, labels = np.ascontiguousarray(p.numpy()), y.numpy()
    sums = _Blocks(probs, n_bins) if weights is None else _WeightedBlocks(probs, n_bins, weights.numpy())
    confidence, ranks = np.empty(sums.n, dtype=probs.dtype), np.empty(sums.n, dtype=sums.small)
    for start in range(0, sums.n, sums.step):
        rows = slice(start, start + sums.step)
        table = sums.add(probs[rows], labels[rows], ranks[rows])
        np.minimum(table.max(axis=0), 1, out=confidence[rows])
    outcomes = Outcomes(torch.from_numpy(confidence), torch.from_numpy(ranks == 0))
    return sums.done(outcomes, ranks)


class _Blocks:
    """Running sums over blocks of class probabilities, transposed to one row per class.

    Temporaries are allocated once: fresh memory from the system costs as much as the sums.
    """

    def __init__(self, like: Array, n_bins: int) -> None:
        (self.n, self.k), dtype = like.shape, like.dtype
        self.n_bins = n_bins
        self.weight = float(self.n)
        self.nll = self.squares = self.labels = 0.0
        # Not above the edge of the lowest bin, however that was rounded.
        self.lowest = np.nextafter(dtype.type(1 / n_bins), dtype.type(0))
        # One slot before the first bin is for zeros, one after the last for values rounded above one.
        self.slots = n_bins + 2
        self.exact = dtype == np.float32
        self.count, self.correct = np.zeros((2, self.k * self.slots), dtype=np.int64)
        self.placed, self.totals = np.zeros(self.k * self.slots), np.zeros(self.k)
        self.step = min(self.n, max(1, _BLOCK // self.k))
        self.small = np.min_scalar_type(-self.k)
        size = self.step * self.k
        self._table, self._mask = np.empty(size, dtype), np.empty(size, dtype=bool)
        self._wide = torch.empty(size, dtype=torch.float64)

    def add(self, probs: Array, labels: npt.NDArray[np.int64], ranks: Array) -> Array:
        """Add a block of shape ``(m, k)`` and fill in its ``ranks``; return the transposed block."""
        of_label = probs.ravel().take(np.arange(0, probs.size, self.k) + labels)
        shape = probs.shape[::-1]
        table, mask = (array[: probs.size].reshape(shape) for array in (self._table, self._mask))
        for tile in range(0, len(probs), 1024):
            np.copyto(table[:, tile : tile + 1024], probs[tile : tile + 1024].T)
        own = labels * self.slots
        own += bin_number(of_label.astype(np.float64), self.n_bins, exact=self.exact).astype(np.intp)
        self._sum(table, of_label, own)
        # Classes rank above the true one if they are more probable, or come before it among equals.
        np.greater(table, of_label, out=mask)
        np.add.reduce(mask.view(np.int8), axis=0, dtype=self.small, out=ranks)
        np.equal(table, of_label, out=mask)
        if np.count_nonzero(mask) > len(labels):
            mask &= np.arange(self.k)[:, None] < labels
            ranks += np.add.reduce(mask.view(np.int8), axis=0, dtype=self.small)
        return table

    def done(self, outcomes: Outcomes, ranks: Array) -> ClassSums:
        """Return the sums of all rows."""
        count, confidence, correct = (self._bins(table) for table in (self.count, self.placed, self.correct))
        self._complete(count, confidence)
        brier = max(0.0, self.squares - 2 * self.labels + self.weight)
        edges = np.arange(self.n_bins + 1) / self.n_bins
        bins = Bins(*map(torch.from_numpy, (edges, count, confidence, correct)))
        return ClassSums(outcomes, self.nll, brier, ranks, bins)

    def _sum(self, table: Array, of_label: Array, own: npt.NDArray[np.intp]) -> None:
        """Add the sums of a transposed block; ``own`` are the places of the true classes' probabilities."""
        self.nll -= _sum_of_logs(of_label)
        self._place(table, self._mask[: table.size].reshape(table.shape))
        self.correct += np.bincount(own, minlength=len(self.correct))
        self.labels += float(of_label.sum(dtype=np.float64))
        # In float64; NumPy's product would start threads of its own.
        wide = self._wide[: table.size]
        np.copyto(wide.numpy(), table.ravel())
        self.totals += wide.view(table.shape).sum(dim=1).numpy()
        self.squares += float(torch.dot(wide, wide))

    def _complete(self, count: Array, confidence: Array) -> None:
        """Fill the lowest bins with the rest."""
        count[:, 0] += self.n - count.sum(axis=1)
        confidence[:, 0] += self.totals - confidence.sum(axis=1)

    def _place(self, table: Array, mask: npt.NDArray[np.bool_]) -> None:
        """Count and sum the entries of each bin but the lowest, which gets the rest in the end."""
        np.greater(table, self.lowest, out=mask)
        where = np.flatnonzero(mask)
        values = table.ravel().take(where).astype(np.float64)
        per_class = np.diff(np.searchsorted(where, np.arange(self.k + 1) * table.shape[1]))
        place = bin_number(values, self.n_bins, exact=self.exact).astype(np.intp)
        place += np.repeat(np.arange(self.k) * self.slots, per_class)
        self.count += np.bincount(place, minlength=len(self.count))
        self.placed += np.bincount(place, values, minlength=len(self.placed))

    def _bins(self, table: Array) -> Array:
        """Add what lies outside the unit interval to the bins at its ends."""
        table = table.reshape(self.k, self.slots)
        table[:, 1] += table[:, 0]
        table[:, -2] += table[:, -1]
        return table[:, 1:-1].copy()


class _WeightedBlocks(_Blocks):
    """The same sums with a weight for each row.

    Every entry is placed: the rest of a sum of weights is seldom exactly 0 where a bin is empty.
    """

    def __init__(self, like: Array, n_bins: int, weights: Floats) -> None:
        super().__init__(like, n_bins)
        self.count, self.correct = np.zeros((2, self.k * self.slots))
        self.weights, self.weight, self.done_rows = weights, float(weights.sum()), 0

    def _sum(self, table: Array, of_label: Array, own: npt.NDArray[np.intp]) -> None:
        weights = self.weights[self.done_rows : self.done_rows + len(own)]
        self.done_rows += len(own)
        counted = weights > 0
        logs = log_probs(torch.from_numpy(of_label[counted].astype(np.float64)))
        self.nll -= float((logs * torch.from_numpy(weights[counted])).sum())
        values = table.astype(np.float64)
        place = bin_number(values, self.n_bins, exact=self.exact).astype(np.intp)
        place += np.arange(self.k)[:, None] * self.slots
        sizes, weighted = np.broadcast_to(weights, values.shape), values * weights
        self.count += np.bincount(place.ravel(), sizes.ravel(), minlength=len(self.count))
        self.placed += np.bincount(place.ravel(), weighted.ravel(), minlength=len(self.placed))
        self.correct += np.bincount(own, weights, minlength=len(self.correct))
        self.labels += float((of_label * weights).sum())
        self.squares += float((weighted * values).sum())

    def _complete(self, count: Array, confidence: Array) -> None:
        """Leave the bins as they are."""


def _sum_of_logs(p: Array) -> float:
    """Sum the logarithms of probabilities, of four at once: their product is far from underflow."""
    wide = np.clip(p.astype(np.float64), LEAST_PROB, 1)
    rest = wide[len(wide) // 4 * 4 :]
    a, b, c, d = wide[: len(wide) // 4 * 4].reshape(4, -1)
    return float(torch.from_numpy(np.concatenate([a * b * c * d, rest])).log_().sum())
