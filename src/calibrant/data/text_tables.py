"""Tables of text, ``.csv`` and ``.tsv``: what separates columns, their names, and what is written."""

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from calibrant.data.contents import group_columns, label_numbers, signal_arrays, suffixes, to_arrays
from calibrant.data.predictions import Stored
from calibrant.errors import FormatError, InputError
from calibrant.files import unpacked
from calibrant.text import guarded

# What may separate columns, and the rows that decide which.
_DELIMITERS = ",;\t|"
_DECIDING = 6


class Dialect(NamedTuple):
    """How a table of text is written.

    Attributes:
        delimiter: What separates columns.
        header: The names of all columns; empty for an index without a name.
        is_named: Whether the header has a name, which may be empty, for each column.
    """

    delimiter: str
    header: list[str]
    is_named: bool = True


class TextTable:
    """A table of text: commas, semicolons, tabs or bars may separate columns.

    Attributes:
        delimiter: What separates columns in files that are written.
    """

    delimiter = ","

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def dialect(self) -> Dialect:
        """What separates columns, recognised from the first rows, and the names of the columns."""
        others = [delimiter for delimiter in _DELIMITERS if delimiter != self.delimiter]
        found = [(delimiter, self._first_rows(delimiter)) for delimiter in (self.delimiter, *others)]
        # Of several that give a table, the one with most columns; of equal ones, that of the suffix.
        delimiter, rows = max(found, key=lambda each: (_fits(each[1]), len(each[1][0]) if each[1] else 0))
        header = rows[0] if rows else []
        if len(header) == 1 and len(re.split(r"[\s:]+", header[0].strip())) > 1:
            raise FormatError(
                f"expected columns separated by commas, semicolons, tabs or bars, got one column "
                f"{header[0][:40]!r}; write the table with one of these"
            )
        if not _has_index(rows):
            return Dialect(delimiter, header)
        at_the_end = all(row[-1] == "" for row in rows[1:])  # a delimiter at the end of each row
        return Dialect(delimiter, [*header, ""] if at_the_end else ["", *header], is_named=False)

    def _first_rows(self, delimiter: str) -> list[list[str]]:
        with self.opened() as file:
            rows = (row for row in csv.reader(file, delimiter=delimiter) if row)
            try:
                return list(islice(rows, _DECIDING))
            except csv.Error:  # a row of many columns is a cell that is too long for another delimiter
                return []

    @property
    def header(self) -> list[str]:
        """The names of all columns."""
        return self.dialect.header

    def names(self) -> list[str]:
        """Return the names of all columns."""
        return self.header

    def records(self) -> list[dict[str, str]]:
        """Return each row as text by the names of the columns."""
        with self.opened() as file:
            rows = (row for row in csv.reader(file, delimiter=self.dialect.delimiter) if row)
            next(rows, None)
            return [dict(zip(self.header, row, strict=False)) for row in rows]

    @contextmanager
    def opened(self) -> Iterator[TextIO]:
        """Open the text, whatever it is compressed by, without the mark at its beginning."""
        with unpacked(self.path) as file, TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
            yield text


def written_columns(predictions: Stored) -> dict[str, Any]:
    """Return the columns of predictions as a table of text has them, with numbers as float64.

    A group that a spreadsheet would take for a formula has an apostrophe before it; reading drops it.
    """
    columns: dict[str, Any] = {}
    for key, array in to_arrays(predictions).items():
        if array.dtype.kind == "f":
            array = array.astype(np.float64)
        if array.ndim == 1:
            columns[key] = array
        else:
            headers = _headers(key, array.shape[1], predictions.class_names)
            columns |= dict(zip(headers, array.T, strict=True))
    if (labels := label_numbers(predictions)) is not None:
        columns["labels"] = labels
    columns |= signal_arrays(predictions)
    if predictions.groups is not None:
        for name, groups in group_columns(predictions.groups).items():
            names = [guarded(each) for each in groups.names]
            columns[name] = [names[code] for code in groups.codes.tolist()]
    return columns


def _fits(rows: Sequence[Sequence[str]]) -> bool:
    """Say whether rows have as many cells as the header, which has several."""
    if not rows or len(rows[0]) < 2:
        return False
    return all(len(row) == len(rows[0]) for row in rows) or _has_index(rows)


def _has_index(rows: Sequence[Sequence[str]]) -> bool:
    """Say whether all rows have one cell more than the header, as in tables of R with names of rows."""
    return len(rows) > 1 and all(len(row) == len(rows[0]) + 1 for row in rows[1:])


def _headers(key: str, width: int, class_names: tuple[str, ...] | None) -> list[str]:
    if class_names is None or key == "features":
        return [f"{key}_{i}" for i in range(width)]
    headers = [f"{key}_{name}" for name in class_names]
    if suffixes(headers, key) != list(class_names):
        raise InputError(
            f"class_names: expected names that do not look like column numbers, got {class_names[0]!r} and "
            "others; save as .npz, .parquet or .safetensors"
        )
    return headers
