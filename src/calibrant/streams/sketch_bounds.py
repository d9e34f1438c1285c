"""Estimates and bounds of rank-based measures when the order within cells of confidence is unknown.

A cell contains predictions of nearly the same confidence. Every order within it is possible, and so are ties;
the bounds are the extremes over all orders. If the lowest and highest confidence of a cell agree, all its
predictions are ties, and it adds no uncertainty.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from calibrant.inputs import Floats
from calibrant.metrics.ranking import Ranking

_Counts: TypeAlias = npt.NDArray[np.int64] | Floats

# From this many samples on, the expansion of a harmonic number is exact to the last digit.
_FEW = 64
# Cumulative weights that differ by less than this share are the same, as in ``calibrant.bins.mass_ends``.
_SAME = 1e-9


@dataclass(frozen=True)
class Bounded:
    """An estimate with bounds that contain the exact value, up to rounding of about 1e-12."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Cells:
    """Cells that are not empty, in ascending order of confidence; of weighted samples with summed weights."""

    hits: _Counts
    misses: _Counts
    confidence_sum: Floats
    lowest: Floats
    highest: Floats

    @cached_property
    def count(self) -> _Counts:
        """Predictions in each cell."""
        return self.hits + self.misses

    @cached_property
    def tied(self) -> npt.NDArray[np.bool_]:
        """Whether all confidences in a cell are equal."""
        return np.equal(self.lowest, self.highest)

    @cached_property
    def totals(self) -> tuple[float, float]:
        """Number of correct and of wrong predictions."""
        return self.hits.sum().item(), self.misses.sum().item()


def bounded_auroc(cells: Cells) -> Bounded:
    """Bound the AUROC of correctness: a pair in the same cell may count 0 or 1 and is estimated as a tie.

    So the error is at most half the probability that a correct and a wrong prediction share a cell.
    """
    value = Ranking(cells.lowest[::-1], cells.hits[::-1], cells.misses[::-1]).auroc()
    if math.isnan(value):
        return Bounded(value, value, value)
    pairs = cells.hits.astype(np.float64) * np.where(cells.tied, 0, cells.misses)
    slack = 0.5 * float(pairs.sum()) / math.prod(cells.totals)
    return Bounded(value, value - slack, value + slack)


def bounded_augrc(cells: Cells) -> Bounded:
    """Bound the AUGRC, which is a linear function of the AUROC."""
    right, wrong = cells.totals
    n = right + wrong
    share, floor = right * wrong / n**2, wrong**2 / (2 * n**2)
    if share == 0:
        return Bounded(floor, floor, floor)
    area = bounded_auroc(cells)
    return Bounded(*(floor + (1 - a) * share for a in (area.value, area.high, area.low)))


def bounded_aurc(cells: Cells) -> Bounded:
    """Bound the AURC: within a cell errors rank last at best, first at worst, and evenly in the estimate."""
    hits, misses = cells.hits[::-1], cells.misses[::-1]
    count, tied = hits + misses, cells.tied[::-1]
    before, n = np.cumsum(count) - count, int(count.sum())
    earlier = (np.cumsum(misses) - misses) * _harmonic(before, count)
    even = misses / count * _ramp(before, count)
    best = np.where(tied, even, _ramp(before + hits, misses))
    worst = np.where(tied, even, _ramp(before, misses) + misses * _harmonic(before + misses, hits))
    value, low, high = (float((earlier + own).sum()) / n for own in (even, best, worst))
    return Bounded(value, min(low, value), max(high, value))


def bounded_excess_aurc(cells: Cells) -> Bounded:
    """Bound the excess over an oracle's AURC, which depends only on the number of wrong predictions."""
    area, (right, wrong) = bounded_aurc(cells), cells.totals
    oracle = float(_ramp(np.array([right]), np.array([wrong]))[0]) / (right + wrong)
    return Bounded(*(max(0.0, a - oracle) for a in (area.value, area.low, area.high)))


def bounded_equal_mass_error(cells: Cells, n_bins: int) -> Bounded:
    """Bound the equal-mass ECE: only the cells in which one bin ends and the next begins are uncertain.

    The error is the length of the path of the cumulative gap ``correct - confidence`` over the ends of the
    bins. At each end the gap lies between bounds. The shortest path moves only when a bound forces it to; the
    longest one follows the bounds.
    """
    n = sum(cells.totals)
    value, low, high = _gaps_at_cuts(cells, _cuts(cells, n_bins))
    total = float((cells.hits - cells.confidence_sum).sum())
    place = shortest = 0.0
    ends, longest = np.zeros(2), np.zeros(2)
    for span in np.append(np.stack([low, high], axis=1), [[total, total]], axis=0):
        forced = min(max(place, span[0]), span[1])
        shortest += abs(forced - place)
        place = forced
        longest = (longest + np.abs(span[:, None] - ends)).max(axis=1)
        ends = span
    length = float(np.abs(np.diff(value, prepend=0.0, append=total)).sum())
    return Bounded(length / n, min(shortest, length) / n, max(float(longest.max()), length) / n)


