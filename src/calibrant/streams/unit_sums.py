"""Sums by unit over a stream, and the intervals and tests that follow from them.

The rows of a unit may be anywhere in a stream: in several batches, files, and parts that workers read. So
they are not collected. A hash of its number puts each unit into one of 1,024 buckets, the same one
everywhere, and each bucket has sums of its own. Units are independent, so buckets are, and buckets that are
drawn again vary as units do: a standard error from 1,024 buckets is uncertain by about 2 %, as one from 1,000
resamples is. Memory depends neither on the number of rows nor on that of units.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor

from calibrant.bins import Bins, check_bins, equal_width_index
from calibrant.errors import InputError
from calibrant.inference.chance import could_be_calibrated
from calibrant.inference.draws import RESAMPLES
from calibrant.inference.intervals import Interval, corrected_ends
from calibrant.inference.rows import defined, generator
from calibrant.inference.units import Spread, Units
from calibrant.inputs import Floats, Integers
from calibrant.metrics.cumulative import CumulativeDifference
from calibrant.metrics.names import MEASURES
from calibrant.streams.accumulators import applies
from calibrant.streams.sketch import RankEstimates, cell_index, n_cells, rank_estimates
from calibrant.streams.sketch_bounds import Bounded, Cells
from calibrant.streams.sums import CheckedBatch
from calibrant.streams.totals import NUMBERS, Accumulator, TotalsReduction, weight_sums

#: The accumulator that a measure follows from, and how it follows from the result of that.
Way: TypeAlias = tuple[str, Callable[[Any], Any]]

_LEVEL = 0.95
# Measures of ranks take about a millisecond for each resample, so that they have fewer.
_RANKED = 200
_ROUNDING = 1e-9
# More degrees of freedom are as good as infinitely many.
_MOST_DEGREES = 1e9


def _together(left: Integers, right: Integers) -> Integers:
    """Return the different numbers of both in ascending order."""
    return _different(np.concatenate([left, right])) if len(right) else left


def _different(numbers: Integers) -> Integers:
    """Return the different ones of some numbers in ascending order, faster than ``np.unique``."""
    ordered = np.sort(numbers)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def mixed(numbers: Integers) -> Integers:
    """Return a number for each unit that is as good as random: a different one for each (SplitMix64).

    Example:
        >>> mixed(np.array([1, 2, 1])).tolist()
        [-7995527694508729151, -7541218347953203506, -7995527694508729151]
    """
    z = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))).view(np.int64)


class UnitAccumulator(Accumulator):
    """Sums of rows in each bucket of units, and the number of units.

    Args:
        n_bins: Number of bins of the confidence.
        buckets: Number of buckets, a power of two.
        resolution: That of a :class:`~calibrant.streams.RankSketch` of each bucket; 0 for none.
        most_units: Up to this many units are counted; the number of more is estimated.
        terms: Names of the measures that are means over rows, with commas between them.
    """

    settings = ("n_bins", "buckets", "resolution", "most_units", "terms")
    reductions: ClassVar[Mapping[str, TotalsReduction]] = {
        **NUMBERS,
        "bins": np.add,
        "cells": np.add,
        "sums": np.add,
        "squares": np.add,
        "seen": _together,
    }
    growing = ("seen",)

    def __init__(self, *, n_bins: int, buckets: int, resolution: int, most_units: int, terms: str) -> None:
        self.n_bins, self.buckets, self.resolution = check_bins(n_bins), buckets, resolution
        self.most_units, self.terms = most_units, terms
        super().__init__()
        self._totals |= {
            "bins": np.zeros((3, buckets, n_bins)),
            "cells": np.zeros((3, buckets, n_cells(resolution) if resolution else 0)),
            "sums": np.zeros((len(self.names), buckets)),
            "squares": np.zeros(3),
            "seen": np.empty(0, dtype=np.int64),
        }
        self._waiting: list[Integers] = []

    @property
    def names(self) -> list[str]:
        """Names of the measures that are means over rows."""
        return self.terms.split(",")

    def add(self, batch: CheckedBatch) -> None:
        """Read a batch that has been checked; its rows have units."""
        assert batch.units is not None
        hashes = mixed(batch.units.cpu().numpy())
        # The leading bits are the bucket; half of the numbers are negative.
        place = (hashes >> (65 - self.buckets.bit_length())) + self.buckets // 2
        stated, correct = batch.outcomes.confidence.numpy(), batch.outcomes.correct.numpy()
        c = stated.astype(np.float64)
        w = None if batch.weights is None else batch.weights.numpy()
        columns = w, c if w is None else w * c, correct if w is None else w * correct
        bins = place * self.n_bins + equal_width_index(stated, self.n_bins)
        cells, (_, _, size) = self._totals["cells"][:, :, :0], self._totals["cells"].shape
        if size:
            index = place * size + cell_index(c, self.resolution)
            cells = _counted(index, columns, (self.buckets, size))
        gap = correct - c if w is None else w * (correct - c)
        # A product of vectors would start threads.
        first = (len(c), gap.sum()) if w is None else ((w * w).sum(), (w * gap).sum())
        self._include(
            n=len(batch),
            **weight_sums(batch.weights),
            bins=_counted(bins, columns, (self.buckets, self.n_bins)),
            cells=cells,
            sums=np.stack([self._sums(name, batch, place) for name in self.names]),
            squares=np.array([*first, (gap * gap).sum()]),
            seen=self._totals["seen"][:0],
        )
        self._see(hashes)

    def _sums(self, name: str, batch: CheckedBatch, place: Integers) -> Floats:
        """Return the sum of the terms of a measure in each bucket; 0 if it is not defined."""
        measure = MEASURES[name]
        if not applies(measure, batch.k) or measure.terms is None:
            return np.zeros(self.buckets)
        terms = batch.terms_of(measure).double()
        if batch.weights is not None:
            terms = batch.weights * terms.masked_fill(batch.weights == 0, 0.0)
        return np.asarray(np.bincount(place, weights=terms.numpy(), minlength=self.buckets), dtype=np.float64)

    def _see(self, hashes: Integers) -> None:
        seen, new = self._totals["seen"], hashes[np.append(True, np.diff(hashes) != 0)]
        self._waiting.append(new[new < seen[-1]] if len(seen) == self.most_units else new)
        if sum(map(len, self._waiting)) >= self.most_units:
            self.settle()

    def settle(self) -> None:
        """Count the units that are buffered."""
        if self._waiting:
            both = np.concatenate([self._totals["seen"], *self._waiting])
            self._totals["seen"], self._waiting = _different(both)[: self.most_units], []

    def __getstate__(self) -> dict[str, Any]:
        self.settle()
        return self.__dict__

    def state(self) -> dict[str, int | str | Tensor]:
        """Return a copy of settings and totals as a dictionary of plain values and tensors."""
        self.settle()
        return super().state()

    def merge(self, other: Self) -> None:
        """Add the totals of another accumulator with the same settings, which does not change."""
        self.settle()
        if isinstance(other, UnitAccumulator):
            other.settle()
        super().merge(other)
        self._totals["seen"] = self._totals["seen"][: self.most_units]

    @property
    def n_units(self) -> int:
        """Number of units so far; that of more than ``most_units`` is an estimate in three digits.

        The smallest of many random numbers are the closer to the lowest possible one, the more there are.
        """
        self.settle()
        seen = self._totals["seen"]
        if len(seen) < self.most_units:
            return len(seen)
        share = (float(seen[-1]) + 2.0**63) / 2.0**64
        return int(float(f"{(len(seen) - 1) / share:.3g}"))

    def compute(self) -> "UnitSums":
        """Return the sums of all buckets that have rows."""
        self.settle()
        seen = self._seen()
        used = np.flatnonzero(seen["bins"][0].sum(axis=1))
        effective = self.effective
        return UnitSums(
            n_units=self.n_units,
            are_rows=len(seen["seen"]) == self.n,
            bins=seen["bins"][:, used],
            cells=seen["cells"][:, used],
            sums={name: sums[used] for name, sums in zip(self.names, seen["sums"], strict=True)},
            squares=seen["squares"],
            scale=None if effective is None else effective / self.weight,
            resolution=self.resolution,
            is_counted=len(seen["seen"]) < self.most_units,
        )


@dataclass(frozen=True, eq=False)
class UnitSums:
    """Sums of rows in buckets of units; a table has the counts, the confidences and the hits.

    Attributes:
        n_units: Number of units.
        are_rows: Whether every row is a unit.
        bins: Table of bins of equal width, shape ``(3, buckets, bins)``.
        cells: Table of the cells of a rank sketch, shape ``(3, buckets, cells)``; without cells if there is
            no sketch.
        sums: The sum of the terms of each measure that is a mean.
        squares: Sums over rows of the squared weight, times ``correct - confidence``, and times its square.
        scale: What counts of weighted rows are multiplied by to add up to their effective number; None
            without weights.
        resolution: That of the rank sketch.
        is_counted: Whether the number of units is no estimate.
    """

    n_units: int
    are_rows: bool
    bins: Floats
    cells: Floats
    sums: Mapping[str, Floats]
    squares: Floats
    scale: float | None
    resolution: int
    is_counted: bool

    @property
    def n_buckets(self) -> int:
        """Number of buckets that have rows: of units, if these are few."""
        return int(self.bins.shape[1])

    def intervals(
        self, values: Mapping[str, float], ways: Mapping[str, Way], fine: Cells, *, seed: int = 0
    ) -> dict[str, Interval]:
        """Return 95 % intervals of measures by name; those that need other sums than these are left out.

        Args:
            values: The measures of all rows.
            ways: The accumulator that each measure follows from, and how.
            fine: The cells of the rank sketch of all rows.
            seed: Equal seeds give equal intervals.
        """
        if self.n_units < 2:
            raise InputError("units: expected at least two different ones, got 1; one unit has no variation")
        rng = generator(seed)
        times = Units.of(None, self.n_buckets).draw_counts(RESAMPLES, rng).astype(np.float64)
        size = times @ self.bins[0].sum(axis=1)
        sources = {"outcomes": _Source(self.bins, times, self._to_bins, self.spread)}
        if self.cells.size:
            to_ranks = partial(self._to_ranks, _coarse(fine, self.resolution))
            sources["ranks"] = _Source(self.cells, times[:_RANKED], to_ranks, self.spread)
        found = {}
        for name, value in values.items():
            source, compute = ways[name]
            if not np.isfinite(value):
                continue
            if name in self.sums:
                found[name] = _interval(value, times @ self.sums[name] / size, self.spread)
            elif source in sources:
                of_all = compute if source == "outcomes" else partial(_values, compute)
                found[name] = sources[source].interval(value, of_all, rng, at_zero=MEASURES[name].noise_floor)
        return found

    def _to_bins(self, table: Floats) -> Bins:
        """Return bins from their counts, confidences and hits."""
        edges = np.arange(table.shape[-1] + 1) / table.shape[-1]
        return Bins(*map(torch.from_numpy, (edges, *(table if self.scale is None else self.scale * table))))

    def _to_ranks(self, ends: Floats, tables: Floats) -> list[RankEstimates]:
        """Return the measures of cells with these lowest and highest confidences."""
        found = []
        for table in np.moveaxis(tables, 1, 0):
            used = table[0] > 0
            count, confidence, hits = table[:, used]
            whole = self.scale is None and not (hits % 1).any()
            right, wrong = (each.astype(np.int64) if whole else each for each in (hits, count - hits))
            cells = Cells(right, wrong, confidence, *ends[:, used])
            found.append(rank_estimates(cells, self.bins.shape[2], weighted=self.scale is not None))
        return found

    @cached_property
    def _squares(self) -> tuple[float, float]:
        """Squares of what rows, and buckets of units, differ by from the mean gap, summed."""
        count, confidence, hits = self.bins.sum(axis=2)
        gap = float((hits - confidence).sum() / count.sum())
        of_rows = float((self.squares * [gap * gap, -2 * gap, 1.0]).sum())
        return max(of_rows, 0.0), float(np.square(hits - confidence - gap * count).sum())

    @cached_property
    def spread(self) -> Spread:
        """What few units do not show of the variance of the mean gap, as in ``Units.spread``."""
        sizes, (of_rows, of_units) = self.bins[0].sum(axis=1), self._squares
        alone = sizes * (self.squares[0] / sizes.sum())
        pairs = float((sizes * sizes - alone).sum()) * of_rows / float(alone.sum())
        correlation = min(max((of_units - of_rows) / pairs, 0.0), 1.0) if pairs > 0 else 0.0
        return Spread.of(sizes, alone + correlation * (sizes * sizes - alone))

    def difference(self, bins: Bins, n: int) -> "UnitDifference":
        """Return the cumulative difference of ``n`` rows at the edges of their bins."""
        used, (of_rows, of_units) = bins.count > 0, self._squares
        # As ``effective_rows`` of what hits differ by from their confidences; unknown if they do not.
        effective = min(float(bins.count.sum()), float(self.n_buckets))
        if of_rows > 0:
            ratio = self.spread.ratio(_LEVEL) ** 2 * of_units / of_rows
            effective = float(bins.count.sum()) / max(1.0, ratio)
        return UnitDifference(
            confidence=bins.confidence[used].clamp(0, 1).numpy(),
            count=bins.count[used].numpy(),
            hits=bins.correct_sum[used].numpy(),
            chance=_Chance.of(self.bins[:, :, used.numpy()], self.spread),
            scale=1.0 if self.scale is None else self.scale,
            numbers=(n, self.n_units, effective),
        )


@dataclass(frozen=True, eq=False)
class _Source:
    """A table of buckets that measures are computed from, and its resamples.

    Attributes:
        table: Counts, confidences and hits, shape ``(3, buckets, n)``.
        times: How often each resample contains each bucket.
        make: Returns what measures of several resamples are computed from, for sums of shape ``(3, r, n)``.
        spread: What few units do not show of the variance.
    """

    table: Floats
    times: Floats
    make: Callable[[Floats], Any]
    spread: Spread

    @cached_property
    def _resamples(self) -> Any:  # noqa: ANN401  # what measures are computed from
        return self.make(np.stack([self.times @ each for each in self.table]))

    @cached_property
    def _chance(self) -> "_Chance":
        return _Chance.of(self.table, self.spread)

    def interval(
        self, value: float, compute: Callable[[Any], Any], rng: np.random.Generator, *, at_zero: bool
    ) -> Interval:
        """Return the interval of a measure; it begins at 0 if a calibrated model can have the value."""
        count, confidence, hits = self.table.sum(axis=1)

        def measured(hits: Floats) -> float:
            return float(
                compute(self.make(np.stack([count, confidence, np.clip(hits, 0, count)])[:, None]))[0]
            )

        own = measured(hits)
        # The cells of buckets are wider than those of all rows, which changes a measure a bit.
        found = _interval(value, np.asarray(compute(self._resamples)) + (value - own), self.spread)
        if at_zero and found.low > 0:
            draw = lambda: measured(confidence + self._chance.draw(1, rng)[0])  # noqa: E731  # short
            if could_be_calibrated(own, draw, level=_LEVEL):
                return replace(found, low=0.0)
        return found


@dataclass(frozen=True, eq=False)
class _Chance:
    """What hits minus confidences of each bin or cell are by chance, if the model is calibrated.

    Their covariance is that between buckets, around the gap of the bin. It is estimated, so draws are those
    of a multivariate t-distribution.

    Attributes:
        rest: What each bucket differs by from the gap of its bins, shape ``(buckets, n)``; or fewer rows with
            the same covariance.
        spread: What few units do not show of the variance.
    """

    rest: Floats
    spread: Spread

    @classmethod
    def of(cls, table: Floats, spread: Spread) -> Self:
        """Return what follows from the counts, confidences and hits of each bucket."""
        count, confidence, hits = table
        difference, total = hits - confidence, count.sum(axis=0)
        gap = difference.sum(axis=0) / np.where(total > 0, total, 1)
        rest = spread.scale * (difference - count * gap)
        # A triangle has the covariance of many buckets, and fewer numbers are drawn for it.
        if len(rest) > rest.shape[1]:
            rest = np.asarray(np.linalg.qr(rest, mode="r"), dtype=np.float64)
        return cls(rest, spread)

    @property
    def deviation(self) -> float:
        """Standard deviation of the sum over all bins."""
        return float(np.linalg.norm(self.rest.sum(axis=1)))

    def draw(self, n_draws: int, rng: np.random.Generator) -> Floats:
        """Return the differences of some draws, shape ``(n_draws, n)``."""
        drawn = rng.standard_normal((n_draws, len(self.rest))) @ self.rest
        degrees = min(self.spread.degrees, _MOST_DEGREES)
        return np.asarray(drawn * np.sqrt(degrees / rng.chisquare(degrees, size=(n_draws, 1))))


@dataclass(frozen=True, eq=False)
class UnitDifference(CumulativeDifference):
    """The cumulative difference of bins of rows that depend on each other.

    Attributes:
        chance: The difference of each bin by chance, before counts are scaled.
        scale: What counts are multiplied by.
        numbers: Numbers of samples and of units, and how many independent samples would know as much.
    """

    chance: _Chance
    scale: float
    numbers: tuple[int, int, float]

    @property
    def n(self) -> int:
        """Number of samples."""
        return self.numbers[0]

    @property
    def n_units(self) -> int:
        """Number of units."""
        return self.numbers[1]

    @property
    def effective(self) -> float:
        """Number of equal samples that would know the accuracy as well."""
        return self.numbers[2]

    @property
    def deviation(self) -> float:
        """Standard deviation of the total difference, as units differ; at least that of independent rows."""
        return max(self.scale * self.chance.deviation, float(np.sqrt(self.variances.sum())))

    def _drawn(self, n_resamples: int, rng: np.random.Generator) -> Floats:
        return np.asarray(self.count * self.confidence + self.scale * self.chance.draw(n_resamples, rng))


def _interval(value: float, replicates: Floats, spread: Spread) -> Interval:
    known = defined(replicates)
    low, high = corrected_ends(value, known, level=_LEVEL, spread=spread)
    # What is never negative, or never above 1, on any resample is not so on the population.
    low = max(low, 0.0) if known.min() >= -_ROUNDING else low
    high = min(high, 1.0) if known.max() <= 1 + _ROUNDING else high
    error, dropped = float(known.std(ddof=1)), len(replicates) - len(known)
    return Interval(value, min(low, value), max(high, value), _LEVEL, error, len(known), dropped)


def _counted(index: Integers, columns: tuple[Any, ...], shape: tuple[int, int]) -> Floats:
    """Return the sums of columns at the places of a table; the first may be None, for ones."""
    sums = [np.bincount(index, weights=each, minlength=shape[0] * shape[1]) for each in columns]
    return np.stack(sums).reshape(-1, *shape).astype(np.float64, copy=False)


def _coarse(fine: Cells, resolution: int) -> Floats:
    """Return the lowest and highest confidence in each of wider cells, of which none cuts a narrow one."""
    place = cell_index(fine.lowest, resolution)
    lowest, highest = (np.full(n_cells(resolution), end) for end in (np.inf, -np.inf))
    np.minimum.at(lowest, place, fine.lowest)
    np.maximum.at(highest, place, fine.highest)
    return np.stack([lowest, highest])


def _values(compute: Callable[[RankEstimates], Bounded], estimates: list[RankEstimates]) -> list[float]:
    return [compute(each).value for each in estimates]
