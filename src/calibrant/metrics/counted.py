"""Measures as functions of counts: samples are sorted once, and any number of resamples is then measured.

A resample is how often it contains each sample, so no rows are copied.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import Tensor

from calibrant.bins import SAME, Binning, Bins, equal_width_index, mass_ends, rounded_down
from calibrant.inputs import Floats
from calibrant.metrics.ranking import Ranking, check_ranked, last_of_equals
from calibrant.outcomes import Outcomes

#: How often each sample is counted: whole numbers, or these times the weights of the samples.
Counts: TypeAlias = npt.NDArray[np.int64] | Floats

# Larger than rounding; and what separates confidences that no number of bins in use does.
_MARGIN, _LEAST = 1e-6, 1e-12


@dataclass(frozen=True, eq=False)
class Weighted:
    """A measure of fixed samples, as a function of how often each of them is counted.

    Attributes:
        n: Number of samples.
        values: Takes counts of shape ``(r, n)``, with at least one sample in each row, and returns the
            measure of each row; NaN where it is undefined.
        held: Numbers in memory for each row of counts, which limits the rows per call.
        work: Numbers computed for each row of counts, if these are more than are held.
        weights: How much each sample counts, or None if all count the same.
        steps: The same in two steps, if other measures of the same samples begin with the same one.
    """

    n: int
    values: Callable[[Counts], Floats]
    held: int
    work: int = 0
    weights: Tensor | None = None
    steps: "Steps | None" = None

    @property
    def value(self) -> float:
        """The measure of the samples themselves."""
        return float(self.of(np.ones((1, self.n), dtype=np.int64))[0])

    def of(self, counts: Counts) -> Floats:
        """Return the measure of each row of counts, with the weights of the samples."""
        if self.weights is None:
            return self.values(counts)
        weighted = counts * self.weights.cpu().numpy()
        counted = weighted.any(axis=1)  # a resample of samples that all have weight 0 has no value
        result = np.full(len(counts), np.nan)
        if counted.any():
            result[counted] = self.values(weighted if counted.all() else weighted[counted])
        return result


@dataclass(frozen=True, eq=False)
class Steps:
    """What a measure reads of each row of counts, and the measure as a function of it.

    Attributes:
        name: What is read; measures of the same samples with equal names read the same.
        read: Takes counts.
        measure: Takes what was read, and returns the measure of each row.
    """

    name: str
    read: Callable[[Counts], Any]
    measure: Callable[[Any], Floats]


def mean_weights(terms: Floats, weights: Tensor | None = None) -> Weighted:
    """Return a mean of terms as a function of how often each of them is counted."""

    def values(counts: Counts) -> Floats:
        # Unlike a matrix product this starts no threads, which would wait for each other.
        return np.asarray(np.einsum("rn,n->r", counts, terms) / counts.sum(axis=1))

    return Weighted(len(terms), values, held=len(terms), weights=weights)


@dataclass(frozen=True, eq=False)
class Ordered:
    """Samples in ascending order of confidence; equal confidences form one group.

    Attributes:
        order: Index of each sample in ascending order.
        hits: Whether each of them is right, in that order.
        values: The distinct confidences in ascending order.
        last: Place of the last sample of each group.
        weights: How much each sample counts, in the original order; None if all count the same.
    """

    order: npt.NDArray[np.intp]
    hits: npt.NDArray[np.bool_]
    values: npt.NDArray[np.floating]
    last: npt.NDArray[np.intp]
    weights: Tensor | None = None

    @classmethod
    def from_outcomes(cls, outcomes: Outcomes) -> "Ordered":
        """Sort outcomes by confidence, or by any score in its place."""
        values = outcomes.confidence.cpu().numpy()
        order = np.argsort(values)
        values = values[order]
        last = last_of_equals(values)
        return cls(order, outcomes.correct.cpu().numpy()[order], values[last], last, outcomes.weights)

    def __len__(self) -> int:
        return len(self.order)

    def hits_and_misses(self, counts: Counts) -> tuple[Counts, Counts]:
        """Return the numbers of right and wrong samples in each group, shape ``(r, groups)`` each."""
        drawn = np.take(counts, self.order, axis=1)
        right = drawn * self.hits
        return self._grouped(right), self._grouped(drawn - right)

    def errors(self, counts: Counts) -> Floats:
        """Return the sum of ``correct - confidence`` in each group, shape ``(r, groups)``."""
        return self._grouped(np.take(counts, self.order, axis=1) * self._error)

    def ranking(self, counts: Counts) -> Ranking:
        """Return the ranking of each resample; some scores may occur in none of its samples."""
        hits, misses = self.hits_and_misses(counts)
        return Ranking(self.values[::-1], hits[:, ::-1], misses[:, ::-1])

    def sums(self, counts: Counts) -> "Sums":
        """Return the sums of each resample up to each confidence."""
        drawn = np.take(counts, self.order, axis=1)
        return Sums(self.values, *map(self._up_to, (drawn, drawn * self._confidence, drawn * self.hits)))

    @cached_property
    def _confidence(self) -> Floats:
        return np.repeat(self.values.astype(np.float64), np.diff(self.last, prepend=-1))

    @cached_property
    def _error(self) -> Floats:
        return np.asarray(self.hits - self._confidence)

    def _up_to(self, table: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the sums of each row up to each group, after a first entry of zero."""
        sums = np.zeros((len(table), 1 + len(self)), dtype=table.dtype)
        np.cumsum(table, axis=1, out=sums[:, 1:])
        return sums if len(self.last) == len(self) else sums[:, np.append(0, 1 + self.last)]

    def _grouped(self, table: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if len(self.last) == len(self.order):
            return table
        first = np.append(0, self.last[:-1] + 1)
        tied, members = self._tied
        if 2 * len(members) > len(self.order):
            return np.add.reduceat(table, first, axis=1)
        sums = np.take(table, self.last, axis=1)
        sizes = (self.last - first + 1)[tied]
        sums[:, tied] = np.add.reduceat(table[:, members], np.cumsum(sizes) - sizes, axis=1)
        return sums

    @cached_property
    def _tied(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """The groups of several samples, and the places of these samples; others need no sums."""
        sizes = np.diff(self.last, prepend=-1)
        return np.flatnonzero(sizes > 1), np.flatnonzero(np.repeat(sizes > 1, sizes))


@dataclass(frozen=True, eq=False)
class Sums:
    """Counts, confidences and hits of resamples up to each of the distinct confidences.

    Attributes:
        values: The distinct confidences in ascending order.
        count: Number of samples up to each of them, shape ``(r, groups + 1)``; the first entry is 0.
        confidence: Their summed confidences.
        hits: Their number of right predictions.
    """

    values: npt.NDArray[np.floating]
    count: Counts
    confidence: Floats
    hits: Counts

    def bins(self, n_bins: int, binning: Binning, rows: npt.NDArray[np.intp] | None = None) -> Bins:
        """Return the bins of each resample, or of the given rows; the edges are those of equal width."""
        rows = np.arange(len(self.count)) if rows is None else rows
        edges = np.arange(n_bins + 1) / n_bins
        ends = self._width_ends(edges) if binning == "width" else 1 + self._equal_mass.ends(n_bins, rows)
        return self._between(edges, rows, ends)

    def occupied(self, n_bins: int, binning: Binning, rows: npt.NDArray[np.intp]) -> Bins:
        """Return the bins of some resamples without most of the empty ones: no more than distinct values."""
        if n_bins <= len(self.values):
            return self.bins(n_bins, binning, rows)
        edges = np.arange(n_bins + 1) / n_bins
        if binning == "width":
            ends = self._width_ends(edges)
            return self._between(edges, rows, np.unique(ends[ends > 0]))
        last = np.diff(self._equal_mass.index(n_bins, rows), axis=1, append=n_bins + 1) > 0
        # Values that are not the last of their bin leave an empty bin.
        ends = np.where(last, np.arange(1, last.shape[1] + 1), 0)
        return self._between(edges, rows, np.maximum.accumulate(ends, axis=1))

    def enough(self, binning: Binning) -> npt.NDArray[np.intp]:
        """Return the number of bins from which on each value of a resample has a bin of its own."""
        if binning == "width":
            gap = np.diff(self.values.astype(np.float64)).min(initial=1.0)
            return np.full(len(self.count), math.ceil((1 + _MARGIN) / max(gap, _LEAST)))
        size = np.diff(self.count, axis=1)
        least = np.where(size > 0, size, np.inf).min(axis=1)
        share = np.maximum(least / self.count[:, -1], _LEAST)
        return np.asarray(np.ceil((1 + _MARGIN) / share), dtype=np.intp)

    def _width_ends(self, edges: Floats) -> npt.NDArray[np.intp]:
        return np.searchsorted(self.values, rounded_down(edges[1:], self.values.dtype), side="right")

    def _between(self, edges: Floats, rows: npt.NDArray[np.intp], ends: npt.NDArray[np.intp]) -> Bins:
        parts: tuple[npt.NDArray[Any], ...] = (self.count, self.confidence, self.hits)
        parts = tuple(part[rows[:, None], ends] for part in parts)
        sums = (torch.from_numpy(np.diff(part, axis=1, prepend=part.dtype.type(0))) for part in parts)
        return Bins(torch.from_numpy(edges), *sums)

    @cached_property
    def _equal_mass(self) -> "EqualMass":
        return EqualMass(self.count[:, 1:])


@dataclass(frozen=True, eq=False)
class EqualMass:
    """Bins of equal count that split no group of samples.

    Attributes:
        up_to: Number of samples up to each group, shape ``(r, groups)``; floats are weights of samples.
    """

    up_to: Counts

    def ends(self, n_bins: int, rows: npt.NDArray[np.intp] | None = None) -> npt.NDArray[np.intp]:
        """Return the last group of each bin of the given rows, or of all: shape ``(r, n_bins)``."""
        rows = np.arange(len(self.up_to)) if rows is None else rows
        if self.up_to.dtype.kind == "f":
            return np.stack([mass_ends(self.up_to[row], n_bins) for row in rows])
        last = -(-np.arange(1, n_bins + 1) * self.up_to[rows, -1:] // n_bins)
        place = np.searchsorted(self._ascending, last + self._shift[rows])
        return np.asarray(place - self.up_to.shape[1] * rows[:, None], dtype=np.intp)

    def index(self, n_bins: int, rows: npt.NDArray[np.intp]) -> Counts:
        """Return the bin of each group of the given rows, shape ``(r, groups)``: the other way to say it."""
        up_to = self.up_to[rows]
        before, total = np.append(np.zeros_like(up_to[:, :1]), up_to[:, :-1], axis=1), up_to[:, -1:]
        if self.up_to.dtype.kind == "f":
            return np.floor(before * n_bins / (total * (1 - SAME)))
        return np.asarray(before * n_bins // total)

    @cached_property
    def _shift(self) -> Counts:
        return np.arange(len(self.up_to))[:, None] * (1 + int(self.up_to[:, -1].max()))

    @cached_property
    def _ascending(self) -> Counts:
        """With each row shifted by more than its total, all rows form one list, which one call searches."""
        return (self.up_to + self._shift).ravel()


def binned_weights(
    outcomes: Outcomes, of_bins: Callable[[Bins], Tensor], *, n_bins: int, binning: Binning
) -> Weighted:
    """Return a measure of bins of the confidence as a function of counts."""
    n = len(outcomes)
    if binning == "width":
        bins = _width_bins(outcomes, n_bins)
    else:
        ordered = Ordered.from_outcomes(outcomes)

        def bins(counts: Counts) -> Bins:
            return ordered.sums(counts).bins(n_bins, binning)

    return Weighted(
        n, lambda counts: np.asarray(of_bins(bins(counts)), dtype=np.float64), 4 * n, 0, outcomes.weights
    )


def summed_weights(
    outcomes: Outcomes, of_bins: Callable[[Bins], Tensor], n_bins: int, units: npt.NDArray[np.intp]
) -> Weighted:
    """Return a measure of bins of equal width as a function of how often each unit of samples is counted.

    Args:
        outcomes: The samples.
        of_bins: The measure.
        n_bins: Number of bins.
        units: The unit of each sample, from 0.
    """
    bins = _width_bins(outcomes, n_bins, units)
    n = 1 + int(units.max())
    held = max(n, min(len(units), n * n_bins))
    return Weighted(n, lambda counts: np.asarray(of_bins(bins(counts)), dtype=np.float64), 4 * held)


def _width_bins(
    outcomes: Outcomes, n_bins: int, units: npt.NDArray[np.intp] | None = None
) -> Callable[[Counts], Bins]:
    """Return what sums counts, confidences and hits over bins of equal width, which are always the same.

    With the unit of each sample, it takes how often units are counted, and samples keep their weights.
    """
    confidence, hits = outcomes.confidence.cpu().numpy(), outcomes.correct.cpu().numpy()
    place = equal_width_index(confidence, n_bins)
    columns, w = np.arange(len(confidence)), np.ones(len(confidence))
    if units is not None:
        columns, w = units, outcomes.counts.cpu().numpy()
    edges = torch.arange(n_bins + 1, dtype=torch.float64) / n_bins
    shape = n_bins, 1 + int(columns.max())
    # Samples of a unit in one bin are added up here.
    tables = [
        scipy.sparse.csr_array((w * each, (place, columns)), shape=shape) for each in (1.0, confidence, hits)
    ]

    def bins(counts: Counts) -> Bins:
        across = counts.T.astype(np.float64)
        return Bins(edges, *(torch.from_numpy((table @ across).T) for table in tables))

    return bins


def ranked_weights(of_ranking: Callable[[Ranking], Floats]) -> Callable[..., Weighted]:
    """Return what a measure of rankings needs in the catalogue to be a function of counts."""

    def weighted(**arguments: Any) -> Weighted:  # noqa: ANN401  # those of check_ranked
        ordered = Ordered.from_outcomes(check_ranked(**arguments))
        return Weighted(
            len(ordered),
            lambda counts: of_ranking(ordered.ranking(counts)),
            held=4 * len(ordered),
            weights=ordered.weights,
        )

    return weighted
