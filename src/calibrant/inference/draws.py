"""Bootstrap: a measure on units that are drawn again, in the fastest of four ways that allows it.

- Means and other functions of counts: how often each unit is drawn (:class:`CountResampler`).
- A mean over many rows: the counts of cells of similar terms are drawn (:class:`TermResampler`).
- A measure of bins of many rows: the counts of fine bins are drawn (:class:`BinResampler`).
- Any other function: rows are copied, and it is called again (:class:`RowResampler`).
"""

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import Tensor

from calibrant.bins import Binning, Bins, top_label_bins
from calibrant.inference.memory import continued, key_of, remembered
from calibrant.inference.rows import RowArrays, apply_to, errors_of, take_rows
from calibrant.inference.units import ALONE, Indices, Spread, Units
from calibrant.inputs import ArrayLike, Floats, Progress, check_count
from calibrant.metrics.counted import (
    Counts,
    EqualMass,
    Weighted,
    binned_weights,
    mean_weights,
    summed_weights,
)
from calibrant.metrics.measure import Measure
from calibrant.metrics.names import measure_of
from calibrant.outcomes import Outcomes, check_outcomes, checked_weights, counts_of

OfBins: TypeAlias = Callable[[Bins], Tensor]

#: Number of resamples, unless fewer are asked for or affordable: the same for tables, pages and gates.
RESAMPLES = 1000
# Fewer resamples would not give a usable interval.
_ENOUGH = 100
# Up to this many rows are drawn even for binned measures: this is exact and fast enough.
_FEW = 10_000
# Up to this many units, terms are counted one by one; more are sorted into cells.
_EXACT, _CELLS = 1 << 15, 1024
# Bins of equal width have the same edges in every resample. Those of equal count move to edges of fine bins.
_FINE_WIDTH, _FINE_MASS = 128, 2048
#: Resamples of smooth measures move each confidence to the mean of its cell: so many of equal width.
POINTS = 1 << 10
# Draws of more units than this are not remembered: they would fill the memory.
_MOST_UNITS = 1 << 15
# Nor is what several measures read of resamples of more numbers than this.
_MOST_SHARED = 1 << 18
# If more than this share of the outcomes differ, their counts are not added up.
_MOST_KINDS = 0.75
# Numbers in memory at once: of terms, of fine bins, and of counts, which fit into the processor's cache.
_BLOCK, _BIN_BLOCK, _COUNT_BLOCK = 1 << 20, 1 << 19, 1 << 18


class Resampler(ABC):
    """A sample whose measure can be computed again on resamples."""

    #: Whether the measure is a mean over samples, which has no bias.
    is_mean = False
    #: What resamples of few units do not show of the variance.
    spread = ALONE
    #: Numbers computed for each resample; millions take a few hundredths of a second.
    work = 0

    @property
    @abstractmethod
    def value(self) -> float:
        """The measure of the sample itself."""

    @property
    def at_once(self) -> int:
        """Number of resamples that are drawn together."""
        return 1

    @abstractmethod
    def draw(self, n_resamples: int, rng: np.random.Generator) -> Floats:
        """Return the measure of each of a few resamples; NaN where it is undefined."""

    def replicates(
        self, n_resamples: int, rng: np.random.Generator, progress: Progress | None = None
    ) -> Floats:
        """Return the measure of each resample; NaN where it is undefined."""
        values = np.empty(n_resamples)
        for start in range(0, n_resamples, self.at_once):
            stop = min(start + self.at_once, n_resamples)
            values[start:stop] = self.draw(stop - start, rng)
            if progress is not None:
                progress("resamples", stop, n_resamples)
        return values


def affordable(n_resamples: int, work: int, max_work: int | None) -> int:
    """Return how many resamples ``max_work`` numbers allow, but at least 100 if that many are wanted."""
    if max_work is None or work == 0:
        return n_resamples
    allowed = check_count(max_work, "max_work", at_least=0, at_most=sys.maxsize) // work
    return min(n_resamples, max(_ENOUGH, allowed))


def draw_all(
    resamplers: Sequence[Resampler],
    n_resamples: int,
    rng: np.random.Generator,
    progress: Progress | None = None,
) -> list[Floats]:
    """Return the measures of several models on the same resamples, with the same random numbers for each."""
    drawn: list[Floats] = []
    before, total = rng.bit_generator.state, n_resamples * len(resamplers)
    for each in resamplers:
        rng.bit_generator.state = before
        done = n_resamples * len(drawn)

        def report(what: str, now: int, _: int, done: int = done) -> None:
            if progress is not None:
                progress(what, done + now, total)

        drawn.append(each.replicates(n_resamples, rng, report))
    return drawn


