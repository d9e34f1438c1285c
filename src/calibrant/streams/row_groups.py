"""Row groups: the parts of Parquet files that are read, checked, refused or left out as a whole."""

import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.data.contents import class_names, labels_by_number
from calibrant.data.joined import UNKNOWN, truth_of
from calibrant.data.numbering import joined, numbered
from calibrant.data.predictions import Predictions
from calibrant.errors import CalibrantError, FormatError, InputError
from calibrant.files import reading
from calibrant.streams.files import FileLayout, StreamFile

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

# A larger row group is read in pieces of this size, and read twice if it must be checked as a whole.
LARGE = 64 << 20
PIECE = 1 << 20
# The name of the group of rows whose group is empty.
_NO_GROUP = "(none)"


@dataclass(frozen=True, eq=False)
class StreamBatch:
    """Consecutive rows of a stream, checked.

    Attributes:
        predictions: The predictions with their truth; they share memory with the file's buffers if possible.
        file: Name of the file, below the folder of the stream.
        row_group: Number of the row group in the file.
        first_row: Number of the first row in the file.
        names: Names of the groups that occur; empty if rows are not grouped.
        codes: The index in ``names`` of each row's group; none if all rows belong to the first.
        truth: What came true, -1 where it is unknown, if the predictions do not know it because some rows
            have no label.
    """

    predictions: Predictions
    file: str
    row_group: int
    first_row: int
    names: tuple[str, ...] = ()
    codes: npt.NDArray[np.int64] | None = None
    truth: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.predictions)

    def with_groups(self) -> Predictions:
        """Return the predictions with the groups of their rows, if rows are grouped."""
        if not self.names:
            return self.predictions
        codes = np.zeros(len(self), dtype=np.int64) if self.codes is None else self.codes
        return self.predictions.replaced(groups=np.array(self.names, dtype=object)[codes])


@dataclass(frozen=True)
class LeftOut:
    """A bad file or row group that was left out of a stream.

    Attributes:
        file: Name of the file.
        row_group: Number of the row group; none if the whole file is left out.
        rows: Number of rows that are missing; none if the file cannot be read.
        reason: What is wrong.
    """

    file: str
    row_group: int | None
    rows: int | None
    reason: str


@dataclass(frozen=True)
class RowGroup:
    """The place and layout of a row group; it can be sent to another process and read there.

    Attributes:
        source: Its file.
        layout: The layout of that file.
        by: The column or key of folders that groups rows, if any.
        number: Its number in the file.
        first_row: Number of its first row in the file.
        rows: Number of its rows.
        k: Number of classes that it should have; none for confidences.
    """

    source: StreamFile
    layout: FileLayout
    by: str | None
    number: int
    first_row: int
    rows: int
    k: int | None

    def batches(self, file: "pq.ParquetFile", rows: int) -> Iterator[StreamBatch]:
        """Yield the rows in batches, each checked."""
        where = f"{self.source.name}, row group {self.number}"
        start = self.first_row
        for table in read_tables(file, self.number, rows, where, columns=self.layout.read, use_threads=False):
            with naming(where, first_row=start):
                predictions, truth = self._checked(table)
                if predictions.k != self.k:
                    raise InputError(
                        f"expected {self.k} classes as before, got {predictions.k}; read them apart"
                    )
                names, codes = groups_of(table, self.source, self.layout, self.by)
            yield StreamBatch(predictions, self.source.name, self.number, start, names, codes, truth)
            start += table.num_rows

    def _checked(self, table: "pa.RecordBatch") -> tuple[Predictions, npt.NDArray[np.int64] | None]:
        """Return the predictions of rows, and their truth if some rows have none."""
        import pyarrow as pa
        import pyarrow.compute as pc

        layout, truth = self.layout, self.layout.truth
        beside = names_in(table, self.source, {"units": layout.units, "ids": layout.ids})
        columns = dict(layout.columns)
        missing = truth is not None and pc.any(table.column(truth).is_null(nan_is_null=True)).as_py()
        if truth is not None and not missing:
            columns[truth] = [truth]
        predictions = to_predictions(table, columns, layout.names, beside)
        if truth is None or not missing:
            return predictions, None
        column = table.column(truth)
        column = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        known = truth_of(column.dictionary.to_pylist(), predictions)
        indices = column.indices.fill_null(len(known))
        return predictions, np.append(known, UNKNOWN)[np.from_dlpack(indices).astype(np.int64)]

    def sound(self, file: "pq.ParquetFile", rows: int) -> Iterator[StreamBatch]:
        """Yield the batches after all of them have been checked."""
        if self.layout.largest <= LARGE:
            yield from list(self.batches(file, rows))
        else:
            for _ in self.batches(file, rows):
                pass
            yield from self.batches(file, rows)


def read_groups(
    groups: Iterable[RowGroup], rows: int, *, left_out: list[LeftOut] | None = None
) -> Generator[StreamBatch, None, None]:
    """Yield the batches of row groups in their order; neighbours of the same file share one open file.

    Args:
        groups: The row groups.
        rows: The most rows of a batch; no batch spans two row groups.
        left_out: A list to which bad files and row groups are added, which are then left out as a whole.
            Without it they are refused.
    """
    for source, own in groupby(groups, key=lambda group: group.source):
        same_file = list(own)
        with ExitStack() as stack:
            try:
                with naming(source.name):
                    buffer = PIECE if same_file[0].layout.largest > LARGE else 0
                    file = stack.enter_context(source.open(buffer_size=buffer))
            except CalibrantError as error:
                if left_out is None:
                    raise
                left_out.append(LeftOut(source.name, None, sum(g.rows for g in same_file), str(error)))
                continue
            for group in same_file:
                try:
                    yield from group.batches(file, rows) if left_out is None else group.sound(file, rows)
                except CalibrantError as error:
                    if left_out is None:
                        raise
                    left_out.append(LeftOut(source.name, group.number, group.rows, str(error)))


