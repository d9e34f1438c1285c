"""Accumulators: measures of a stream, equal to those of all samples at once, merged across processes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.bins import Bins, check_bins, equal_width_bins, sorted_width_bins
from calibrant.errors import InputError
from calibrant.inputs import check_count
from calibrant.metrics.measure import Measure
from calibrant.metrics.names import MEASURES
from calibrant.outcomes import Outcomes
from calibrant.streams.sums import CheckedBatch
from calibrant.streams.totals import NUMBERS, Accumulator, TotalsReduction, add_pairs, weight_sums


class _BinAccumulator(Accumulator):
    """Totals of bins of equal width, by class or not."""

    reductions: ClassVar[Mapping[str, TotalsReduction]] = {
        **NUMBERS,
        "count": add_pairs,
        "confidence_sum": add_pairs,
        "correct_sum": add_pairs,
    }

    def compute(self) -> Bins:
        """Return the bins of all samples so far; of weighted ones, counts add up to the effective number."""
        seen, effective = self._seen(), self.effective
        count, confidence, correct = (seen[name] for name in ("count", "confidence_sum", "correct_sum"))
        if effective is None:
            count, correct = count.astype(np.int64), correct.astype(np.int64)
        else:
            scale = effective / self.weight
            count, confidence, correct = scale * count, scale * confidence, scale * correct
        edges = np.arange(count.shape[-1] + 1) / count.shape[-1]
        return Bins(*(torch.tensor(values) for values in (edges, count, confidence, correct)))

    def _add_bins(self, bins: Bins, n: int, weights: Tensor | None, **more: npt.ArrayLike) -> None:
        self._include(
            n=n,
            **weight_sums(weights),
            **more,
            count=bins.count.numpy(),
            confidence_sum=bins.confidence_sum.numpy(),
            correct_sum=bins.correct_sum.numpy(),
        )


class OutcomeAccumulator(_BinAccumulator):
    """Top-label bins over a stream, which give accuracy, mean confidence and every error of equal-width bins.

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
    reductions: ClassVar[Mapping[str, TotalsReduction]] = {
        **_BinAccumulator.reductions,
        "squared_count": add_pairs,
    }

    def __init__(self, *, n_bins: int = 15) -> None:
        self.n_bins = check_bins(n_bins)
        super().__init__(self.n_bins)

    @property
    def sizes(self) -> Tensor | None:
        """Effective number of samples in each bin, NaN in an empty one; none without weights."""
        if self.effective is None:
            return None
        seen = self._seen()
        return torch.tensor(seen["count"]).square() / torch.tensor(seen["squared_count"])

    def add(self, batch: CheckedBatch) -> None:
        """Read a batch that has been checked."""
        self._add_outcomes(batch.outcomes, equal_width_bins(batch.outcomes, self.n_bins))

    def add_sorted(self, ordered: Outcomes) -> None:
        """Read outcomes that have been checked and sorted."""
        fill = sorted_width_bins if ordered.weights is None else equal_width_bins
        self._add_outcomes(ordered, fill(ordered, self.n_bins))

    def _add_outcomes(self, outcomes: Outcomes, bins: Bins) -> None:
        squared = bins
        if outcomes.weights is not None:
            squared = equal_width_bins(replace(outcomes, weights=outcomes.weights.square()), self.n_bins)
        self._add_bins(bins, len(outcomes), outcomes.weights, squared_count=squared.count.numpy())


class ClasswiseAccumulator(_BinAccumulator):
    """Bins of every class's probability over a stream, which give the classwise calibration error.

    ``compute`` returns the :class:`~calibrant.bins.Bins`, classes first, that ``class_bins`` returns for all
    samples. Without ``n_classes``, the first batch sets the number of classes.

    Example:
        >>> accumulator = ClasswiseAccumulator(n_bins=10)
        >>> accumulator.update([[0.9, 0.1]], [0])
        >>> accumulator.update([[0.6, 0.4]], [1])
        >>> round(float(accumulator.compute().expected_gap().mean()), 6)
        0.35
    """

    settings = ("n_classes", "n_bins")
    needs_classes = True

    def __init__(self, *, n_classes: int | None = None, n_bins: int = 15) -> None:
        self.n_classes = None if n_classes is None else check_count(n_classes, "n_classes", at_least=2)
        self.n_bins = check_bins(n_bins)
        # While the number of classes is unknown, there are no rows.
        super().__init__(self.n_classes or 0, self.n_bins)

    def add(self, batch: CheckedBatch) -> None:
        """Read a batch that has been checked."""
        if self.n_classes not in (None, batch.k):
            raise InputError(f"{batch.form}: expected {self.n_classes} classes as before, got {batch.k}")
        bins = batch.class_sums.bins
        self._set_classes(len(bins.count))
        self._add_bins(bins, len(batch), batch.weights)

    def merge(self, other: Self) -> None:
        """Add the totals of another accumulator with the same settings, which does not change."""
        if isinstance(other, ClasswiseAccumulator) and other.n_bins == self.n_bins:
            if other.n_classes is None:
                return
            self._set_classes(other.n_classes)
        super().merge(other)

    def _set_classes(self, n_classes: int) -> None:
        """Set the number of classes if it is unknown."""
        if self.n_classes is None:
            self.n_classes = n_classes
            super().__init__(n_classes, self.n_bins)


