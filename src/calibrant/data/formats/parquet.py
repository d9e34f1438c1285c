"""Parquet: matrices as fixed-size lists, class names and metadata in the schema under ``calibrant``."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from calibrant.data.formats.arrays import to_arrays
from calibrant.data.formats.columns import find_columns
from calibrant.data.formats.notes import from_text, to_text
from calibrant.data.formats.table import to_values
from calibrant.data.predictions import Predictions

_NOTES = b"calibrant"


def names(path: Path) -> list[str]:
    """Return the names of all columns."""
    return list(pq.read_schema(path).names)


def read(path: Path) -> dict[str, Any]:
    """Return the columns with our keys, whether lists or one column per class."""
    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow
        columns = find_columns(schema.names)
        table = file.read(columns=[column for spread in columns.values() for column in spread])
    values = to_values(table, columns)
    notes = from_text((schema.metadata or {}).get(_NOTES, b"{}").decode(), "calibrant")
    return values | {key: notes[key] for key in ("class_names", "metadata") if key in notes}


def write(path: Path, predictions: Predictions) -> None:
    """Write one row per sample."""
    columns = {
        key: pa.array(array)
        if array.ndim == 1
        else pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), array.shape[1])
        for key, array in to_arrays(predictions).items()
    }
    notes: dict[str, Any] = {}
    if predictions.class_names is not None:
        notes["class_names"] = predictions.class_names
    if predictions.metadata:
        notes["metadata"] = dict(predictions.metadata)
    table = pa.table(columns, metadata={_NOTES: to_text(notes)})
    pq.write_table(table, path)
