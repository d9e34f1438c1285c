"""Arrow tables as arrays: a matrix is one column of lists, or one column per class."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from calibrant.data.formats.columns import class_names
from calibrant.errors import InputError


def to_values(table: pa.Table, columns: dict[str, list[str]]) -> dict[str, Any]:
    """Return an array for each key, and the class names if the headers tell them."""
    values: dict[str, Any] = {}
    for key, spread in columns.items():
        arrays = [_array(table[column], column) for column in spread]
        values[key] = arrays[0] if spread == [key] else np.stack(arrays, axis=1)
    if (named := class_names(columns)) is not None:
        values["class_names"] = named
    return values


def _array(column: pa.ChunkedArray, name: str) -> npt.NDArray[Any]:
    _check_complete(column, name)
    if not _is_list(column.type):
        return np.asarray(column.to_numpy())
    lengths = pc.list_value_length(column).to_numpy()
    width = int(lengths[0]) if len(lengths) else 0
    if (lengths != width).any():
        row = int((lengths != width).argmax())
        raise InputError(
            f"{name}: expected lists of equal length, got {width} in row 0 and {lengths[row]} in row {row}; "
            "give every row all classes"
        )
    flat = pc.list_flatten(column)
    _check_complete(flat, name, per_row=width)
    return np.asarray(flat.to_numpy()).reshape(len(column), width)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _check_complete(column: pa.ChunkedArray, name: str, *, per_row: int = 1) -> None:
    if column.null_count:
        row = pc.index(column.is_null(), True).as_py() // per_row
        raise InputError(
            f"{name}: expected a value in every row, got an empty one in row {row}; drop or fill such rows"
        )
