"""Safetensors: one tensor per key, class names and metadata as JSON text in the header."""

from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file

from calibrant.data.formats.notes import from_text, to_text
from calibrant.data.keys import ARRAYS
from calibrant.data.predictions import Predictions


def names(path: Path) -> list[str]:
    """Return the names of all tensors."""
    with safe_open(path, framework="pt") as file:
        return list(file.keys())


def read(path: Path) -> dict[str, Any]:
    """Return the tensors with our keys, and what the header says about them."""
    with safe_open(path, framework="pt") as file:
        found = set(file.keys())
        values: dict[str, Any] = {key: file.get_tensor(key) for key in ARRAYS if key in found}
        header = file.metadata() or {}
    for key in ("class_names", "metadata"):
        if key in header:
            values[key] = from_text(header[key], key)
    return values


def write(path: Path, predictions: Predictions) -> None:
    """Write the tensors in their own type, bfloat16 included."""
    tensors = {key: getattr(predictions, key) for key in ARRAYS if getattr(predictions, key) is not None}
    header = {}
    if predictions.class_names is not None:
        header["class_names"] = to_text(predictions.class_names)
    if predictions.metadata:
        header["metadata"] = to_text(dict(predictions.metadata))
    # Views of one array, such as logits and features side by side, are refused unless copied.
    save_file({key: tensor.clone().contiguous() for key, tensor in tensors.items()}, path, metadata=header)
