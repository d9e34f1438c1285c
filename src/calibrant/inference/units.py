"""Units: the rows that are drawn together, because they depend on each other."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri, stdtrit

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, Floats, check_units

Indices = npt.NDArray[np.intp]

# So many counts of units are kept for the measures that come next, in a byte each.
_KEPT = 1 << 26
# The correlation and the bias that it causes depend on each other; they settle after this many steps.
_STEPS = 3


@dataclass(frozen=True, eq=False)
class Units:
    """What is drawn again: rows, or sets of rows such as the answers to one question.

    Units are numbered in the order in which they first appear, so units of one row each are the rows.

    Attributes:
        code: Unit of each row, from 0.
        n: Number of units.
        drawn: Counts that were drawn before, by the state of the generator: measures of the same rows share
            one set of draws.
    """

    code: Indices
    n: int
    drawn: dict[str, tuple[npt.NDArray[np.integer], Mapping[str, Any]]] = field(default_factory=dict)

    @classmethod
    def of(cls, units: "ArrayLike | Units | None", n_rows: int, *, at_least: int = 2) -> "Units":
        """Return the units of rows.

        Args:
            units: An integer for each row, shape ``(n,)``; rows with equal ones belong together. Without them
                every row is a unit. Those that were made before share their draws.
            n_rows: Number of rows.
            at_least: The fewest units that are accepted.
        """
        if units is None:
            return cls(np.arange(n_rows), n_rows)
        if not isinstance(units, Units):
            given = check_units(units, n=n_rows).cpu().numpy()
            _, first, place = np.unique(given, return_index=True, return_inverse=True)
            number = np.empty(len(first), dtype=np.intp)
            number[np.argsort(first)] = np.arange(len(first))
            units = cls(number[place], len(first))
        if units.n < at_least:
            raise InputError("units: expected at least two different ones, got 1; one unit has no variation")
        return units

    @property
    def are_rows(self) -> bool:
        """Whether every row is a unit."""
        return self.n == len(self.code)

    @property
    def alone(self) -> "Units":
        """The units as rows, one for each of them; they share the draws."""
        return self if self.are_rows else Units(np.arange(self.n), self.n, self.drawn)

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Number of rows of each unit."""
        return np.bincount(self.code, minlength=self.n)

    @property
    def effective(self) -> float:
        """Number of units of equal size that vary as much: the number of units if they have equal sizes."""
        return self.n if self.are_rows else float(self.sizes.sum() ** 2 / np.square(self.sizes).sum())

    def sums(self, values: Floats) -> Floats:
        """Return the sum of the values of each unit."""
        if self.are_rows:
            return values
        return np.asarray(np.bincount(self.code, weights=values, minlength=self.n), dtype=np.float64)

    def draw_counts(self, n_resamples: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """Return how often each unit is in each of some resamples, shape ``(n_resamples, n)``."""
        key = f"{n_resamples} {rng.bit_generator.state}"
        if key in self.drawn:
            counts, rng.bit_generator.state = self.drawn[key]
            return counts.astype(np.int64)
        drawn = rng.integers(self.n, size=(n_resamples, self.n))
        drawn += self.n * np.arange(n_resamples)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=n_resamples * self.n).reshape(n_resamples, self.n)
        if sum(each.nbytes for each, _ in list(self.drawn.values())) + counts.size <= _KEPT:
            small = counts.astype(np.min_scalar_type(counts.max()))
            self.drawn[key] = small, rng.bit_generator.state
        return counts

    def draw_rows(self, rng: np.random.Generator) -> Indices:
        """Return the rows of as many units as there are, drawn with replacement."""
        return self.rows_of(rng.integers(self.n, size=self.n))

    def rows_of(self, some: Indices) -> Indices:
        """Return the rows of some units, unit by unit."""
        if self.are_rows:
            return some
        sizes = self.sizes[some]
        first = self._first[some] - (sizes.cumsum() - sizes)
        rows: Indices = self._rows[np.repeat(first, sizes) + np.arange(sizes.sum())]
        return rows

    def draw_half(self, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
        """Return whether each row belongs to units drawn with a probability of one half."""
        return (rng.random(self.n) < 0.5)[self.code]

    def draw_part(self, share: float, rng: np.random.Generator) -> Indices:
        """Return the rows, in rising order, of random units that have about this share of all rows.

        Units of several rows are never divided, and at least one is drawn and one is not.
        """
        order = rng.permutation(self.n)
        if self.are_rows:
            return np.sort(order[: round(share * self.n)])
        rows = np.append(0, np.cumsum(self.sizes[order]))
        number = int(np.abs(rows[1:-1] - share * len(self.code)).argmin()) + 1
        return np.flatnonzero(np.isin(self.code, order[:number]))

    def of_rows(self, of_units: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return for each row what is given for its unit, along the last axis."""
        return of_units if self.are_rows else of_units[..., self.code]

    def spread(self, values: Floats, weights: Floats | None = None) -> "Spread":
        """Return how sure the units are of the variance of the mean of values, one for each row."""
        if self.are_rows:
            return ALONE
        w = np.ones(len(values)) if weights is None else weights
        sizes, squares = self.sums(w), self.sums(w * w)
        error = w * (values - w @ values / w.sum())
        total, alone = float(np.square(self.sums(error)).sum()), float(error @ error)
        pairs = float((sizes * sizes - squares).sum()) * alone / float(squares.sum())
        found = Spread()
        for _ in range(_STEPS):
            correlation = (found.scale**2 * total - alone) / pairs if pairs > 0 else 0.0
            found = Spread.of(sizes, squares + min(max(correlation, 0.0), 1.0) * (sizes * sizes - squares))
        return found

    @cached_property
    def _rows(self) -> Indices:
        """The rows of the first unit, of the second, and so on."""
        return np.argsort(self.code, kind="stable")

    @cached_property
    def _first(self) -> npt.NDArray[np.int64]:
        """Place of the first row of each unit among these."""
        return self.sizes.cumsum() - self.sizes


@dataclass(frozen=True)
class Spread:
    r"""What resamples of few units, or of very unequal ones, do not show of the variance of a mean.

    The sums of the units differ from the mean by less than from its expectation, so resamples vary too
    little, by a known factor. And the variance itself is estimated, with as many degrees of freedom as units
    of equal size would have: with the covariance :math:`G` of these differences,
    :math:`(\mathrm{tr}\, G)^2 / \mathrm{tr}\, G^2`. So percentiles become those of a t-distribution.

    Attributes:
        scale: The standard deviation of a mean over that of its resamples.
        degrees: Degrees of freedom of the variance; infinite if every row is a unit.

    References:
        Bell and McCaffrey, "Bias reduction in standard errors for linear regression with multi-stage
        samples", Survey Methodology 2002.
        Imbens and Kolesár, "Robust standard errors in small samples: some practical advice", Review of
        Economics and Statistics 2016.
    """

    scale: float = 1.0
    degrees: float = math.inf

    @classmethod
    def of(cls, sizes: Floats, variances: Floats) -> "Spread":
        """Return the spread of a mean over units with these sizes and variances of their sums."""
        a, v, total = sizes / sizes.sum(), variances, float(variances.sum())
        if total == 0:
            return cls()
        aa, vv, av = float(a @ a), float(v @ v), float(a @ v)
        trace = total - 2 * av + total * aa
        squares = vv - 4 * float(a @ (v * v)) + 2 * total * float(a * a @ v)
        squares += 2 * av * av + 2 * aa * vv - 4 * total * aa * av + total * total * aa * aa
        return cls(math.sqrt(total / trace), max(trace * trace / squares, 1.0))

    def widened(self, values: Floats, replicates: Floats) -> Floats:
        """Return values on the scale of the replicates, as far from their mean as those of few units are.

        Replicates are along the first axis; those that are NaN do not count.
        """
        if math.isinf(self.degrees) or len(replicates) < 2:
            return values
        counted = np.isfinite(replicates)
        n, kept = counted.sum(axis=0), np.where(counted, replicates, 0.0)
        centre = kept.sum(axis=0) / np.maximum(n, 1)
        squares = np.square(np.where(counted, replicates - centre, 0.0)).sum(axis=0)
        deviation = np.sqrt(squares / np.maximum(n - 1, 1))
        z = (values - centre) / np.where(deviation > 0, deviation, 1.0)
        far = -stdtrit(self.degrees, ndtr(-np.abs(z)))
        return np.asarray(centre + self.scale * deviation * np.sign(z) * far)

    def ratio(self, level: float) -> float:
        """Return how much longer an interval is than one with a known variance."""
        if math.isinf(self.degrees):
            return 1.0
        tail = (1 + level) / 2
        return self.scale * float(stdtrit(self.degrees, tail) / ndtri(tail))


#: The spread of rows that are units: resamples show all of it.
ALONE = Spread()