@dataclass(frozen=True, eq=False)
class TermResampler(Resampler):
    """Resamples of a mean of many terms, one per unit.

    The terms are sorted into 1,024 cells of equal width. The number of terms in each cell of a resample is
    multinomial and drawn exactly; their sum is drawn from the normal distribution with the mean and the
    variance of the cell. So the variance of the mean is exact; only the skewness *within* a narrow cell is
    lost. For terms with at most two values, such as hits, nothing is lost.
    """

    terms: Floats
    spread: Spread = ALONE

    is_mean = True

    @property
    def value(self) -> float:
        """Mean of the terms."""
        return float(self.terms.mean())

    @property
    def at_once(self) -> int:
        """Number of resamples whose counts fill a block of memory."""
        return _BLOCK // _CELLS

    def draw(self, n_resamples: int, rng: np.random.Generator) -> Floats:
        """Return the mean of each resample."""
        n = len(self.terms)
        count, mean, variance = self._cells
        counts = rng.multinomial(n, count / n, size=n_resamples)
        # Given the counts, the sums of the cells are independent and normal, so their total is normal.
        noise = np.sqrt(counts @ variance) * rng.standard_normal(n_resamples)
        return np.asarray((counts @ mean + noise) / n)

    @cached_property
    def _cells(self) -> tuple[Floats, Floats, Floats]:
        """Count, mean and variance of the terms in each non-empty cell of equal width."""
        low, high = float(self.terms.min()), float(self.terms.max())
        scale = (_CELLS - 1) / (high - low) if high > low else 0.0
        count, total, squares = np.zeros((3, _CELLS))
        for start in range(0, len(self.terms), _BLOCK):
            block = self.terms[start : start + _BLOCK] - low
            place = (block * scale).astype(np.intp)
            count += np.bincount(place, minlength=_CELLS)
            total += np.bincount(place, weights=block, minlength=_CELLS)
            squares += np.bincount(place, weights=block * block, minlength=_CELLS)
        used = count > 0
        count, mean, square = count[used], total[used] / count[used], squares[used] / count[used]
        return count, mean + low, (square - mean * mean).clip(min=0.0)