@dataclass(frozen=True)
class ProperScores:
    """Mean proper scores of ``n`` samples."""

    n: int
    negative_log_likelihood: float
    brier_score: float


class ProperScoreAccumulator(Accumulator):
    """Negative log-likelihood and Brier score over a stream.

    Class scores and confidences of a black box must not be mixed: they have different Brier scores.

    Example:
        >>> accumulator = ProperScoreAccumulator()
        >>> accumulator.update([[0.9, 0.1]], [0])
        >>> accumulator.update([[0.6, 0.4]], [1])
        >>> scores = accumulator.compute()
        >>> round(scores.negative_log_likelihood, 4), round(scores.brier_score, 4)
        (0.5108, 0.37)
    """

    reductions: ClassVar[Mapping[str, TotalsReduction]] = {
        **NUMBERS,
        "nll_sum": add_pairs,
        "brier_sum": add_pairs,
    }

    def add(self, batch: CheckedBatch) -> None:
        """Read a batch that has been checked."""
        nll, brier = batch.proper_sums
        self._include(n=len(batch), **weight_sums(batch.weights), nll_sum=nll, brier_sum=brier)

    def compute(self) -> ProperScores:
        """Return the mean scores of all samples so far."""
        seen = self._seen()
        nll, brier = (float(seen[name]) / self.weight for name in ("nll_sum", "brier_sum"))
        return ProperScores(self.n, nll, brier)


class TopKErrorAccumulator(Accumulator):
    """Share of the samples of a stream whose true class is not among the ``k`` most probable ones.

    Example:
        >>> accumulator = TopKErrorAccumulator(k=2)
        >>> accumulator.update([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]], [1, 2])
        >>> accumulator.compute()
        0.5
    """

    settings = ("k",)
    reductions: ClassVar[Mapping[str, TotalsReduction]] = {**NUMBERS, "errors": add_pairs}
    needs_classes = True

    def __init__(self, *, k: int = 5) -> None:
        self.k = check_count(k, "k")
        super().__init__()

    def why_not(self, k: int | None) -> str:
        """Refuse confidences without classes, and too few classes."""
        if k in range(self.k):
            return f"k: expected at most the {k} classes of probs, got {self.k}"
        return super().why_not(k)

    def add(self, batch: CheckedBatch) -> None:
        """Read a batch that has been checked."""
        missed = torch.from_numpy(batch.class_sums.ranks >= self.k)
        self._include(n=len(batch), **weight_sums(batch.weights), errors=batch.summed(missed))

    def compute(self) -> float:
        """Return the top-k error of all samples so far."""
        return float(self._seen()["errors"]) / self.weight


class MeanAccumulator(Accumulator):
    """A measure of the catalogue that is the mean of its ``terms``, over a stream.

    Example:
        >>> accumulator = MeanAccumulator(measure="brier")
        >>> accumulator.update([[0.9, 0.1]], [0])
        >>> accumulator.update([[0.6, 0.4]], [1])
        >>> round(accumulator.compute(), 4)
        0.37
    """

    settings = ("measure",)
    reductions: ClassVar[Mapping[str, TotalsReduction]] = {**NUMBERS, "sum": add_pairs}

    def __init__(self, *, measure: str) -> None:
        if measure not in MEASURES or MEASURES[measure].terms is None:
            raise InputError(f"measure: expected one of the catalogue that has terms, got {measure!r}")
        self.measure = measure
        super().__init__()

    def why_not(self, k: int | None) -> str:
        """Refuse predictions for which the measure is not defined."""
        lacking = MEASURES[self.measure].lacks(k)
        return f"measure: {self.measure} {lacking}, got {k or 'none'}" if lacking else ""

    def add(self, batch: CheckedBatch) -> None:
        """Read a batch that has been checked."""
        terms = batch.terms_of(MEASURES[self.measure])
        self._include(n=len(batch), **weight_sums(batch.weights), sum=batch.summed(terms))

    def compute(self) -> float:
        """Return the mean of all samples so far."""
        return float(self._seen()["sum"]) / self.weight


def applies(measure: Measure, k: int | None) -> bool:
    """Return whether a measure is defined for ``k`` classes, or for confidences if ``k`` is None."""
    return not measure.lacks(k)
