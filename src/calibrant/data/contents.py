"""What a file of predictions contains: its keys, the arrays under them, and notes as JSON text."""

import json
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from calibrant.data.predictions import Predictions
from calibrant.errors import FormatError, InputError

MATRICES = ("logits", "probs", "features")
VECTORS = ("confidence", "correct", "labels")
ARRAYS = (*MATRICES, *VECTORS)

_SHOWN = 12


def select_form(values: dict[str, Any], names: Sequence[str], *, need_labels: bool) -> dict[str, Any]:
    """Return the values that make one set of predictions; refuse a file with too few or too many.

    Class scores contain more than pairs, so ``confidence`` and ``correct`` next to ``logits`` or ``probs``
    are ignored, as are ``labels`` and ``class_names`` next to a full pair. Logits next to probabilities are
    refused, because they may come from different models or temperatures.

    Args:
        values: The values of the file that have one of our keys.
        names: Everything that the file names, for the error message.
        need_labels: Whether a file without labels is refused.
    """
    if "logits" in values and "probs" in values:
        raise FormatError("expected either logits or probs, got both; keep the one you mean")
    if "logits" in values or "probs" in values:
        if need_labels and "labels" not in values:
            raise _missing("labels", ["labels"], names)
        return _without(values, "confidence", "correct")
    if "confidence" in values and "correct" in values:
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


def _missing(expected: str, keys: Sequence[str], names: Sequence[str]) -> FormatError:
    shown = ", ".join(names[:_SHOWN]) or "nothing"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return FormatError(f"expected {expected}, got {shown}{more}; {_advice(keys, names)}")


def _advice(keys: Sequence[str], names: Sequence[str]) -> str:
    for name in names:
        stem, mark, rest = name.partition("_")
        if close := get_close_matches(name.lower(), keys, n=1, cutoff=0.75):
            return f"did you mean {close[0]!r} by {name!r}?"
        if close := get_close_matches(stem.lower(), set(keys).intersection(MATRICES), n=1, cutoff=0.75):
            return f"did you mean {close[0] + mark + rest!r} by {name!r}?"
    return f"rename what holds the {' or '.join(keys)}"
