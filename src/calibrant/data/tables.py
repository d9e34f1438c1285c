"""Tables with one row per sample: ``.parquet`` and ``.csv``.

A matrix is one column of lists, or one column per class: ``logits_0, logits_1, ...`` or
``logits_<class name>``.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions, read_csv, write_csv

from calibrant.data.columns import Column, Rows
from calibrant.data.contents import (
    GROUPS,
    MATRICES,
    VECTORS,
    beside_columns,
    from_beside,
    from_text,
    notes_of,
    present,
    signal_arrays,
    to_arrays,
    to_text,
)
from calibrant.data.predictions import Predictions
from calibrant.errors import FormatError, InputError

_NOTES = b"calibrant"
# A row must fit into one block of a CSV file, and features may make it long.
_BLOCK_BYTES = 1 << 24


class Parquet:
    """Matrices as fixed-size lists, class names and metadata in the schema under ``calibrant``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[dict[str, Any], list[str]]:
        """Return the columns with our keys, whether lists or one column per class, and all names."""
        with pq.ParquetFile(self.path) as file:
            schema = file.schema_arrow
            columns, beside = find_columns(schema.names), beside_columns(schema.names)
            own = [column for spread in columns.values() for column in spread]
            table = file.read(columns=[*own, *beside])
        notes = from_text((schema.metadata or {}).get(_NOTES, b"{}").decode(), "calibrant")
        known = {key: notes[key] for key in ("class_names", "metadata") if key in notes}
        return to_values(table, columns) | _beside(table, beside) | known, schema.names

    def read_columns(self, wanted: Sequence[str], optional: Sequence[str] = ()) -> Rows:
        """Return columns by name; dots lead into columns of structures."""
        with pq.ParquetFile(self.path) as file:
            paths = dict(_paths(file.schema_arrow))
            names = present(wanted, optional, list(paths))
            table = file.read(columns=list(dict.fromkeys(paths[name][0] for name in names)))
        return Rows({name: _plain(_field(table, paths[name])) for name in names})

    def write(self, predictions: Predictions) -> None:
        """Write one row per sample."""
        columns = {
            key: pa.array(array)
            if array.ndim == 1
            else pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), array.shape[1])
            for key, array in to_arrays(predictions).items()
        }
        columns |= {name: pa.array(array) for name, array in signal_arrays(predictions).items()}
        if predictions.groups is not None:
            groups = predictions.groups
            columns[GROUPS] = pa.DictionaryArray.from_arrays(groups.codes.numpy(), pa.array(groups.names))
        pq.write_table(pa.table(columns, metadata={_NOTES: to_text(notes_of(predictions))}), self.path)


