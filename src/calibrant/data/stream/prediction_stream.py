"""A stream of predictions: its files, checked against each other, read batch by batch ahead of the reader."""

import os
import re
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from calibrant.data.stream.batch import StreamBatch, to_groups, to_predictions
from calibrant.data.stream.layout import Layout, check_same, read_layout
from calibrant.data.stream.sources import Source, find_sources
from calibrant.errors import CalibrantError, FormatError, InputError
from calibrant.inputs import check_count

T = TypeVar("T")

# Footers are read at once by so many threads: most of that time is waiting.
_FOOTERS = 8
# Batches read while one is at work.
_AHEAD = 2
# A larger row group is read in pieces of this size, and to be checked as a whole it is read twice.
LARGE = 64 << 20
PIECE = 1 << 20


@dataclass(frozen=True)
class LeftOut:
    """A file, or a row group of it, that was left out of a stream because it is bad.

    Attributes:
        file: Name of the file.
        row_group: Number of the row group; none if the whole file is left out.
        rows: How many rows are missing; none if the file does not tell.
        reason: What is wrong.
    """

    file: str
    row_group: int | None
    rows: int | None
    reason: str


@dataclass(eq=False)
class PredictionStream:
    """Predictions in Parquet files, of any size, in memory that does not grow with them.

    Attributes:
        sources: The files.
        columns_by: The column by which rows are grouped, if any.
        need_labels: Whether files without labels are refused.
        left_out: What the last pass has left out.
    """

    sources: tuple[Source, ...]
    columns_by: str | None = None
    need_labels: bool = True
    left_out: list[LeftOut] = field(default_factory=list)

    def layouts(self, *, skip_bad: bool = False) -> dict[Source, Layout]:
        """Read all footers and check that the files hold the same columns; begins a new pass."""
        self.left_out = []
        found: dict[Source, Layout] = {}
        with ThreadPoolExecutor(_FOOTERS) as pool:
            for source, layout in zip(self.sources, pool.map(self._try_layout, self.sources), strict=True):
                try:
                    if isinstance(layout, CalibrantError):
                        raise layout
                    first = next(iter(found), source)
                    with naming(source.name):
                        check_same(layout, found.get(first, layout), first.name)
                    found[source] = layout
                except CalibrantError as error:
                    if not skip_bad:
                        raise
                    rows = sum(layout.rows) if isinstance(layout, Layout) else None
                    self.left_out.append(LeftOut(source.name, None, rows, str(error)))
        return found

    def batches(self, rows: int = 65_536, *, skip_bad: bool = False) -> Generator[StreamBatch, None, None]:
        """Yield batches of at most so many rows, none of which spans two row groups.

        Args:
            rows: Most rows of a batch.
            skip_bad: Whether files that cannot be read and row groups with bad rows are left out as a
                whole and listed in ``left_out``, rather than refused.
        """
        rows = check_count(rows, "rows")
        return self.read(self.layouts(skip_bad=skip_bad), rows, skip_bad=skip_bad)

    def read(
        self, layouts: dict[Source, Layout], rows: int, *, skip_bad: bool
    ) -> Generator[StreamBatch, None, None]:
        """Yield the batches of files whose footers have been read."""
        return _ahead(self._batches(layouts, rows, skip_bad=skip_bad))

    def _try_layout(self, source: Source) -> Layout | CalibrantError:
        try:
            with naming(source.name):
                return read_layout(source, by=self.columns_by, need_labels=self.need_labels)
        except CalibrantError as error:
            return error

    def _batches(
        self, layouts: dict[Source, Layout], rows: int, *, skip_bad: bool
    ) -> Generator[StreamBatch, None, None]:
        k: int | None = None
        for source, layout in layouts.items():
            first_row = 0
            buffer = PIECE if layout.largest > LARGE else 0
            with ExitStack() as stack:
                with naming(source.name):
                    file = stack.enter_context(source.open(buffer_size=buffer))
                for group, n in enumerate(layout.rows):
                    reading = _Group(file, source, layout, self.columns_by, group, first_row, n)
                    try:
                        for batch in reading.sound(rows, k) if skip_bad else reading.batches(rows, k):
                            k = batch.predictions.k
                            yield batch
                    except CalibrantError as error:
                        if not skip_bad:
                            raise
                        self.left_out.append(LeftOut(source.name, group, n, str(error)))
                    first_row += n


