"""Rank sketch: bounds on measures that depend on the order of all confidences, from a stream."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from calibrant.bins import check_bins
from calibrant.errors import InputError
from calibrant.inputs import Floats, check_count
from calibrant.outcomes import Outcomes
from calibrant.streams.sketch_bounds import (
    Bounded,
    Cells,
    bounded_augrc,
    bounded_aurc,
    bounded_auroc,
    bounded_equal_mass_error,
    bounded_excess_aurc,
    bounded_two_bins,
)
from calibrant.streams.sums import CheckedBatch
from calibrant.streams.totals import NUMBERS, Accumulator, TotalsReduction, add_pairs, weight_sums

# Above 1/2, the distance of a float64 from 1 is a multiple of 2**-53.
_OCTAVES = 52
_FEWEST = 64


@dataclass(frozen=True)
class RankEstimates:
    """Rank-based measures of ``n`` samples, each with bounds that contain the exact value."""

    n: int
    equal_mass_error: Bounded
    auroc_correctness: Bounded
    aurc: Bounded
    excess_aurc: Bounded
    augrc: Bounded
    two_bin_error: Bounded


class RankSketch(Accumulator):
    """Histogram of confidences, correct and wrong, from which rank-based measures are bounded.

    To sort a stream takes as much memory as the stream; to count it in narrow cells of confidence takes
    constant memory, and only the order within a cell is lost. The effect of that is computed from the cells,
    so each estimate has bounds that always hold, without assumptions.

    The confidences of networks are often very close to 1, so cells narrow towards 0 and 1: between distances
    of ``2**-e`` and ``2**-(e + 1)`` from the nearer end there are ``resolution / 2**(e // 2)`` cells, but not
    fewer than 64, and 0 and 1 have their own. The edges are sums of powers of two, the same on every machine.
    Each cell stores the counts of correct and wrong predictions and the sum, minimum and maximum of their
    confidences: where minimum and maximum agree, all are ties. Of weighted predictions the counts are sums of
    weights. The default takes 2.6 MB.

    Args:
        resolution: Number of cells between the confidences 1/2 and 3/4, a power of two up to 2**20. Twice
            as many take twice the memory and about halve the distance between the bounds.

    Example:
        >>> sketch = RankSketch()
        >>> sketch.update(confidence=[0.9, 0.8], correct=[True, False])
        >>> sketch.update(confidence=[0.7, 0.6], correct=[True, False])
        >>> sketch.compute().auroc_correctness
        Bounded(value=0.75, low=0.75, high=0.75)
    """

    settings = ("resolution",)
    reductions: ClassVar[Mapping[str, TotalsReduction]] = {
        **NUMBERS,
        "hits": np.add,
        "misses": np.add,
        "confidence_sum": add_pairs,
        "lowest": np.minimum,
        "highest": np.maximum,
    }

    def __init__(self, *, resolution: int = 8192) -> None:
        self.resolution = check_count(resolution, "resolution")
        if self.resolution.bit_count() != 1 or self.resolution > 1 << 20:
            raise InputError(f"resolution: expected a power of two up to {1 << 20}, got {resolution}")
        super().__init__(n_cells(self.resolution))

    def add(self, batch: CheckedBatch) -> None:
        """Read a batch that has been checked."""
        self.add_sorted(in_order(batch.outcomes))

    def add_sorted(self, ordered: Outcomes) -> None:
        """Read outcomes that have been checked and sorted, so that every cell is a run of them."""
        size, n, sums = len(self._totals["hits"]), len(ordered), weight_sums(ordered.weights)
        if ordered.weights is not None:
            # A sample of weight 0 would widen its cell.
            used = ordered.weights > 0
            ordered = Outcomes(ordered.confidence[used], ordered.correct[used], ordered.weights[used])
        values = ordered.confidence.numpy()
        starts = np.searchsorted(values, _edges(self.resolution, values.dtype.str))
        bounds = np.append(starts, len(values))
        filled = np.flatnonzero(np.diff(bounds))
        first, stop = bounds[filled], bounds[filled + 1]
        hits, misses, total = np.zeros((3, size))
        lowest, highest = np.full(size, np.inf), np.full(size, -np.inf)
        hits[filled], misses[filled], total[filled] = _run_sums(ordered, first, stop)
        lowest[filled], highest[filled] = values[first], values[stop - 1]
        self._include(
            n=n, **sums, hits=hits, misses=misses, confidence_sum=total, lowest=lowest, highest=highest
        )

    def compute(self, *, n_bins: int = 15) -> RankEstimates:
        """Return the measures of all samples so far, the equal-mass error with ``n_bins`` bins.

        AURC and excess AURC depend on the number of samples, so those of weighted samples are NaN.
        """
        n_bins, weighted = check_bins(n_bins), self.effective is not None
        return replace(rank_estimates(self.cells(), n_bins, weighted=weighted), n=self.n)

    def cells(self) -> Cells:
        """Return the cells that are not empty."""
        seen = self._seen()
        filled = np.flatnonzero(seen["hits"] + seen["misses"])
        totals = {name: total[filled] for name, total in seen.items() if name not in NUMBERS}
        if self.effective is None:
            totals |= {name: totals[name].astype(np.int64) for name in ("hits", "misses")}
        return Cells(**totals)


def rank_estimates(cells: Cells, n_bins: int, *, weighted: bool) -> RankEstimates:
    """Return the measures of cells, with ``n_bins`` bins of equal mass; NaN for those without weights."""
    unknown = Bounded(np.nan, np.nan, np.nan)
    return RankEstimates(
        n=int(cells.count.sum()),
        equal_mass_error=bounded_equal_mass_error(cells, n_bins),
        auroc_correctness=bounded_auroc(cells),
        aurc=unknown if weighted else bounded_aurc(cells),
        excess_aurc=unknown if weighted else bounded_excess_aurc(cells),
        augrc=bounded_augrc(cells),
        two_bin_error=bounded_two_bins(cells),
    )


def in_order(outcomes: Outcomes) -> Outcomes:
    """Return outcomes in ascending order of confidence, their weights along with them; on the CPU."""
    if outcomes.weights is None:
        return outcomes.sorted()
    order = outcomes.confidence.argsort()
    return Outcomes(outcomes.confidence[order], outcomes.correct[order], outcomes.weights[order])


def _run_sums(
    ordered: Outcomes, first: npt.NDArray[np.intp], stop: npt.NDArray[np.intp]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Floats]:
    """Return the hits, misses and summed confidences of runs of outcomes, with their weights if given."""
    values, correct = ordered.confidence.numpy(), ordered.correct.numpy()
    if ordered.weights is None:
        hits = np.add.reduceat(correct, first, dtype=np.int64)
        return hits, stop - first - hits, np.add.reduceat(values, first, dtype=np.float64)
    weights = ordered.weights.numpy()
    each = weights * correct, weights * ~correct, weights * values
    hits, misses, total = (np.add.reduceat(terms, first) for terms in each)
    return hits, misses, total


def cell_index(values: Floats, resolution: int) -> npt.NDArray[np.int64]:
    """Return the number of the cell of each confidence; higher confidences never have lower numbers.

    The exponent of the distance to the nearer end is the octave, its leading digits are the cell.
    """
    shift, base = _layout(resolution)
    distance = np.minimum(values, 1 - values)
    bits = np.maximum(distance, 2.0 ** -(_OCTAVES + 1)).view(np.int64)
    octave = (bits >> 52) - (1023 - (_OCTAVES + 1))
    step = base[octave] + ((bits & ((1 << 52) - 1)) >> shift[octave])
    step[distance == 0] = -1
    cells: npt.NDArray[np.int64] = np.where(values < 0.5, 1 + step, 2 * base[-1] + 1 - step)
    return cells


def n_cells(resolution: int) -> int:
    """Return the number of cells between 0 and 1, both of which have their own."""
    return 2 * int(_layout(resolution)[1][-1]) + 3


@cache
def _edges(resolution: int, kind: str) -> npt.NDArray[np.floating]:
    """Return the lowest number of a floating type in each cell, or in the next cell that contains one.

    This bisects over the bits of the numbers between 0 and 1, which have the order of the numbers.
    """
    word = {4: np.int32, 8: np.int64}[np.dtype(kind).itemsize]
    cells = np.arange(n_cells(resolution))
    low, high = np.zeros(len(cells), word), np.full(len(cells), np.ones(1, kind).view(word)[0])
    while (low < high).any():
        middle = low + (high - low) // 2
        reached = cell_index(middle.view(kind).astype(np.float64), resolution) >= cells
        high = np.where(reached, middle, high)
        low = np.where(reached, low, np.minimum(middle + 1, high))
    return high.view(kind)


def _layout(resolution: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return how many digits each octave drops and its first cell, the octave nearest to 0 first."""
    digits = resolution.bit_length() - 1
    floor = min(digits, _FEWEST.bit_length() - 1)
    kept = np.maximum(floor, digits - np.arange(_OCTAVES, -1, -1) // 2)
    return 52 - kept, np.append(0, np.cumsum(1 << kept[:-1]))