class Csv:
    """One column per class, named by its number or its class; numbers become float64, metadata is lost."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def header(self) -> list[str]:
        """The names of all columns."""
        with self.path.open(encoding="utf-8-sig", newline="") as file:
            return next((row for row in csv.reader(file) if row), [])

    def read(self) -> tuple[dict[str, Any], list[str]]:
        """Return the columns with our keys, and all names; headers other than numbers name the classes."""
        columns, beside = find_columns(self.header), beside_columns(self.header)
        # The first block alone may suggest the wrong type, such as integers for scores that start out whole.
        numbers = [c for key, spread in columns.items() if key not in ("labels", "correct") for c in spread]
        types = {name: pa.string() if name == GROUPS else pa.float64() for name in (*numbers, *beside)}
        own = [column for spread in columns.values() for column in spread]
        table = self._read(include_columns=[*own, *beside], column_types=types)
        return to_values(table, columns) | _beside(table, beside), self.header

    def read_columns(self, wanted: Sequence[str], optional: Sequence[str] = ()) -> Rows:
        """Return columns of text by name; numbers are parsed later, when it is known what they mean."""
        names = present(wanted, optional, self.header)
        for name in names:
            _check_once(name, self.header)
        table = self._read(**_as_text(names))
        return Rows({name: _plain(table[name]) for name in names})

    def _read(self, **convert: Any) -> pa.Table:  # noqa: ANN401  # options of pyarrow
        return read_csv(
            self.path,
            read_options=ReadOptions(block_size=_BLOCK_BYTES),
            parse_options=ParseOptions(newlines_in_values=True),
            convert_options=ConvertOptions(**convert),
        )

    def write(self, predictions: Predictions) -> None:
        """Write a header and one row per sample, with enough digits to read back the same number."""
        columns: dict[str, Any] = {}
        for key, array in to_arrays(predictions).items():
            if array.dtype.kind == "f":
                array = array.astype(np.float64)
            if array.ndim == 1:
                columns[key] = array
            else:
                headers = _headers(key, array.shape[1], predictions.class_names)
                columns |= dict(zip(headers, array.T, strict=True))
        columns |= signal_arrays(predictions)
        if predictions.groups is not None:
            columns[GROUPS] = predictions.groups.values
        write_csv(pa.table(columns), self.path)


def find_columns(names: Sequence[str]) -> dict[str, list[str]]:
    """Return the columns of each of our keys, in the order of the classes; other columns are ignored."""
    found = {key: [key] for key in (*MATRICES, *VECTORS) if key in names}
    for key in MATRICES:
        spread = [f"{key}_{suffix}" for suffix in _suffixes(names, key)]
        if spread and key in found:
            raise FormatError(
                f"{key}: expected one column or one per class, got both {key!r} and {spread[0]!r}; drop one"
            )
        if spread:
            found[key] = spread
    for column in (column for columns in found.values() for column in columns):
        _check_once(column, names)
    return found


def class_names(columns: dict[str, list[str]]) -> list[str] | None:
    """Return the names in the headers of the predictions, unless these only count from zero."""
    for key in ("logits", "probs"):
        spread = columns.get(key, [key])
        if spread != [key]:
            named = [column.removeprefix(f"{key}_") for column in spread]
            return None if named == [str(i) for i in range(len(named))] else named
    return None


def to_values(table: pa.Table, columns: dict[str, list[str]]) -> dict[str, Any]:
    """Return an array for each key, and the class names if the headers contain them."""
    values: dict[str, Any] = {}
    for key, spread in columns.items():
        arrays = [_array(table[column], column) for column in spread]
        values[key] = arrays[0] if spread == [key] else np.stack(arrays, axis=1)
    if (named := class_names(columns)) is not None:
        values["class_names"] = named
    return values


def _array(column: pa.ChunkedArray, name: str) -> npt.NDArray[Any]:
    _check_complete(column, name)
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
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


def _check_once(column: str, names: Sequence[str]) -> None:
    if names.count(column) > 1:
        raise FormatError(f"expected each column once, got {column!r} twice; drop or rename one")


def _as_text(columns: Sequence[str]) -> dict[str, Any]:
    """Return options under which empty cells are null and everything else is text."""
    return {
        "include_columns": columns,
        "column_types": dict.fromkeys(columns, pa.string()),
        "null_values": [""],
        "strings_can_be_null": True,
    }


def _beside(table: pa.Table, names: Sequence[str]) -> dict[str, Any]:
    """Return groups and signals; signals that are null become NaN."""
    return from_beside(
        {
            name: table[name].cast(pa.float64()).to_numpy() if name != GROUPS else _plain(table[name])
            for name in names
        }
    )


def _paths(fields: Iterable[pa.Field], above: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the dotted name of each column, and of each field within structures, with its path."""
    for field in fields:
        path = (*above, field.name)
        yield ".".join(path), path
        if pa.types.is_struct(field.type):
            yield from _paths(field.type, path)


def _field(table: pa.Table, path: tuple[str, ...]) -> pa.ChunkedArray:
    return pc.struct_field(table[path[0]], path[1:]) if path[1:] else table[path[0]]


def _plain(column: pa.ChunkedArray) -> Column:
    """Return numbers, in which missing ones are NaN, or values of any kind, in which they are None."""
    kind = column.type
    if pa.types.is_floating(kind) or pa.types.is_integer(kind):
        return np.asarray(column.cast(pa.float64()).to_numpy() if column.null_count else column.to_numpy())
    if pa.types.is_boolean(kind) and not column.null_count:
        return np.asarray(column.to_numpy())
    if pa.types.is_dictionary(kind):
        return _plain(column.cast(kind.value_type))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.asarray(column.to_numpy(), dtype=object)  # several times faster than a list
    return list(column.to_pylist())


def _check_complete(column: pa.ChunkedArray, name: str, *, per_row: int = 1) -> None:
    if column.null_count:
        row = pc.index(column.is_null(), True).as_py() // per_row
        raise InputError(
            f"{name}: expected a value in every row, got an empty one in row {row}; drop or fill such rows"
        )


def _suffixes(names: Sequence[str], key: str) -> list[str]:
    """Return what follows ``key_``: numbers in numeric order, names in the order of the table."""
    found = [name.removeprefix(f"{key}_") for name in names if name.startswith(f"{key}_")]
    numbers = {int(suffix) for suffix in found if _is_number(suffix)}
    if all(_is_number(suffix) for suffix in found):
        return sorted(found, key=int)
    if len(numbers) > 1 and numbers == set(range(len(numbers))):
        # To take 'logits_max' next to 'logits_0' and 'logits_1' for a third class would be a silent error.
        stray = next(suffix for suffix in found if not _is_number(suffix))
        raise FormatError(
            f"{key}: expected columns with numbers or with names, "
            f"got both '{key}_0' and '{key}_{stray}'; rename one kind"
        )
    return found


def _is_number(suffix: str) -> bool:
    return suffix.isascii() and suffix.isdigit() and str(int(suffix)) == suffix


def _headers(key: str, width: int, class_names: tuple[str, ...] | None) -> list[str]:
    if class_names is None or key == "features":
        return [f"{key}_{i}" for i in range(width)]
    headers = [f"{key}_{name}" for name in class_names]
    if _suffixes(headers, key) != list(class_names):
        raise InputError(
            f"class_names: expected names that do not look like column numbers, got {class_names[0]!r} and "
            "others; save as .npz, .parquet or .safetensors"
        )
    return headers
