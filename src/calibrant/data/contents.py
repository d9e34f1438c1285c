"""What a file of predictions contains: its keys, the arrays under them, and notes as JSON text."""

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from calibrant.data.predictions import Predictions
from calibrant.errors import FormatError, InputError, did_you_mean

MATRICES = ("logits", "probs", "features")
VECTORS = ("confidence", "correct", "labels")
ARRAYS = (*MATRICES, *VECTORS)
GROUPS = "groups"
SIGNAL = "signal_"

_SHOWN = 12


def select_form(values: dict[str, Any], names: Sequence[str], *, need_labels: bool) -> dict[str, Any]:
    """Return the values that make one set of predictions; refuse a file with too few or too many.

    Class scores contain more than pairs, so ``confidence`` and ``correct`` next to ``logits`` or ``probs``
    are ignored, as are ``labels`` and ``class_names`` next to a full pair. Logits next to probabilities are
    refused, because they may come from different models or temperatures. Groups stand beside any form.

    Args:
        values: The values of the file that have one of our keys.
        names: Everything that the file names, for the error message.
        need_labels: Whether a file without labels, or without ``correct``, is refused.
    """
    if "logits" in values and "probs" in values:
        raise FormatError("expected either logits or probs, got both; keep the one you mean")
    if "logits" in values or "probs" in values:
        if need_labels and "labels" not in values:
            raise _missing("labels", ["labels"], names)
        return _without(values, "confidence", "correct", "signals")
    if "confidence" in values and ("correct" in values or not need_labels):
        return _without(values, "labels", "class_names")
    if "confidence" in values or "correct" in values:
        other = "correct" if "confidence" in values else "confidence"
        raise _missing("confidence with correct", [other], names)
    raise _missing("logits, probs, or confidence with correct", ["logits", "probs", "confidence"], names)


def to_arrays(predictions: Predictions) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays by key; bfloat16, which NumPy does not support, becomes float32 without loss."""
    arrays = {}
    for key in ARRAYS:
        tensor = getattr(predictions, key)
        if tensor is not None:
            tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
            arrays[key] = np.ascontiguousarray(tensor.cpu().numpy())
    return arrays


def beside_columns(names: Sequence[str]) -> list[str]:
    """Return the names of what stands beside predictions: groups, and signals as ``signal_<name>``."""
    return [name for name in names if name == GROUPS or name.startswith(SIGNAL)]


def from_beside(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return groups and signals as arguments of predictions, from the columns that hold them.

    Example:
        >>> from_beside({"groups": ["law"], "signal_wording": [0.5]})
        {'groups': ['law'], 'signals': {'wording': [0.5]}}
    """
    values = {GROUPS: columns[GROUPS]} if GROUPS in columns else {}
    signals = {name.removeprefix(SIGNAL): columns[name] for name in columns if name.startswith(SIGNAL)}
    return values | ({"signals": signals} if signals else {})


def signal_arrays(predictions: Predictions) -> dict[str, npt.NDArray[np.float64]]:
    """Return the signals by the names of their columns."""
    return {f"{SIGNAL}{name}": signal.cpu().numpy() for name, signal in predictions.signals.items()}


def notes_of(predictions: Predictions) -> dict[str, Any]:
    """Return class names and metadata by key, those that are given."""
    notes: dict[str, Any] = {}
    if predictions.class_names is not None:
        notes["class_names"] = predictions.class_names
    if predictions.metadata:
        notes["metadata"] = dict(predictions.metadata)
    return notes


def to_text(value: Any) -> str:  # noqa: ANN401  # any JSON value
    """Return a value as JSON text that people can read."""
    return json.dumps(value, ensure_ascii=False)


def from_text(text: str, name: str) -> Any:  # noqa: ANN401  # any JSON value
    """Return the value of JSON text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{name}: expected JSON text, got {text[:40]!r} ({error.msg}); use json.dumps"
        ) from None


def _without(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def present(wanted: Sequence[str], optional: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the columns to read: the wanted ones, which must be there, and optional ones that are."""
    for name in wanted:
        if name not in names:
            raise missing_column(name, names)
    return list(dict.fromkeys([*wanted, *(name for name in optional if name in names)]))


def missing_column(name: str, names: Sequence[str]) -> FormatError:
    """Return the error for a column that a person named and the file lacks."""
    return FormatError(f"expected a column {name!r}, got {_listed(names)}{did_you_mean(name, names)}")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (", ".join(names[:_SHOWN]) or "nothing") + more


def _missing(expected: str, keys: Sequence[str], names: Sequence[str]) -> FormatError:
    return FormatError(f"expected {expected}, got {_listed(names)}; {_advice(keys, names)}")


def _advice(keys: Sequence[str], names: Sequence[str]) -> str:
    for name in names:
        stem, mark, rest = name.partition("_")
        if close := get_close_matches(name.lower(), keys, n=1, cutoff=0.75):
            return f"did you mean {close[0]!r} by {name!r}?"
        if close := get_close_matches(stem.lower(), set(keys).intersection(MATRICES), n=1, cutoff=0.75):
            return f"did you mean {close[0] + mark + rest!r} by {name!r}?"
    return f"rename what holds the {' or '.join(keys)}"
