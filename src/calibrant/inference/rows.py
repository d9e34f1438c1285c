"""Predictions and outcomes as arrays with one entry per row, and measures that are called with them."""

import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, Floats, check_seed, to_tensor
from calibrant.outcomes import Outcomes, checked_weights

RowArrays: TypeAlias = Mapping[str, Tensor | npt.NDArray[Any]]

_READABLE = (("probs", "labels"), ("logits", "labels"), ("confidence", "correct"))


def as_rows(**arguments: ArrayLike | None) -> RowArrays:
    """Return predictions and outcomes with one entry per sample: tensors stay tensors, all else is NumPy."""
    given = {name: value for name, value in arguments.items() if value is not None}
    weights = given.pop("weights", None)
    for pair in _READABLE:
        if set(pair) == set(given):
            rows = same_length({name: _as_array(given[name], name) for name in pair})
            checked = checked_weights(weights, n_rows(rows))
            return rows if checked is None else {**rows, "weights": checked}
    accepted = " or ".join(" with ".join(pair) for pair in _READABLE if set(pair) <= set(arguments))
    raise InputError(f"arguments: expected {accepted}, got {' with '.join(given) or 'none of them'}")


def same_length(rows: RowArrays) -> RowArrays:
    """Return the rows if all arrays have the same length, which must be at least two."""
    first, n = next((name, len(values)) for name, values in rows.items())
    if n < 2:
        raise InputError(f"{first}: expected at least two samples, got {n}; one sample has no variation")
    for name, values in rows.items():
        if len(values) != n:
            raise InputError(f"{name}: expected {n} entries, one per prediction, got {len(values)}")
    return rows


def n_rows(rows: RowArrays) -> int:
    """Return the number of rows."""
    return len(next(iter(rows.values())))


def n_numbers(rows: RowArrays) -> int:
    """Return how many numbers all arrays contain."""
    return sum(math.prod(values.shape) for values in rows.values())


def take_rows(rows: RowArrays, index: npt.NDArray[np.intp]) -> RowArrays:
    """Return the rows with the given indices."""
    return {
        name: values[torch.from_numpy(index).to(values.device)]
        if isinstance(values, Tensor)
        else values[index]
        for name, values in rows.items()
    }


def apply_to(
    metric: Callable[..., Any], rows: RowArrays, options: Mapping[str, Any], *, name: str = "metric"
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


def errors_of(rows: RowArrays) -> Floats:
    """Return hits minus confidence."""
    (kind, predictions), (_, truth), *_ = ((name, torch.as_tensor(each)) for name, each in rows.items())
    if kind != "confidence" and predictions.ndim == 2:
        of = Outcomes.from_logits if kind == "logits" else Outcomes.from_probs
        outcomes = of(predictions, truth.to(predictions.device))
        predictions, truth = outcomes.confidence, outcomes.correct
    errors: Floats = (truth.double().cpu() - predictions.double().cpu()).numpy()
    return errors


def generator(seed: int) -> np.random.Generator:
    """Return a random generator with the given seed."""
    return np.random.default_rng(check_seed(seed))


def check_level(level: float) -> float:
    """Return the level of an interval if it is a number between 0 and 1."""
    if not 0 < level < 1:
        raise InputError(f"level: expected a number between 0 and 1, got {level}; 95 % is 0.95")
    return float(level)


def check_finite(value: float, *, name: str = "metric") -> float:
    """Return the measure of the whole sample if it is finite."""
    if not math.isfinite(value):
        raise InputError(f"{name}: expected a finite value on the whole sample, got {value}")
    return value


def defined(values: Floats) -> Floats:
    """Return the finite replicates; more than half of all replicates must be finite."""
    finite: Floats = values[np.isfinite(values)]
    if 2 * len(finite) <= len(values):
        raise InputError(
            f"metric: expected a finite value on most resamples, got none on {len(values) - len(finite)} "
            f"of {len(values)}; it needs more samples"
        )
    return finite


def _as_array(value: ArrayLike, name: str) -> Tensor | npt.NDArray[Any]:
    tensor = to_tensor(value, name)
    if tensor.ndim == 0:
        raise InputError(f"{name}: expected one entry per sample, got a single number")
    return tensor if isinstance(value, Tensor) else tensor.numpy()
