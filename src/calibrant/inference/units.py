"""Units: the rows that are drawn together, because they depend on each other."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, Floats, to_tensor

Indices = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Units:
    """What is drawn again: rows, or sets of rows such as the answers to one question.

    Units are numbered in the order in which they first appear, so units of one row each are the rows.

    Attributes:
        code: Unit of each row, from 0.
        n: Number of units.
    """

    code: Indices
    n: int

    @classmethod
    def of(cls, units: ArrayLike | None, n_rows: int) -> "Units":
        """Return the units of rows.

        Args:
            units: An integer for each row, shape ``(n,)``; rows with equal ones belong together. Without them
                every row is a unit.
            n_rows: Number of rows.
        """
        if units is None:
            return cls(np.arange(n_rows), n_rows)
        given = to_tensor(units, "units")
        if given.is_floating_point() or given.is_complex() or given.ndim != 1 or len(given) != n_rows:
            kind = f"{given.dtype} of shape {tuple(given.shape)}".removeprefix("torch.")
            raise InputError(f"units: expected {n_rows} integers, one per row, got {kind}")
        _, first, place = np.unique(given.cpu().numpy(), return_index=True, return_inverse=True)
        if len(first) < 2:
            raise InputError("units: expected at least two different ones, got 1; one unit has no variation")
        return cls(np.argsort(np.argsort(first))[place], len(first))

    @property
    def are_rows(self) -> bool:
        """Whether every row is a unit."""
        return self.n == len(self.code)

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Number of rows of each unit."""
        return np.bincount(self.code, minlength=self.n)

    def sums(self, values: Floats) -> Floats:
        """Return the sum of the values of each unit."""
        if self.are_rows:
            return values
        return np.asarray(np.bincount(self.code, weights=values, minlength=self.n), dtype=np.float64)

    def draw_counts(self, n_resamples: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """Return how often each unit is in each of some resamples, shape ``(n_resamples, n)``."""
        drawn = rng.integers(self.n, size=(n_resamples, self.n))
        drawn += self.n * np.arange(n_resamples)[:, None]
        return np.bincount(drawn.ravel(), minlength=n_resamples * self.n).reshape(n_resamples, self.n)

    def draw_rows(self, rng: np.random.Generator) -> Indices:
        """Return the rows of as many units as there are, drawn with replacement."""
        drawn = rng.integers(self.n, size=self.n)
        if self.are_rows:
            return drawn
        return np.concatenate([self._rows[unit] for unit in drawn])

    def draw_half(self, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
        """Return whether each row belongs to units drawn with a probability of one half."""
        return (rng.random(self.n) < 0.5)[self.code]

    def of_rows(self, of_units: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return for each row what is given for its unit, along the last axis."""
        return of_units if self.are_rows else of_units[..., self.code]

    @cached_property
    def _rows(self) -> list[Indices]:
        """The rows of each unit."""
        return np.split(np.argsort(self.code, kind="stable"), self.sizes.cumsum()[:-1])