@dataclass(frozen=True)
class _Group:
    """A row group of a file that is open."""

    file: pq.ParquetFile
    source: Source
    layout: Layout
    by: str | None
    number: int
    first_row: int
    rows: int

    def sound(self, rows: int, k: int | None) -> Iterator[StreamBatch]:
        """Yield the batches once all of them have been checked."""
        if self.layout.largest <= LARGE:
            yield from list(self.batches(rows, k))
        else:
            for _ in self.batches(rows, k):
                pass
            yield from self.batches(rows, k)

    def batches(self, rows: int, k: int | None) -> Iterator[StreamBatch]:
        """Yield the batches, each checked, all of them with the same number of classes."""
        where = f"{self.source.name}, row group {self.number}"
        start = self.first_row
        with naming(where):
            tables = self.file.iter_batches(rows, row_groups=[self.number], columns=self.layout.read)
        while True:
            with naming(where, first_row=start):
                table = next(tables, None)
                if table is None:
                    return
                if table.num_rows == 0:
                    continue
                predictions = to_predictions(table, self.layout.columns, self.layout.names)
                k = k or predictions.k
                if predictions.k != k:
                    raise InputError(f"expected {k} classes as before, got {predictions.k}; read them apart")
                names, codes = self._groups(table)
            yield StreamBatch(predictions, self.source.name, self.number, start, names, codes)
            start += table.num_rows

    def _groups(self, table: pa.RecordBatch) -> tuple[tuple[str, ...], npt.NDArray[np.int64] | None]:
        if self.layout.by is not None:
            return to_groups(table.column(self.layout.by))
        return () if self.by is None else (self.source.partition[self.by],), None


def open_stream(
    source: str | os.PathLike[str], *, columns_by: str | None = None, need_labels: bool = True
) -> PredictionStream:
    """Name a stream of predictions: a Parquet file, a folder of them, a pattern, or an address.

    The files hold the columns that :func:`~calibrant.data.load_predictions` reads, the same ones in all
    files. Nothing is read yet but the names of the files.

    Args:
        source: A ``.parquet`` file; a folder, with all such files below it; a pattern such as
            ``"runs/*/part-*.parquet"``; or, with fsspec, an address such as ``"s3://bucket/folder"``.
        columns_by: A column that groups the rows, or a key of folders named ``key=value``.
        need_labels: Whether files without labels are refused.

    Raises:
        FormatError: There are no such files.
        MissingPackageError: An address is given, and fsspec is not installed.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from calibrant import Predictions, save_predictions
        >>> with TemporaryDirectory() as folder:
        ...     save_predictions(Predictions(confidence=[0.9], correct=[True]), f"{folder}/a.parquet")
        ...     save_predictions(Predictions(confidence=[0.6], correct=[False]), f"{folder}/b.parquet")
        ...     [(batch.file, len(batch)) for batch in open_stream(folder).batches()]
        [('a.parquet', 1), ('b.parquet', 1)]
    """
    return PredictionStream(find_sources(os.fspath(source)), columns_by, need_labels)


@contextmanager
def naming(where: str, *, first_row: int = 0) -> Iterator[None]:
    """Start every refusal with where it happened, and count rows from the beginning of the file."""
    try:
        yield
    except (InputError, FormatError) as error:
        told = re.sub(r"\brow (\d+)", lambda found: f"row {int(found[1]) + first_row}", str(error))
        raise type(error)(f"{where}: {told}") from None
    except Exception as error:
        # Parsers of damaged files raise nearly anything; the cause stays attached for those who look.
        detail = " ".join(str(error).split())[:160] or type(error).__name__
        raise FormatError(
            f"{where}: expected a Parquet file, got one that cannot be read as such ({detail}); "
            "it may be truncated or something else by that name"
        ) from error


def _ahead(items: Generator[T, None, None]) -> Generator[T, None, None]:
    """Yield items that a thread makes while others are at work; pyarrow and torch let it run."""
    end = object()
    with ThreadPoolExecutor(1) as pool:
        waiting: deque[Future[T | object]] = deque(pool.submit(next, items, end) for _ in range(_AHEAD))
        try:
            while (item := waiting.popleft().result()) is not end:
                waiting.append(pool.submit(next, items, end))
                yield item  # type: ignore[misc]  # the end is no item
        finally:
            pool.shutdown(cancel_futures=True)
            items.close()
