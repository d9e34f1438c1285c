"""CSV: one column per class, named by its number or its class; numbers become float64, metadata is lost."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions, read_csv, write_csv

from calibrant.data.formats.arrays import to_arrays
from calibrant.data.formats.columns import find_columns, suffixes
from calibrant.data.formats.table import to_values
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError

# A row must fit into one block, and features may make it long.
_BLOCK_BYTES = 1 << 24


def names(path: Path) -> list[str]:
    """Return the header."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        return next((row for row in csv.reader(file) if row), [])


def read(path: Path) -> dict[str, Any]:
    """Return the columns with our keys; class names come from headers that are more than numbers."""
    columns = find_columns(names(path))
    # What is inferred from the first block alone may be wrong later, as with scores that start out whole.
    numbers = [c for key, spread in columns.items() if key not in ("labels", "correct") for c in spread]
    table = read_csv(
        path,
        read_options=ReadOptions(block_size=_BLOCK_BYTES),
        parse_options=ParseOptions(newlines_in_values=True),
        convert_options=ConvertOptions(
            include_columns=[column for spread in columns.values() for column in spread],
            column_types=dict.fromkeys(numbers, pa.float64()),
        ),
    )
    return to_values(table, columns)


def write(path: Path, predictions: Predictions) -> None:
    """Write a header and one row per sample, with as many digits as read back to the same number."""
    columns: dict[str, Any] = {}
    for key, array in to_arrays(predictions).items():
        if array.dtype.kind == "f":
            array = array.astype(np.float64)
        if array.ndim == 1:
            columns[key] = array
        else:
            headers = _headers(key, array.shape[1], predictions.class_names)
            columns |= dict(zip(headers, array.T, strict=True))
    write_csv(pa.table(columns), path)


def _headers(key: str, width: int, class_names: tuple[str, ...] | None) -> list[str]:
    if class_names is None or key == "features":
        return [f"{key}_{i}" for i in range(width)]
    headers = [f"{key}_{name}" for name in class_names]
    if suffixes(headers, key) != list(class_names):
        raise InputError(
            f"class_names: expected names that are not taken for column numbers, got {class_names[0]!r} and "
            "others; save as .npz, .parquet or .safetensors"
        )
    return headers
