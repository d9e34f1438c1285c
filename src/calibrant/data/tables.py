"""Tables with one row per sample: ``.parquet``, ``.csv`` and ``.tsv``.

A matrix is one column of lists, or one column per class: ``logits_0, logits_1, ...`` or
``logits_<class name>``.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.data.columns import ColumnName, Columns, FileRows
from calibrant.data.contents import (
    beside_columns,
    check_once,
    class_names,
    find_columns,
    from_beside,
    group_columns,
    is_group,
    labels_by_number,
    notes_of,
    present,
    signal_arrays,
    to_arrays,
    under_our_names,
)
from calibrant.data.parquet import notes_in, open_parquet, with_notes, write_parquet
from calibrant.data.plain_tables import PlainCsv
from calibrant.data.predictions import Stored
from calibrant.data.text_tables import written_columns
from calibrant.errors import InputError
from calibrant.extras import optional
from calibrant.files import is_packed, unpacked
from calibrant.text import unguarded

with optional("tables"):
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions, WriteOptions, read_csv, write_csv

# A row must fit into one block of a CSV file, and features may make it long.
_BLOCK_BYTES = 1 << 24


class Parquet:
    """Matrices as fixed-size lists, class names and metadata in the schema under ``calibrant``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def opened(self) -> AbstractContextManager[Any]:
        """Open the file."""
        file: AbstractContextManager[Any] = open_parquet(self.path)
        return file

    def names(self) -> list[str]:
        """Return the names of all columns, and of fields within structures."""
        with self.opened() as file:
            return list(dict(_paths(file.schema_arrow)))

    def read(
        self, columns: Columns, kept: npt.NDArray[np.bool_] | None = None
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the columns with our keys, whether lists or one column per class, and all names."""
        with self.opened() as file:
            schema = file.schema_arrow
            paths = dict(_paths(schema))
            given = [name for several in columns.other_names.values() for name in several]
            within = [name for name in given if name not in schema.names and name in paths]
            ours = under_our_names([*schema.names, *within], columns)
            spread, beside = find_columns(list(ours)), beside_columns(list(ours))
            own = [*(column for each in spread.values() for column in each), *beside]
            check_once((ours[column] for column in own), schema.names)
            table = file.read(columns=list(dict.fromkeys(paths[ours[column]][0] for column in own)))
        table = pa.table({column: _field(table, paths[ours[column]]) for column in own})
        table = table if kept is None else table.filter(pa.array(kept))
        notes = notes_in(schema)
        known = {key: notes[key] for key in ("class_names", "metadata") if key in notes}
        return to_values(table, spread) | _beside(table, beside) | known, schema.names

    def read_columns(self, wanted: Sequence[str], optional: Sequence[str] = ()) -> FileRows:
        """Return columns by name; dots lead into columns of structures."""
        with self.opened() as file:
            paths = dict(_paths(file.schema_arrow))
            names = present(wanted, optional, list(paths))
            table = file.read(columns=list(dict.fromkeys(paths[name][0] for name in names)))
        return FileRows({name: _plain(_field(table, paths[name])) for name in names})

    def write(self, predictions: Stored) -> None:
        """Write one row per sample."""
        columns = {
            key: pa.array(array)
            if array.ndim == 1
            else pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), array.shape[1])
            for key, array in to_arrays(predictions).items()
        }
        columns |= {name: pa.array(array) for name, array in signal_arrays(predictions).items()}
        if predictions.groups is not None:
            for name, groups in group_columns(predictions.groups).items():
                columns[name] = pa.DictionaryArray.from_arrays(groups.codes.numpy(), pa.array(groups.names))
        write_parquet(pa.table(columns, metadata=with_notes(notes_of(predictions))), self.path)


class Csv(PlainCsv):
    """Tables of text read by Arrow, many times as fast; numbers that people wrote are left to Python."""

    def read(
        self, columns: Columns, kept: npt.NDArray[np.bool_] | None = None
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the columns with our keys, and all names; headers other than numbers name the classes."""
        ours, spread, beside = self.found(columns)
        own = [*(column for each in spread.values() for column in each), *beside]
        # The first block alone may suggest the wrong type, such as integers for scores that start out whole.
        others = ("labels", "correct", "units")
        numbers = {c for key, each in spread.items() if key not in others for c in each}
        numbers |= {name for name in beside if not is_group(name)}
        types = {ours[name]: pa.float64() for name in numbers}
        types |= {ours[name]: pa.string() for name in own if name == "units" or is_group(name)}
        named = [ours[column] for column in own]
        if not own:  # without names, all columns would be read
            return {}, self.header
        try:
            table = self._read(include_columns=named, column_types=types).rename_columns(own)
        except pa.ArrowInvalid:
            return super().read(columns, kept)
        for name in (name for name in own if name == "labels" or is_group(name)):
            if pa.types.is_string(table[name].type):
                place = table.schema.get_field_index(name)
                table = table.set_column(place, name, _without_guards(table[name]))
        table = table if kept is None else table.filter(pa.array(kept))
        return to_values(table, spread) | _beside(table, beside), self.header

    def read_columns(self, wanted: Sequence[str], optional: Sequence[str] = ()) -> FileRows:
        """Return columns of text by name; numbers are parsed later, when it is known what they mean."""
        names = present(wanted, optional, self.header)
        check_once(names, self.header)
        table = self._read(
            include_columns=names, column_types=dict.fromkeys(names, pa.string()), **_EMPTY_IS_NULL
        )
        return FileRows({name: _plain(_without_guards(table[name])) for name in names})

    def _read(self, **convert: Any) -> pa.Table:  # noqa: ANN401  # options of pyarrow
        delimiter, header, is_named = self.dialect
        names = {} if is_named else {"column_names": header, "skip_rows": 1}
        with unpacked(self.path) as file:
            return read_csv(
                file if is_packed(self.path) else self.path,  # a path is read by several threads
                read_options=ReadOptions(block_size=_BLOCK_BYTES, **names),
                parse_options=ParseOptions(newlines_in_values=True, delimiter=delimiter),
                convert_options=ConvertOptions(**convert),
            )

    def write(self, predictions: Stored) -> None:
        """Write a header and one row per sample, with enough digits to read back the same number."""
        with unpacked(self.path, "wb") as file:
            write_csv(pa.table(written_columns(predictions)), file, WriteOptions(delimiter=self.delimiter))


class Tsv(Csv):
    """As ``.csv``, with tabs between columns."""

    delimiter = "\t"


# Options under which empty cells of text are null and everything else is text.
_EMPTY_IS_NULL: dict[str, Any] = {"null_values": [""], "strings_can_be_null": True}


def _without_guards(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return text without the apostrophes that keep spreadsheets from taking it for formulas."""
    if not pc.any(pc.starts_with(column, "'")).as_py():
        return column
    texts = [None if text is None else unguarded(text) for text in column.to_pylist()]
    return pa.chunked_array([pa.array(texts, pa.string())])


def to_values(table: pa.Table, columns: dict[str, list[str]]) -> dict[str, Any]:
    """Return an array for each key, and the class names if the headers contain them."""
    values: dict[str, Any] = {}
    for key, spread in columns.items():
        arrays = [_array(table[column], column) for column in spread]
        values[key] = arrays[0] if spread == [key] else np.stack(arrays, axis=1)
    if (named := class_names(columns)) is not None:
        values["class_names"] = named
    return labels_by_number(values, named)


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


def _beside(table: pa.Table, names: Sequence[str]) -> dict[str, Any]:
    """Return groups and signals; signals that are null become NaN."""
    return from_beside(
        {
            name: table[name].cast(pa.float64()).to_numpy() if not is_group(name) else _plain(table[name])
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


def _plain(column: pa.ChunkedArray) -> ColumnName:
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
            f"{name}: expected a value in every row, got an empty one in row {row}; fill such rows, or leave "
            "them out with missing='drop'"
        )
