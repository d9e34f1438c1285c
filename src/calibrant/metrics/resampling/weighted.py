"""A measure as a function of counts: what the bootstrap computes instead of copying rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

from calibrant.inputs import Floats

#: How often each sample is counted: whole numbers, or these times the weights of the samples.
Counts: TypeAlias = npt.NDArray[np.int64] | Floats


@dataclass(frozen=True, eq=False)
class Weighted:
    """A measure of fixed samples, as a function of how often each of them is counted.

    Attributes:
        n: Number of units that are counted: samples, or pairs of them if the measure is a mean over pairs.
        values: Takes counts of shape ``(r, n)``, with at least one unit in each row, and returns the measure
            of each row; NaN where it is undefined.
        held: Numbers in memory for each row of counts, which limits the rows per call.
        work: Numbers computed for each row of counts, if these are more than are held.
        weights: How much each sample counts, or None if all count the same.
    """

    n: int
    values: Callable[[Counts], Floats]
    held: int
    work: int = 0
    weights: Tensor | None = None

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


def by_row(weighted: Weighted, per_row: int) -> Weighted:
    """Return a measure as a function of how often each row is counted, if rows are several samples each.

    Args:
        weighted: The measure as a function of counts of samples.
        per_row: Number of samples in succession that make a row, such as the labels of one picture.
    """
    if per_row == 1:
        return weighted
    rows = np.repeat(np.arange(weighted.n // per_row), per_row)
    return Weighted(
        weighted.n // per_row,
        lambda counts: weighted.of(counts[:, rows]),
        held=max(weighted.n, weighted.held),
        work=weighted.work,
    )


def mean_weights(terms: Floats, weights: Tensor | None = None) -> Weighted:
    """Return a mean of terms as a function of how often each of them is counted."""

    def values(counts: Counts) -> Floats:
        # Unlike a matrix product this starts no threads, which would wait for each other.
        return np.asarray(np.einsum("rn,n->r", counts, terms) / counts.sum(axis=1))

    return Weighted(len(terms), values, held=len(terms), weights=weights)
