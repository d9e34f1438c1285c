"""Tables of text read cell by cell: without Arrow, and for numbers as people write them, such as 93,5."""

import csv
import re
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from calibrant.data.columns import Columns, FileRows
from calibrant.data.contents import (
    beside_columns,
    check_once,
    class_names,
    find_columns,
    from_beside,
    is_group,
    labels_by_number,
    present,
    under_our_names,
)
from calibrant.data.predictions import Stored
from calibrant.data.text_tables import TextTable, written_columns
from calibrant.errors import FormatError, InputError
from calibrant.files import unpacked
from calibrant.text import csv_lines, unguarded

Texts: TypeAlias = list[str]
# How tables write that a value is missing.
_NO_NUMBER = frozenset(["", "nan", "na", "null", "n/a"])
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+|inf(inity)?)([eE][-+]?\d+)?", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+([eE][-+]?\d+)?")
_WHOLE = re.compile(r"[-+]?\d{1,18}")
_TRUTH = {"true": True, "false": False}


class PlainCsv(TextTable):
    """One column per class, named by its number or its class; numbers become float64, metadata is lost."""

    def found(self, columns: Columns) -> tuple[dict[str, str], dict[str, list[str]], list[str]]:
        """Return the columns of the file by our names, those of each array, and those beside them."""
        ours = under_our_names(self.header, columns)
        spread, beside = find_columns(list(ours)), beside_columns(list(ours))
        own = [*(column for each in spread.values() for column in each), *beside]
        check_once((ours[column] for column in own), self.header)
        return ours, spread, beside

    def read(
        self, columns: Columns, kept: npt.NDArray[np.bool_] | None = None
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the columns with our keys, and all names; headers other than numbers name the classes."""
        ours, spread, beside = self.found(columns)
        own = [*(column for each in spread.values() for column in each), *beside]
        texts = self._columns([ours[column] for column in own])
        if kept is not None:
            chosen = np.flatnonzero(kept).tolist()
            texts = {name: [column[row] for row in chosen] for name, column in texts.items()}
        values: dict[str, Any] = {}
        for key, names in spread.items():
            arrays = [_array(key, texts[ours[name]], name, percent=columns.percent) for name in names]
            values[key] = arrays[0] if names == [key] else np.stack(arrays, axis=1)
        if (named := class_names(spread)) is not None:
            values["class_names"] = named
        values = labels_by_number(values, named)
        more = {name: _beside(texts[ours[name]], name, percent=columns.percent) for name in beside}
        return values | from_beside(more), self.header

    def read_columns(self, wanted: Sequence[str], optional: Sequence[str] = ()) -> FileRows:
        """Return columns of text by name; numbers are parsed later, when it is known what they mean."""
        names = present(wanted, optional, self.header)
        check_once(names, self.header)
        return FileRows({name: _texts(column) for name, column in self._columns(names).items()})

    def write(self, predictions: Stored) -> None:
        """Write a header and one row per sample, with enough digits to read back the same number."""
        columns = written_columns(predictions)
        cells = [each.tolist() if isinstance(each, np.ndarray) else each for each in columns.values()]
        rows = ([_cell(each) for each in row] for row in zip(*cells, strict=True))
        with unpacked(self.path, "wb") as file:
            lines = csv_lines([[*columns], *rows], delimiter=self.delimiter)
            file.writelines(line.encode() for line in lines)

    def _columns(self, names: Sequence[str]) -> dict[str, Texts]:
        """Return the cells of some columns by name."""
        width = len(self.header)
        places = {name: self.header.index(name) for name in names}
        columns: dict[str, Texts] = {name: [] for name in names}
        with self.opened() as file:
            rows = (row for row in csv.reader(file, delimiter=self.dialect.delimiter) if row)
            next(rows, None)
            for number, row in enumerate(rows):
                if len(row) != width:
                    raise FormatError(
                        f"row {number}: expected {width} columns, as in the header, got {len(row)}; it may "
                        "be truncated"
                    )
                for name, place in places.items():
                    columns[name].append(row[place])
        return columns


class PlainTsv(PlainCsv):
    """As ``.csv``, with tabs between columns."""

    delimiter = "\t"


def _cell(value: Any) -> Any:  # noqa: ANN401  # a number, a truth value or text
    if isinstance(value, bool):
        return str(value).lower()
    return "" if isinstance(value, float) and value != value else value


def _texts(column: Texts) -> npt.NDArray[Any]:
    """Return text, None if empty, without apostrophes that keep spreadsheets from taking it for formulas."""
    return np.asarray([unguarded(text) if text else None for text in column], dtype=object)


def _beside(column: Texts, name: str, *, percent: bool) -> npt.NDArray[Any]:
    """Return groups as text, and signals as numbers, NaN where one is missing."""
    return _texts(column) if is_group(name) else _numbers(column, name, percent=percent)


def _array(key: str, column: Texts, name: str, *, percent: bool) -> npt.NDArray[Any]:
    """Return the values of a column that may lack none."""
    if key == "units":
        values: npt.NDArray[Any] = _texts(column)
    elif key in ("labels", "correct"):
        values = _inferred(column, guarded=key == "labels")
    elif column and column[0].lstrip().startswith("["):
        return _lists(column, name)
    else:
        values = _numbers(column, name, percent=percent)
    missing = (
        values != values
        if values.dtype.kind == "f"
        else np.asarray([each is None for each in values.tolist()])
    )
    if missing.any():
        raise InputError(
            f"{name}: expected a value in every row, got an empty one in row {int(missing.argmax())}; fill "
            "such rows, or leave them out with missing='drop'"
        )
    return values


def _inferred(column: Texts, *, guarded: bool) -> npt.NDArray[Any]:
    """Return whole numbers, truth values, other numbers or text: the first that all cells are."""
    cells = [re.sub(r"^(\d+),0*$", r"\1", text.strip()) for text in column]  # 1,0 is 1.0
    if all(map(_WHOLE.fullmatch, cells)):
        return np.asarray([int(text) for text in cells])
    if all(text.lower() in _TRUTH for text in cells):
        return np.asarray([_TRUTH[text.lower()] for text in cells])
    if all(text.lower() in _NO_NUMBER or _NUMBER.fullmatch(text) for text in cells):
        return _as_floats(cells)
    if guarded:
        return _texts(column)
    return np.asarray([text or None for text in column], dtype=object)


def _numbers(column: Texts, name: str, *, percent: bool) -> npt.NDArray[np.float64]:
    """Return the numbers in a column of text: with a point, with a decimal comma, or in percent."""
    cells = [text.strip() for text in column]
    marked = any(text.endswith("%") for text in cells)
    if percent:
        cells = [text.rstrip("%").rstrip() for text in cells]
    if any(map(_DECIMAL_COMMA.fullmatch, cells)):
        _refuse(["." in text for text in cells], cells, name, "; write all of them with a point")
        cells = [text.replace(",", ".") for text in cells]
    advice = "; these are percent: say percent=True, or write fractions" if marked else ""
    wrong = [not (text.lower() in _NO_NUMBER or _NUMBER.fullmatch(text)) for text in cells]
    _refuse(wrong, cells, name, advice)
    return _as_floats(cells)


def _as_floats(cells: Texts) -> npt.NDArray[np.float64]:
    numbers = [np.nan if text.lower() in _NO_NUMBER else float(text) for text in cells]
    return np.asarray(numbers, dtype=np.float64)


def _refuse(wrong: Sequence[bool], cells: Texts, name: str, advice: str) -> None:
    if True in wrong:
        row = wrong.index(True)
        raise InputError(f"{name}: expected a number, got {cells[row][:40]!r} in row {row}{advice}")


def _lists(column: Texts, name: str) -> npt.NDArray[np.float64]:
    """Return the lists in a column of text, such as ``[0.9, 0.1]`` or ``[0.9 0.1]``."""
    rows: list[list[float]] = []
    for row, text in enumerate(column):
        try:
            plain = re.sub(r"np\.float\d+\(([^)]*)\)", r"\1", text.strip("[ ]"))
            rows.append([float(value) for value in re.split(r"[\s,]+", plain)])
        except ValueError:
            raise InputError(
                f"{name}: expected a list of numbers such as [0.9, 0.1], got {text[:40]!r} in row "
                f"{row}; write one column for each class"
            ) from None
        if len(rows[row]) != len(rows[0]):
            raise InputError(
                f"{name}: expected lists of equal length, got {len(rows[0])} in row 0 and {len(rows[row])} "
                f"in row {row}; give every row all classes"
            )
    return np.asarray(rows, dtype=np.float64)
