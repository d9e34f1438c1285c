"""A batch of a stream: predictions that have been checked, their groups, and where they come from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calibrant.data.formats.table import to_values
from calibrant.data.predictions import Predictions

# What a row is called whose group is empty.
NO_GROUP = "(none)"


@dataclass(frozen=True, eq=False)
class StreamBatch:
    """Some rows of a stream.

    Attributes:
        predictions: What was said and what was true, sharing memory with what was read where possible.
        file: Name of the file, below the folder of the stream.
        row_group: Number of the row group in the file.
        first_row: Number of the first row in the file.
        names: Names of the groups that occur; empty if nothing groups.
        codes: Which of ``names`` each row belongs to; none if all belong to the first.
    """

    predictions: Predictions
    file: str
    row_group: int
    first_row: int
    names: tuple[str, ...] = ()
    codes: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.predictions)


def to_predictions(
    batch: pa.RecordBatch, columns: Mapping[str, Sequence[str]], names: Sequence[str] | None
) -> Predictions:
    """Check a batch of rows, without a copy where a matrix is one column of lists of fixed size."""
    values: dict[str, Any] = {}
    others: dict[str, list[str]] = {}
    for key, spread in columns.items():
        flat = _flat(batch.column(spread[0])) if list(spread) == [key] else None
        if flat is None:
            others[key] = list(spread)
        else:
            values[key] = flat
    if others:
        values |= to_values(pa.Table.from_batches([batch]), others)
    if names is not None:
        values["class_names"] = names
    return Predictions(**values)


def to_groups(column: pa.Array) -> tuple[tuple[str, ...], npt.NDArray[np.int64] | None]:
    """Return the names of the groups in a column, and which one each row belongs to."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode(null_encoding="encode")
    told = [NO_GROUP if value is None else str(value) for value in column.dictionary.to_pylist()]
    indices = column.indices.fill_null(len(told)) if column.indices.null_count else column.indices
    codes = np.from_dlpack(indices).astype(np.int64)
    # A dictionary that came with the file may hold more than occurs here.
    used, codes = np.unique(codes, return_inverse=True)
    names = tuple([*told, NO_GROUP][code] for code in used.tolist())
    return names, None if len(names) == 1 else codes


def _flat(column: pa.Array) -> npt.NDArray[Any] | None:
    """Return a view of numbers without gaps; none if that cannot be had.

    Arrow's ``to_numpy`` would do, but it loads pandas, which takes longer than millions of rows.
    """
    if column.null_count:
        return None
    if pa.types.is_fixed_size_list(column.type):
        values = column.flatten()
        if values.null_count == 0 and pa.types.is_floating(values.type):
            return np.from_dlpack(values).reshape(len(column), column.type.list_size)
    elif pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
        return np.from_dlpack(column)
    return None
