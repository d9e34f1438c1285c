"""Bootstrap of any measure: draw as many rows as there are, with replacement, and measure again."""

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, Floats, Progress, check_count, to_tensor

Rows: TypeAlias = Mapping[str, Tensor | npt.NDArray[Any]]

_GROUPS = 200
_READABLE = (("probs", "labels"), ("logits", "labels"), ("confidence", "correct"))


class Resampler(Protocol):
    """A sample that can tell how its measure varies from one resample to the next."""

    @property
    def value(self) -> float:
        """The measure of the sample itself."""
        ...

    def replicates(
        self, n_resamples: int, rng: np.random.Generator, progress: Progress | None = None
    ) -> Floats:
        """Return the measure of each resample; NaN where it is undefined."""
        ...

    def jackknife(self, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Return the measure with samples left out, and how often each of these values counts."""
        ...


@dataclass(frozen=True, eq=False)
class RowResampler:
    """Resamples of a measure that is computed anew from the drawn rows: exact, for any measure.

    The jackknife leaves out one row at a time, or for more than 200 rows one of 200 random groups of
    equal size, which estimates the same skewness.
    """

    measure: Callable[[Rows], float]
    rows: Rows

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(next(iter(self.rows.values())))

    @property
    def value(self) -> float:
        """The measure of all rows."""
        return self.measure(self.rows)

    def replicates(
        self, n_resamples: int, rng: np.random.Generator, progress: Progress | None = None
    ) -> Floats:
        """Return the measure of each resample; NaN where it is undefined."""
        values = np.empty(n_resamples)
        for r in range(n_resamples):
            values[r] = self.measure(take(self.rows, rng.integers(self.n, size=self.n)))
            if progress is not None:
                progress("resamples", r + 1, n_resamples)
        return values

    def jackknife(self, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Return the measure without each group of rows, all of weight one."""
        n_groups = min(self.n, _GROUPS)
        group = rng.permutation(self.n) % n_groups
        values = [self.measure(take(self.rows, np.flatnonzero(group != g))) for g in range(n_groups)]
        return np.array(values), np.ones(n_groups)


def as_rows(**arguments: ArrayLike | None) -> Rows:
    """Return a prediction and its truth as arrays of one entry per sample: tensors, or NumPy for all else."""
    given = {name: value for name, value in arguments.items() if value is not None}
    for pair in _READABLE:
        if set(pair) == set(given):
            return same_length({name: _as_array(given[name], name) for name in pair})
    accepted = " or ".join(" with ".join(pair) for pair in _READABLE if set(pair) <= set(arguments))
    raise InputError(f"arguments: expected {accepted}, got {' with '.join(given) or 'none of them'}")


def same_length(rows: Rows) -> Rows:
    """Return the rows if all arrays have as many entries as the first, and at least two."""
    first, n = next((name, len(values)) for name, values in rows.items())
    if n < 2:
        raise InputError(
            f"{first}: expected at least two samples, got {n}; one sample says nothing of variation"
        )
    for name, values in rows.items():
        if len(values) != n:
            raise InputError(f"{name}: expected {n} entries, one per prediction, got {len(values)}")
    return rows


def take(rows: Rows, index: npt.NDArray[np.intp]) -> Rows:
    """Return the rows of the given numbers."""
    return {
        name: values[torch.from_numpy(index).to(values.device)]
        if isinstance(values, Tensor)
        else values[index]
        for name, values in rows.items()
    }


def call(
    metric: Callable[..., Any], rows: Rows, options: Mapping[str, Any], *, name: str = "metric"
) -> float:
    """Apply a measure to rows, with probabilities and labels by position, the others by name."""
    if "probs" in rows:
        result = metric(rows["probs"], rows["labels"], **options)
    else:
        result = metric(**rows, **options)
    if isinstance(result, numbers.Real) or (isinstance(result, Tensor) and result.ndim == 0):
        return float(result)
    raise InputError(
        f"{name}: expected a function that returns one number, got {type(result).__name__}; "
        "wrap it in a function that returns the number of interest"
    )


def check_finite(value: float, *, name: str = "metric") -> float:
    """Return the measure of the whole sample if it is defined there."""
    if not math.isfinite(value):
        raise InputError(f"{name}: expected a finite value on the whole sample, got {value}")
    return value


def defined(values: Floats) -> Floats:
    """Return the finite replicates; more than half of them must be."""
    kept: Floats = values[np.isfinite(values)]
    if 2 * len(kept) <= len(values):
        raise InputError(
            f"metric: expected a finite value on most resamples, got none on {len(values) - len(kept)} "
            f"of {len(values)}; it needs more samples"
        )
    return kept


def generator(seed: int) -> np.random.Generator:
    """Return the random numbers of a seed."""
    return np.random.default_rng(check_count(seed, "seed", at_least=0))


def _as_array(value: ArrayLike, name: str) -> Tensor | npt.NDArray[Any]:
    tensor = to_tensor(value, name)
    if tensor.ndim == 0:
        raise InputError(f"{name}: expected one entry per sample, got a single number")
    return tensor if isinstance(value, Tensor) else tensor.numpy()
