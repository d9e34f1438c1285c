"""Bootstrap of any measure: draw n of the n rows with replacement, and measure again."""

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, Floats, check_seed, check_weights, to_tensor
from calibrant.metrics.resampling.bootstrap import Resampler

Rows: TypeAlias = Mapping[str, Tensor | npt.NDArray[Any]]

_GROUPS = 200
_READABLE = (("probs", "labels"), ("logits", "labels"), ("confidence", "correct"))


@dataclass(frozen=True, eq=False)
class RowResampler(Resampler):
    """Resamples of a measure that is recomputed from the drawn rows: exact, for any measure.

    The jackknife leaves out one row at a time. With more than 200 rows it leaves out one of 200 random
    groups of equal size, which estimates the same skewness.
    """

    measure: Callable[[Rows], float]
    rows: Rows

    @property
    def n(self) -> int:
        """Number of rows."""
        return _length(self.rows)

    @property
    def value(self) -> float:
        """The measure of all rows."""
        return self.measure(self.rows)

    def draw(self, n_resamples: int, rng: np.random.Generator) -> Floats:
        """Return the measure of rows drawn with replacement; NaN where it is undefined."""
        draws = (rng.integers(self.n, size=self.n) for _ in range(n_resamples))
        return np.array([self.measure(take(self.rows, rows)) for rows in draws])

    def jackknife(self, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Return the measure without each group of rows; all values have weight one."""
        group, n_groups = random_groups(self.n, rng)
        values = [self.measure(take(self.rows, np.flatnonzero(group != g))) for g in range(n_groups)]
        return np.array(values), np.ones(n_groups)


def random_groups(n: int, rng: np.random.Generator) -> tuple[npt.NDArray[np.int64], int]:
    """Return the group of each of ``n`` rows, and the number of groups of equal size, at most 200."""
    n_groups = min(n, _GROUPS)
    return rng.permutation(n) % n_groups, n_groups


def as_rows(**arguments: ArrayLike | None) -> Rows:
    """Return predictions and outcomes with one entry per sample: tensors stay tensors, all else is NumPy."""
    given = {name: value for name, value in arguments.items() if value is not None}
    weights = given.pop("weights", None)
    for pair in _READABLE:
        if set(pair) == set(given):
            rows = same_length({name: _as_array(given[name], name) for name in pair})
            return rows if weights is None else {**rows, "weights": check_weights(weights, n=_length(rows))}
    accepted = " or ".join(" with ".join(pair) for pair in _READABLE if set(pair) <= set(arguments))
    raise InputError(f"arguments: expected {accepted}, got {' with '.join(given) or 'none of them'}")


def _length(rows: Rows) -> int:
    return len(next(iter(rows.values())))


def same_length(rows: Rows) -> Rows:
    """Return the rows if all arrays have the same length, which must be at least two."""
    first, n = next((name, len(values)) for name, values in rows.items())
    if n < 2:
        raise InputError(f"{first}: expected at least two samples, got {n}; one sample has no variation")
    for name, values in rows.items():
        if len(values) != n:
            raise InputError(f"{name}: expected {n} entries, one per prediction, got {len(values)}")
    return rows


def n_numbers(rows: Rows) -> int:
    """Return how many numbers all arrays contain."""
    return sum(math.prod(values.shape) for values in rows.values())


def take(rows: Rows, index: npt.NDArray[np.intp]) -> Rows:
    """Return the rows with the given indices."""
    return {
        name: values[torch.from_numpy(index).to(values.device)]
        if isinstance(values, Tensor)
        else values[index]
        for name, values in rows.items()
    }


def in_rows(rows: Rows, per_row: int) -> Rows:
    """Return arrays whose first axis counts rows of several samples in succession, if rows are such."""
    n = len(next(iter(rows.values())))
    if n % per_row:
        raise InputError(f"per_row: expected a number that divides the {n} samples, got {per_row}")
    if per_row == 1:
        return rows
    return {name: values.reshape(-1, per_row, *values.shape[1:]) for name, values in rows.items()}


def in_samples(rows: Rows, per_row: int) -> Rows:
    """Return the samples of drawn rows, as before :func:`in_rows`."""
    if per_row == 1:
        return rows
    return {name: values.reshape(-1, *values.shape[2:]) for name, values in rows.items()}


def call(
    metric: Callable[..., Any], rows: Rows, options: Mapping[str, Any], *, name: str = "metric"
) -> float:
    """Apply a measure to rows; probabilities and labels are passed by position, all else by name."""
    if "probs" in rows:
        others = {name: rows[name] for name in rows.keys() - {"probs", "labels"}}
        result = metric(rows["probs"], rows["labels"], **others, **options)
    else:
        result = metric(**rows, **options)
    if isinstance(result, numbers.Real) or (isinstance(result, Tensor) and result.ndim == 0):
        return float(result)
    raise InputError(
        f"{name}: expected a function that returns one number, got {type(result).__name__}; "
        "wrap it in a function that returns the number of interest"
    )


def generator(seed: int) -> np.random.Generator:
    """Return a random generator with the given seed."""
    return np.random.default_rng(check_seed(seed))


def _as_array(value: ArrayLike, name: str) -> Tensor | npt.NDArray[Any]:
    tensor = to_tensor(value, name)
    if tensor.ndim == 0:
        raise InputError(f"{name}: expected one entry per sample, got a single number")
    return tensor if isinstance(value, Tensor) else tensor.numpy()