@dataclass(frozen=True, eq=False)
class BinResampler(Resampler):
    r"""Resamples of a measure that depends only on the count, the confidence and the hits of each bin.

    Every bin is divided into fine bins, and each confidence is replaced by the mean of its fine bin. Given
    this, the bootstrap is exact: the numbers of misses and hits in the fine bins of a resample are
    multinomial. The cost of a resample does not depend on the number of samples.

    The approximation ignores the variance of the confidences within a fine bin. For equal width it is below
    :math:`1 / (4 \cdot 128^2)`, compared with a variance of the hits of about 0.1. For equal count, the edges
    of a resample are exact to 1/2048 of the samples. The value itself is exact.
    """

    fine: Bins
    n_bins: int
    binning: Binning
    of_bins: OfBins

    @classmethod
    def from_outcomes(
        cls, outcomes: Outcomes, of_bins: OfBins, *, n_bins: int, binning: Binning
    ) -> "BinResampler":
        """Fill the fine bins in one pass over the samples."""
        at_least = _FINE_MASS if binning == "mass" else _FINE_WIDTH
        fine = fine_bins(outcomes, n_bins=n_bins, binning=binning, at_least=at_least)
        return cls(fine, n_bins, binning, of_bins)

    @property
    def value(self) -> float:
        """The measure of the sample itself, which is exact."""
        return self._of_fine(np.stack([self.fine.count, self.fine.confidence_sum, self.fine.correct_sum]))

    @property
    def at_once(self) -> int:
        """Number of resamples whose counts fill a block of memory."""
        return max(1, _BIN_BLOCK // len(self._cells))

    def draw(self, n_resamples: int, rng: np.random.Generator) -> Floats:
        """Return the measure of bins whose counts are drawn again."""
        n = self._cells.sum()
        return self._measure(rng.multinomial(n, self._cells / n, size=n_resamples))

    def calibrated(self, rng: np.random.Generator) -> float:
        """Return the measure if the hits of each fine bin are drawn with its mean confidence."""
        return float(self.draw_calibrated(1, rng)[0])

    def draw_calibrated(self, n_draws: int, rng: np.random.Generator) -> Floats:
        """Return the measure of several draws of the hits of each fine bin with its mean confidence."""
        count, confidence = self.fine.count.numpy(), self.fine.confidence_sum.numpy()
        used = count > 0
        hits = np.zeros((n_draws, len(count)), dtype=np.int64)
        rate = (confidence[used] / count[used]).clip(0.0, 1.0)
        hits[:, used] = rng.binomial(count[used], rate, size=(n_draws, len(rate)))
        fixed = np.stack([count, confidence]).reshape(2, 1, self.n_bins, -1).sum(axis=-1)
        drawn = hits.reshape(1, n_draws, self.n_bins, -1).sum(axis=-1)
        return self._of_sums(np.concatenate([np.repeat(fixed, n_draws, axis=1), drawn]))

    @cached_property
    def _cells(self) -> Counts:
        """Return the misses and hits of each fine bin, in turn."""
        count, hits = self.fine.count.numpy(), self.fine.correct_sum.numpy()
        return np.stack([count - hits, hits], axis=1).ravel()

    def _measure(self, cells: Counts) -> Floats:
        hits = cells[:, 1::2]
        count = cells[:, 0::2] + hits
        confidence = (self.fine.confidence_sum / self.fine.count.clamp(min=1)).numpy()
        sums = np.stack([count, count * confidence, hits])
        if self.binning == "width":
            return self._of_sums(sums.reshape(3, len(cells), self.n_bins, -1).sum(axis=-1))
        return self._of_sums(_regroup(sums, self.n_bins))

    def _of_fine(self, fine: Floats) -> float:
        # The edges of the fine bins include those of the bins, for both kinds of binning.
        return float(self._of_sums(fine.reshape(3, self.n_bins, -1).sum(axis=-1)))

    def _of_sums(self, sums: Floats) -> Floats:
        edges = self.fine.edges[:: len(self.fine.count) // self.n_bins]
        values: Floats = self.of_bins(Bins(edges, *torch.from_numpy(sums))).numpy()
        return values


def fine_bins(outcomes: Outcomes, *, n_bins: int, binning: Binning, at_least: int) -> Bins:
    """Divide each bin into equally many fine bins, with a total of at least ``at_least``."""
    parts = -(-at_least // check_count(n_bins, "n_bins"))
    return top_label_bins(
        confidence=outcomes.confidence, correct=outcomes.correct, n_bins=n_bins * parts, binning=binning
    )


def _regroup(sums: Floats, n_bins: int) -> Floats:
    """Merge fine bins of shape ``(3, r, fine)`` into bins of equal count; no fine bin is split."""
    cumulative = sums.cumsum(axis=-1)
    ends = EqualMass(cumulative[0].astype(np.int64)).ends(n_bins)
    return np.diff(np.take_along_axis(cumulative, ends[None], axis=-1), axis=-1, prepend=0.0)


@dataclass(frozen=True, eq=False)
class CountResampler(Resampler):
    """Resamples of a measure that is a function of counts: exact, with the same draws as resampled rows.

    Attributes:
        measured: The measure of the sample itself.
        weighted: The measure as a function of how often each row is counted.
        units: What is drawn.
        is_mean: Whether the measure is a mean over samples, which has no bias.
        spread: What resamples of few units do not show of the variance.
        key: What tells the measure and its rows from others, if they are remembered; the rows come first.
        kinds: A table of ones that adds up the counts of rows of a kind, if the measure takes those of kinds.
    """

    measured: float
    weighted: Weighted
    units: Units
    is_mean: bool = False
    spread: Spread = ALONE
    key: Hashable = None
    kinds: "scipy.sparse.csr_array | None" = None

    @property
    def value(self) -> float:
        """The measure of the sample itself."""
        return self.measured

    @property
    def at_once(self) -> int:
        """Number of resamples whose numbers fill a block of memory."""
        return max(1, _COUNT_BLOCK // max(self.weighted.n, self.weighted.held))

    @property
    def work(self) -> int:  # type: ignore[override]  # depends on the sample
        """Numbers computed for each resample; those of a mean are few."""
        return 0 if self.is_mean else max(len(self.units.code), self.weighted.held, self.weighted.work)

    def draw(self, n_resamples: int, rng: np.random.Generator) -> Floats:
        """Return the measure of units drawn with replacement; NaN where it is undefined."""
        return self.weighted.of(self._counts(n_resamples, rng))

    def _counts(self, n_resamples: int, rng: np.random.Generator) -> Counts:
        def drawn() -> npt.NDArray[np.unsignedinteger[Any]]:
            times = self.units.draw_counts(n_resamples, rng)
            return times.astype(np.min_scalar_type(times.max()))

        # All measures of equally many units share one set of draws.
        key = ("counts", self.units.n, n_resamples) if self.units.n <= _MOST_UNITS else None
        counts = self.units.of_rows(continued(key, rng, drawn).astype(np.int64))
        return counts if self.kinds is None else np.ascontiguousarray((self.kinds @ counts.T).T)

    def replicates(
        self, n_resamples: int, rng: np.random.Generator, progress: Progress | None = None
    ) -> Floats:
        """Return the measure of each resample; those of few kinds are measured many at once."""
        key = None if self.key is None else (self.key, n_resamples)
        return continued(key, rng, lambda: self._replicates(n_resamples, rng, progress))

    def _replicates(self, n_resamples: int, rng: np.random.Generator, progress: Progress | None) -> Floats:
        values: list[Floats] = []
        waiting: list[Counts] = []
        drawn = repr(rng.bit_generator.state)
        block = max(1, _COUNT_BLOCK // len(self.units.code))
        for start in range(0, n_resamples, block):
            waiting.append(self._counts(min(block, n_resamples - start), rng))
            if sum(map(len, waiting)) < self.at_once and start + block < n_resamples:
                continue
            counts: Counts = np.concatenate(waiting, dtype=np.int64)
            waiting = []
            blocks = range(0, len(counts), self.at_once)
            values.extend(
                self._measured(counts[first : first + self.at_once], (drawn, n_resamples, start, first))
                for first in blocks
            )
            if progress is not None:
                progress("resamples", min(start + block, n_resamples), n_resamples)
        return np.concatenate(values)

    def _measured(self, counts: Counts, which: Hashable) -> Floats:
        """Return the measure of some resamples; what it reads of them is shared with other measures."""
        steps = self.weighted.steps
        if steps is None or not isinstance(self.key, tuple) or self.work > _MOST_SHARED:
            return self.weighted.of(counts)
        key = (self.key[0], steps.name, len(counts), which)
        return steps.measure(remembered(key, lambda: steps.read(counts)))


@dataclass(frozen=True, eq=False)
class RowResampler(Resampler):
    """Resamples of a measure that is recomputed from the drawn rows: exact, for any measure.

    Attributes:
        measured: The measure of the sample itself.
        measure: Takes indices of rows and returns the measure of these rows.
        units: What is drawn.
        spread: What resamples of few units do not show of the variance.
    """

    measured: float
    measure: Callable[[Indices], float]
    units: Units
    spread: Spread = ALONE

    @property
    def value(self) -> float:
        """The measure of the sample itself."""
        return self.measured

    def draw(self, n_resamples: int, rng: np.random.Generator) -> Floats:
        """Return the measure of units drawn with replacement; NaN where it is undefined."""
        return np.array([self.measure(self.units.draw_rows(rng)) for _ in range(n_resamples)])


def resampler_of(
    metric: Callable[..., Any],
    rows: RowArrays,
    options: Mapping[str, Any],
    units: Units,
    *,
    value: float | None = None,
    exact: bool = False,
) -> Resampler:
    """Return resamples of a measure, in the fastest way that allows it.

    Args:
        metric: The measure.
        rows: What it is measured on.
        options: Options of the measure.
        units: What is drawn.
        value: The measure of the rows, if it is known.
        exact: Whether the resamples must be those of rows, so that two models can have the same.
    """
    measure = measure_of(metric)
    split = {"units": units.code} if measure is not None and measure.cross_fits and not units.are_rows else {}
    terms = terms_of(measure, {**rows, **options, **split})
    if terms is not None:
        return mean_resampler(terms, rows.get("weights"), units)
    if measure is not None and measure.of_bins is not None and "weights" not in rows:
        bins, outcomes = bin_options(measure, options), check_outcomes(**rows)
        if len(outcomes) > _FEW and bins is not None and units.are_rows and not exact:
            return BinResampler.from_outcomes(outcomes, measure.of_bins, **bins)
        rows = {"confidence": outcomes.confidence, "correct": outcomes.correct}
    value = apply_to(metric, rows, options) if value is None else value
    name = "" if measure is None else measure.function.__qualname__
    of_all = exact and measure is not None and measure.smooth
    key = key_of({**rows, "units": units.code}, name, sorted(options.items()), of_all)
    spread = ALONE if units.are_rows else units.spread(errors_of(rows), _counts(rows.get("weights"), units))
    if not units.are_rows and measure is not None and measure.of_bins is not None:
        bins = bin_options(measure, options)
        if bins is not None and bins["binning"] == "width":
            summed = summed_weights(check_outcomes(**rows), measure.of_bins, bins["n_bins"], units.code)
            return CountResampler(value, summed, Units.of(None, units.n), spread=spread, key=key)
    kinds = None
    if measure is not None and measure.reads == "outcomes" and not {"weights", "score"} & {*rows, *options}:
        cells = POINTS if measure.smooth and not exact else None
        outcomes, kinds = merged(check_outcomes(**rows), cells=cells)
        pairs = {"confidence": outcomes.confidence, "correct": outcomes.correct}
    weighted = weighted_of(measure, rows if kinds is None else pairs, options)
    if weighted is not None:
        return CountResampler(value, weighted, units, spread=spread, key=key, kinds=kinds)
    return RowResampler(value, lambda drawn: apply_to(metric, take_rows(rows, drawn), options), units, spread)


def merged(
    outcomes: Outcomes, *, cells: int | None = None
) -> "tuple[Outcomes, scipy.sparse.csr_array | None]":
    """Return one outcome of each kind, and a table of kinds by outcomes; None if most differ.

    A measure of counts cannot tell equal outcomes apart, so it needs only the sum of their counts. With a
    number of cells, each confidence is replaced by the mean of its cell of equal width before.
    """
    if cells is not None:
        values = outcomes.confidence.cpu().double().numpy()
        cell = (values * cells).astype(np.intp)
        mean = np.bincount(cell, weights=values) / np.bincount(cell).clip(min=1)
        outcomes = Outcomes(torch.from_numpy(mean[cell].clip(max=1.0)), outcomes.correct)
    keys = outcomes.keys()
    kinds = np.unique(keys)
    if len(kinds) > _MOST_KINDS * len(keys):
        return outcomes, None
    n, place = len(keys), np.searchsorted(kinds, keys)
    table = scipy.sparse.csr_array((np.ones(n, dtype=np.int64), (place, np.arange(n))), shape=(len(kinds), n))
    return Outcomes.from_keys(kinds), table


def _counts(weights: ArrayLike | None, units: Units) -> Floats:
    """Return how much each row counts."""
    n = len(units.code)
    return counts_of(checked_weights(weights, n), n).numpy(force=True)


def mean_resampler(terms: Floats, weights: ArrayLike | None, units: Units) -> Resampler:
    """Return resamples of a mean over rows: of one term per unit if units have the same size."""
    w = _counts(weights, units)
    spread = units.spread(terms, w)
    sizes, alone = units.sums(w), Units.of(None, units.n)
    means = units.sums(np.where(w > 0, w * terms, 0.0)) / np.where(sizes > 0, sizes, 1.0)
    if np.ptp(sizes) <= 1e-12 * sizes.max():
        if units.n > _EXACT:
            return TermResampler(means, spread)
        return CountResampler(float(means.mean()), mean_weights(means), alone, is_mean=True, spread=spread)
    if units.n > _EXACT and not units.are_rows:
        # A ratio of two sums over so many units is as good as linear in both.
        mean = float(sizes @ means / sizes.sum())
        return TermResampler(mean + sizes / sizes.mean() * (means - mean), spread)
    weighted = mean_weights(means, torch.from_numpy(sizes))
    return CountResampler(weighted.value, weighted, alone, spread=spread)


def weighted_of(measure: Measure | None, rows: RowArrays, options: Mapping[str, Any]) -> Weighted | None:
    """Return a measure of these rows as a function of counts; None if its entry has no such form."""
    if measure is None:
        return None
    if measure.weighted is not None:
        return measure.weighted(**rows, **options)
    bins = bin_options(measure, options)
    if measure.of_bins is None or bins is None:
        return None
    return binned_weights(check_outcomes(**rows), measure.of_bins, **bins)


def bin_options(measure: Measure, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the number and kind of bins; None if other options ask for a definition without bins."""
    # Measures that pass ``n_bins`` and ``binning`` on have the defaults of the bins.
    own = inspect.signature(measure.function).parameters
    parameters = {**inspect.signature(top_label_bins).parameters, **own}
    chosen = {name: options.get(name, parameters[name].default) for name in ("n_bins", "binning")}
    others = {name: value for name, value in options.items() if name not in chosen}
    if all(name in parameters and value == parameters[name].default for name, value in others.items()):
        return chosen
    return None


def terms_of(measure: Measure | None, arguments: Mapping[str, Any]) -> Floats | None:
    """Return the terms whose mean is the measure; None if its catalogue entry has no terms."""
    if measure is None or measure.terms is None:
        return None
    # Wrong arguments raise the same error as in the measure itself.
    inspect.signature(measure.function).bind(**arguments)
    arguments = {name: value for name, value in arguments.items() if name != "weights"}
    values: Floats = measure.terms(**arguments).double().cpu().numpy()
    return values
