"""A measure as a function of counts: what the bootstrap computes instead of copying rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from calibrant.inputs import Floats

Counts: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Weighted:
    """A measure of fixed samples, as a function of how often each of them is counted.

    Attributes:
        n: Number of units that are counted: samples, or pairs of them if the measure is a mean over pairs.
        values: Takes counts of shape ``(r, n)``, with at least one unit in each row, and returns the measure
            of each row; NaN where it is undefined.
        held: Numbers in memory for each row of counts, which limits the rows per call.
        work: Numbers computed for each row of counts, if these are more than are held.
    """

    n: int
    values: Callable[[Counts], Floats]
    held: int
    work: int = 0


def mean_weights(terms: Floats) -> Weighted:
    """Return a mean of terms as a function of how often each of them is counted."""

    def values(counts: Counts) -> Floats:
        # Unlike a matrix product this starts no threads, which would wait for each other.
        return np.asarray(np.einsum("rn,n->r", counts, terms) / counts.sum(axis=1))

    return Weighted(len(terms), values, held=len(terms))
