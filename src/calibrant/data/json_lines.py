"""JSON Lines: one object per line, ``.jsonl``."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.data.columns import Columns, FileRows
from calibrant.data.contents import (
    MATRICES,
    beside_columns,
    class_names,
    find_columns,
    from_beside,
    group_columns,
    is_group,
    label_numbers,
    labels_by_number,
    missing_column,
    signal_arrays,
    to_arrays,
    to_text,
    under_our_names,
)
from calibrant.data.predictions import Stored
from calibrant.errors import FormatError, InputError
from calibrant.files import unpacked, without_nan

_MISSING = object()


class JsonLines:
    """One object per sample; a matrix is a list, or an object by class name; metadata is lost.

    Attributes:
        unit: What an object is called in error messages.
    """

    unit = "line"

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """The objects of the file, in its order."""
        return [record for _, record in self._numbered]

    @cached_property
    def numbers(self) -> list[int]:
        """The number of each object in error messages: its line, counted from one."""
        return [line for line, _ in self._numbered]

    def names(self) -> list[str]:
        """Return the names of all keys."""
        return list(dict.fromkeys(name for record in self.records for name in record))

    def read(
        self, columns: Columns, kept: npt.NDArray[np.bool_] | None = None
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the values under our keys, and the names of all keys."""
        if kept is not None:
            return self._part(kept).read(columns)
        names = self.names()
        given = [name for several in columns.other_names.values() for name in several]
        within = [name for name in given if name not in names and self._column(name)[0] is not None]
        ours = under_our_names([*names, *within], columns)
        spread, beside = find_columns(list(ours)), beside_columns(list(ours))
        values: dict[str, Any] = {}
        for key, own in spread.items():
            arrays = [self._array(column, ours[column], values) for column in own]
            values[key] = arrays[0] if own == [key] else np.stack(arrays, axis=1)
        if (named := class_names(spread)) is not None:
            values["class_names"] = named
        values = labels_by_number(values, values.get("class_names"))
        more: dict[str, Any] = {name: self._column(ours[name]) for name in beside}
        for name in (name for name in more if not is_group(name)):
            more[name] = np.asarray(more[name], dtype=np.float64)  # null becomes NaN
        return values | from_beside(more), names

    def read_columns(self, wanted: Sequence[str], optional: Sequence[str] = ()) -> FileRows:
        """Return values by key; dots in a key lead into objects. A key may lack in some lines, not in all."""
        columns = {}
        for name in (*wanted, *optional):
            column = [_within(record, name) for record in self.records]
            if any(value is not _MISSING for value in column):
                columns[name] = [None if value is _MISSING else value for value in column]
            elif name in wanted:
                raise missing_column(name, list(self.records[0]))
        return FileRows(columns, self.unit, self.numbers)

    def write(self, predictions: Stored) -> None:
        """Write one object per sample; numbers become float64, missing signals and masked classes null."""
        columns: dict[str, list[Any]] = {}
        for key, array in to_arrays(predictions).items():
            rows = (array.astype(np.float64) if array.dtype.kind == "f" else array).tolist()
            if key in ("logits", "probs") and predictions.class_names is not None:
                rows = [dict(zip(predictions.class_names, row, strict=True)) for row in rows]
            columns[key] = rows
        if (labels := label_numbers(predictions)) is not None:
            columns["labels"] = labels.tolist()
        columns |= {name: array.tolist() for name, array in signal_arrays(predictions).items()}
        if predictions.groups is not None:
            columns |= {name: each.values for name, each in group_columns(predictions.groups).items()}
        rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
        write_records(self.path, rows)

    @cached_property
    def _numbered(self) -> list[tuple[int, dict[str, Any]]]:
        with unpacked(self.path) as packed, TextIOWrapper(packed, encoding="utf-8-sig") as file:
            numbered = [(line, _record(text, line)) for line, text in enumerate(file, 1) if text.strip()]
        if not numbered:
            raise FormatError("expected an object in each line, got empty lines only; write it again")
        return numbered

    def _part(self, kept: npt.NDArray[np.bool_]) -> "JsonLines":
        """Return some objects of the file, under the numbers of their lines."""
        part = type(self)(self.path)
        part.records = [record for record, used in zip(self.records, kept.tolist(), strict=True) if used]
        part.numbers = [number for number, used in zip(self.numbers, kept.tolist(), strict=True) if used]
        return part

    def _column(self, name: str) -> list[Any]:
        return [value_at(record, name) for record in self.records]

    def _array(self, key: str, name: str, values: dict[str, Any]) -> npt.NDArray[Any]:
        """Return the values of a key; objects by class name become lists, and their names class names."""
        column = self._complete(name)
        if key in MATRICES and isinstance(column[0], dict):
            values["class_names"] = list(column[0])
            column = [list(self._same_names(row, column).values()) for row in range(len(column))]
        column = self._same_lengths(name, column)
        if key == "logits":
            # JSON has no infinity: null is a masked class.
            column = [
                [-math.inf if each is None else each for each in row] if isinstance(row, list) else row
                for row in column
            ]
        return np.asarray(column)

    def _complete(self, key: str) -> list[Any]:
        column = self._column(key)
        for row, value in enumerate(column):
            if value is None:
                raise InputError(
                    f"{key}: expected a value in every line, got none in line {self.numbers[row]}; drop or "
                    "fill such lines"
                )
        return column

    def _same_names(self, row: int, column: list[Any]) -> dict[str, Any]:
        if not isinstance(column[row], dict) or list(column[row]) != list(column[0]):
            raise InputError(
                f"expected the classes {', '.join(column[0])} as in line {self.numbers[0]}, got others in "
                f"line {self.numbers[row]}; give every line all classes in the same order"
            )
        return dict(column[row])

    def _same_lengths(self, key: str, column: list[Any]) -> list[Any]:
        widths = [len(value) if isinstance(value, list) else 0 for value in column]
        for row, width in enumerate(widths):
            if width != widths[0]:
                raise InputError(
                    f"{key}: expected lists of equal length, got {widths[0]} in line {self.numbers[0]} and "
                    f"{width} in line {self.numbers[row]}; give every line all classes"
                )
        return column


def write_records(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write one object per line; NaN and infinity become null."""
    with unpacked(path, "wb") as file:
        file.writelines(f"{to_text(without_nan(record))}\n".encode() for record in records)


def value_at(record: object, name: str) -> Any:  # noqa: ANN401  # any JSON value
    """Return the value of a key, in which dots lead from object to object; none if there is none.

    Example:
        >>> value_at({"doc": {"subject": "law"}}, "doc.subject")
        'law'
    """
    value = _within(record, name)
    return None if value is _MISSING else value


def _record(text: str, line: int) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        shown = text.strip()[:40]
        raise FormatError(
            f"line {line}: expected a JSON object, got {shown!r} ({error.msg}); write one object per line"
        ) from None
    if not isinstance(record, dict):
        raise FormatError(
            f"line {line}: expected a JSON object, got {type(record).__name__}; write one object per line"
        )
    return record


def _within(record: Any, name: str) -> Any:  # noqa: ANN401  # any JSON value
    """Return the value of a key; where there is none, dots lead from object to object."""
    if not isinstance(record, dict):
        return _MISSING
    if name in record:
        return record[name]
    first, dot, rest = name.partition(".")
    return _within(record.get(first), rest) if dot else _MISSING