def read_tables(
    file: "pq.ParquetFile",
    group: int,
    rows: int,
    where: str,
    **options: Any,  # noqa: ANN401  # of pyarrow
) -> "Iterator[pa.RecordBatch]":
    """Yield the rows of a row group, at most ``rows`` at a time; errors begin with ``where``."""
    with naming(where):
        tables = file.iter_batches(rows, row_groups=[group], **options)
    while True:
        with naming(where):
            table = next(tables, None)
        if table is None:
            return
        if table.num_rows:
            yield table


def groups_of(
    table: "pa.RecordBatch", source: StreamFile, layout: FileLayout, by: str | None
) -> tuple[tuple[str, ...], npt.NDArray[np.int64] | None]:
    """Return the names of the groups of rows, and the index of each row's group; none if all are the first's.

    Args:
        table: The rows.
        source: Their file.
        layout: Its layout.
        by: The column or key of folders that groups rows, if any.
    """
    if layout.by is not None:
        return _to_groups(table.column(layout.by))
    return () if by is None else (source.partition[by],), None


def names_in(
    table: "pa.RecordBatch", source: StreamFile, named: Mapping[str, tuple[str, ...]]
) -> dict[str, Tensor]:
    """Return the units and ids of rows as arguments of predictions, those for which columns are named."""
    return {key: _numbers(table, source, columns) for key, columns in named.items() if columns}


def _numbers(table: "pa.RecordBatch", source: StreamFile, named: tuple[str, ...]) -> Tensor:
    import pyarrow as pa

    title = ", ".join(named)
    if len(named) == 1 and title in table.schema.names and not table.column(title).null_count:
        column = table.column(title)
        if pa.types.is_integer(column.type):
            return numbered(np.from_dlpack(column), title, n=len(column))
        # Every name is turned into a number once.
        column = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        names = numbered(column.dictionary.to_pylist(), title, n=len(column.dictionary))
        return names[torch.from_numpy(np.from_dlpack(column.indices).astype(np.int64))]
    columns = [
        table.column(name).to_pylist()
        if name in table.schema.names
        else [source.partition[name]] * len(table)
        for name in named
    ]
    return numbered(joined(columns), title, n=len(table))


def to_predictions(
    batch: "pa.RecordBatch",
    columns: Mapping[str, Sequence[str]],
    names: Sequence[str] | None,
    beside: Mapping[str, Any] | None = None,
) -> Predictions:
    """Check a batch of rows; a matrix in one column of lists of fixed size is not copied.

    Args:
        batch: The rows.
        columns: The columns of each key of ``Predictions``.
        names: Names of the classes, if they are known.
        beside: Groups, signals and units of the rows.
    """
    values: dict[str, Any] = dict(beside or {})
    others: dict[str, list[str]] = {}
    for key, spread in columns.items():
        flat = _flat_view(batch.column(spread[0])) if list(spread) == [key] else None
        if flat is None:
            others[key] = list(spread)
        else:
            values[key] = flat
    if others:
        import pyarrow as pa

        from calibrant.data.tables import to_values

        values |= to_values(pa.Table.from_batches([batch]), others)
    if "labels" not in others:  # else they were read together with the columns that name the classes
        values = labels_by_number(values, class_names({key: list(each) for key, each in columns.items()}))
    if names is not None:
        values["class_names"] = names
    return Predictions(**values)


def _to_groups(column: "pa.Array") -> tuple[tuple[str, ...], npt.NDArray[np.int64] | None]:
    """Return the names of the groups in a column, and the index of each row's group."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode(null_encoding="encode")
    values = [_NO_GROUP if value is None else str(value) for value in column.dictionary.to_pylist()]
    indices = column.indices.fill_null(len(values)) if column.indices.null_count else column.indices
    codes = np.from_dlpack(indices).astype(np.int64)
    # The dictionary of a file may have more values than occur here.
    used, codes = np.unique(codes, return_inverse=True)
    names = tuple([*values, _NO_GROUP][code] for code in used.tolist())
    return names, None if len(names) == 1 else codes


def _flat_view(column: "pa.Array") -> npt.NDArray[Any] | None:
    """Return a view of the numbers of a column; none if some are missing or they are not contiguous.

    Arrow's ``to_numpy`` would import pandas, which takes longer than millions of rows.
    """
    import pyarrow as pa

    if column.null_count:
        return None
    if pa.types.is_fixed_size_list(column.type):
        values = column.flatten()
        if values.null_count == 0 and pa.types.is_floating(values.type):
            return np.from_dlpack(values).reshape(len(column), column.type.list_size)
    elif pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
        return np.from_dlpack(column)
    return None


@contextmanager
def naming(where: str, *, first_row: int = 0) -> Iterator[None]:
    """Begin every error message with the place, and count rows from the beginning of the file."""
    with reading(where, "a Parquet file"):
        try:
            yield
        except (InputError, FormatError) as error:
            message = re.sub(r"\brow (\d+)", lambda found: f"row {int(found[1]) + first_row}", str(error))
            raise type(error)(message) from None