def bounded_two_bins(cells: Cells) -> Bounded:
    """Bound the averaged two-bin error: between cells the cumulative gap is known, within a cell bounded.

    Within a cell the gap is lowest after all misses and no hits, and highest after all hits; the estimate
    goes straight from its start to its end.
    """
    n = sum(cells.totals)
    own = (cells.hits - cells.confidence_sum) / n
    after = np.cumsum(own)
    before, total = after - own, float(after[-1])

    def error(gap: Floats) -> Floats:
        return np.asarray(gap**2 + (total - gap) ** 2)

    between = (np.append(cells.lowest, 1.0) - np.append(0.0, cells.highest)).clip(min=0)
    known = float((error(np.append(0.0, after)) * between).sum())
    width = cells.highest - cells.lowest
    lowest = before - cells.misses / n * cells.highest
    highest = before + cells.hits / n * (1 - cells.lowest)
    # The mean of a square along a line is that of its ends and its middle, by Simpson's rule.
    straight = (error(before) + 4 * error((before + after) / 2) + error(after)) / 6
    least = error(np.clip(total / 2, lowest, highest))
    most = np.maximum(error(lowest), error(highest))
    value, low, high = (known + float((each * width).sum()) for each in (straight, least, most))
    return Bounded(value, min(low, value), max(high, value))


def _cuts(cells: Cells, n_bins: int) -> _Counts:
    """Return the number, or the weight, of the samples up to the end of each bin of equal mass but the last.

    These are the rules of ``equal_mass_uppers`` and ``mass_ends``.
    """
    n, ends = sum(cells.totals), np.arange(1, n_bins)
    if cells.count.dtype.kind == "i":
        return -(-ends * int(n) // n_bins)
    return np.asarray(ends * (n / n_bins) * (1 - _SAME), dtype=np.float64)


def _gaps_at_cuts(cells: Cells, cuts: _Counts) -> tuple[Floats, Floats, Floats]:
    """Estimate and bound the cumulative gap of the lowest samples up to each cut.

    Samples that tie with the last one before the cut belong to the same bin, so the bin may end anywhere from
    the cut to the end of its cell. Among the ``r`` lowest samples of a cell, at least ``r - misses`` are
    correct, and their mean confidence is at most that of the cell.
    """
    ends = np.cumsum(cells.count)
    cell = np.searchsorted(ends, cuts)
    hits, misses, count = cells.hits[cell], cells.misses[cell], cells.count[cell]
    whole, tied = cells.confidence_sum[cell], cells.tied[cell]
    after = np.cumsum(cells.hits - cells.confidence_sum)[cell]
    before = after - (hits - whole)
    taken = (cuts - (ends[cell] - count)).clip(min=0)

    r = np.clip(misses, taken, count)
    low = before + np.maximum(0, r - misses) - r * (whole / count)
    r = np.clip(hits, taken, count)
    least = np.maximum(r * cells.lowest[cell], whole - (count - r) * cells.highest[cell])
    high = before + np.minimum(hits, r) - least
    value = before + taken / count * (hits - whole)
    return np.where(tied, after, value), np.where(tied, after, low), np.where(tied, after, high)


def _ramp(start: _Counts, length: _Counts) -> Floats:
    """Sum ``i / (start + i)`` for ``i`` from 1 to ``length``."""
    return np.asarray(length - start * _harmonic(start, length))


def _harmonic(start: _Counts, length: _Counts) -> Floats:
    """Sum ``1 / (start + i)`` for ``i`` from 1 to ``length``, to full precision also if it is small."""
    # A difference of digammas would cancel; its expansion about the middle of a step does not.
    x, y = np.maximum(start, _FEW) + 0.5, start + length + 0.5
    sums: Floats = np.log1p(length / x)
    for factor, power in ((1 / 24, 2), (-7 / 960, 4), (31 / 8064, 6)):
        sums += factor * (y**-power - x**-power)
    few = start < _FEW
    first, last = (torch.from_numpy(end[few] + 1.0) for end in (start, start + length))
    sums[few] = (torch.digamma(last) - torch.digamma(first)).numpy()
    return sums
