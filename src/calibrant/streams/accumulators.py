"""Accumulators of bins: binned measures of a stream, equal to those of all samples at once."""

from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np
import torch

from calibrant.bins import Bins, equal_width_bins, sorted_width_bins
from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, check_count
from calibrant.metrics.classwise import class_bins
from calibrant.outcomes import Outcomes
from calibrant.streams.batches import read_outcomes, read_probs
from calibrant.streams.totals import Accumulator, Array, Reduction, add_pairs, as_pair


class _BinAccumulator(Accumulator):
    """Totals of bins of equal width, by class or not."""

    reductions: ClassVar[Mapping[str, Reduction]] = {
        "n": np.add,
        "count": np.add,
        "confidence_sum": add_pairs,
        "correct_sum": np.add,
    }

    def compute(self) -> Bins:
        """Return the bins of all samples so far."""
        seen = self._seen()
        n_bins = seen["count"].shape[-1]
        edges = np.arange(n_bins + 1) / n_bins
        sums = (edges, seen["count"], seen["confidence_sum"], seen["correct_sum"])
        return Bins(*(torch.tensor(values) for values in sums))

    def _include_bins(self, bins: Bins, n: int) -> None:
        self._include(
            {
                "n": np.array(n),
                "count": bins.count.numpy(),
                "confidence_sum": as_pair(bins.confidence_sum.numpy()),
                "correct_sum": bins.correct_sum.numpy(),
            }
        )


class OutcomeAccumulator(_BinAccumulator):
    """Top-label bins over a stream: accuracy, mean confidence and every error of equal-width bins follow.

    ``compute`` returns the :class:`~calibrant.bins.Bins` that ``top_label_bins`` returns for all samples.

    Example:
        >>> left, right = OutcomeAccumulator(n_bins=10), OutcomeAccumulator(n_bins=10)
        >>> left.update(probs=[[0.9, 0.1]], labels=[0])
        >>> right.update(confidence=[0.6], correct=[False])
        >>> left.merge(right)
        >>> bins = left.compute()
        >>> round(float(bins.expected_gap()), 6), round(float(bins.largest_gap()), 6)
        (0.35, 0.6)
    """

    settings = ("n_bins",)

    def __init__(self, *, n_bins: int = 15) -> None:
        self.n_bins = check_count(n_bins, "n_bins")
        super().__init__(_empty_bins(self.n_bins))

    def update(
        self,
        probs: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        *,
        logits: ArrayLike | None = None,
        confidence: ArrayLike | None = None,
        correct: ArrayLike | None = None,
    ) -> None:
        """Read a batch of probabilities or logits with labels, or of confidences with hits."""
        outcomes = read_outcomes(probs, labels, logits=logits, confidence=confidence, correct=correct)
        if outcomes is not None:
            self.add(outcomes)

    def add(self, outcomes: Outcomes) -> None:
        """Read a batch that has been checked before, once for several accumulators say."""
        self._include_bins(equal_width_bins(outcomes, self.n_bins), len(outcomes))

    def add_sorted(self, ordered: Outcomes) -> None:
        """Read a batch that has been checked and sorted before."""
        self._include_bins(sorted_width_bins(ordered, self.n_bins), len(ordered))


class ClasswiseAccumulator(_BinAccumulator):
    """Bins of every class's probability over a stream: the classwise calibration error follows.

    ``compute`` returns the :class:`~calibrant.bins.Bins`, classes first, that ``class_bins`` returns for all
    samples. The first batch says how many classes there are, unless ``n_classes`` does.

    Example:
        >>> accumulator = ClasswiseAccumulator(n_bins=10)
        >>> accumulator.update([[0.9, 0.1]], [0])
        >>> accumulator.update([[0.6, 0.4]], [1])
        >>> round(float(accumulator.compute().expected_gap().mean()), 6)
        0.35
    """

    settings = ("n_classes", "n_bins")

    def __init__(self, *, n_classes: int | None = None, n_bins: int = 15) -> None:
        self.n_classes = None if n_classes is None else check_count(n_classes, "n_classes", at_least=2)
        self.n_bins = check_count(n_bins, "n_bins")
        # As long as the number of classes is not known there are no rows.
        super().__init__(_empty_bins(self.n_classes or 0, self.n_bins))

    def update(
        self,
        probs: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        *,
        logits: ArrayLike | None = None,
    ) -> None:
        """Read a batch of probabilities or logits with labels."""
        batch = read_probs(probs, labels, logits)
        if batch is None:
            return
        n, k = batch[0].shape
        if self.n_classes not in (None, k):
            name = "probs" if logits is None else "logits"
            raise InputError(f"{name}: expected {self.n_classes} classes as before, got {k}")
        bins = class_bins(*batch, n_bins=self.n_bins)
        self._settle(k)
        self._include_bins(bins, n)

    def merge(self, other: Self) -> None:
        """Add what another accumulator with the same settings has seen; the other one stays as it is."""
        if isinstance(other, ClasswiseAccumulator) and other.n_bins == self.n_bins:
            if other.n_classes is None:
                return
            self._settle(other.n_classes)
        super().merge(other)

    def _settle(self, n_classes: int) -> None:
        """Take over the number of classes if it was not known."""
        if self.n_classes is None:
            self.n_classes = n_classes
            self._totals |= _empty_bins(n_classes, self.n_bins)


def _empty_bins(*shape: int) -> dict[str, Array]:
    return {
        "count": np.zeros(shape, dtype=np.int64),
        "confidence_sum": as_pair(np.zeros(shape)),
        "correct_sum": np.zeros(shape, dtype=np.int64),
    }
