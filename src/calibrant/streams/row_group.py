"""Row groups: the parts of Parquet files that are read, checked, refused or left out as a whole."""

import re
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from calibrant.errors import CalibrantError, FormatError, InputError
from calibrant.streams.batch import StreamBatch, to_groups, to_predictions
from calibrant.streams.layout import Layout
from calibrant.streams.sources import Source

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


@dataclass(frozen=True)
class RowGroup:
    """Where a row group is and what it holds; it can be sent to another process, which reads it there.

    Attributes:
        source: Its file.
        layout: How that file is laid out.
        by: The column or key of folders that groups rows, if any.
        number: Its number in the file.
        first_row: Number of its first row in the file.
        rows: Number of its rows.
        k: Number of classes that it should have; none of pairs.
    """

    source: Source
    layout: Layout
    by: str | None
    number: int
    first_row: int
    rows: int
    k: int | None

    def batches(self, file: pq.ParquetFile, rows: int) -> Iterator[StreamBatch]:
        """Yield the rows in batches, each checked."""
        where = f"{self.source.name}, row group {self.number}"
        start = self.first_row
        with naming(where):
            tables = file.iter_batches(
                rows, row_groups=[self.number], columns=self.layout.read, use_threads=False
            )
        while True:
            with naming(where, first_row=start):
                table = next(tables, None)
                if table is None:
                    return
                if table.num_rows == 0:
                    continue
                predictions = to_predictions(table, self.layout.columns, self.layout.names)
                if predictions.k != self.k:
                    raise InputError(
                        f"expected {self.k} classes as before, got {predictions.k}; read them apart"
                    )
                names, codes = self._groups(table)
            yield StreamBatch(predictions, self.source.name, self.number, start, names, codes)
            start += table.num_rows

    def sound(self, file: pq.ParquetFile, rows: int) -> Iterator[StreamBatch]:
        """Yield the batches once all of them have been checked."""
        if self.layout.largest <= LARGE:
            yield from list(self.batches(file, rows))
        else:
            for _ in self.batches(file, rows):
                pass
            yield from self.batches(file, rows)

    def _groups(self, table: pa.RecordBatch) -> tuple[tuple[str, ...], npt.NDArray[np.int64] | None]:
        if self.layout.by is not None:
            return to_groups(table.column(self.layout.by))
        return () if self.by is None else (self.source.partition[self.by],), None


def read_groups(
    groups: Iterable[RowGroup], rows: int, *, left_out: list[LeftOut] | None = None
) -> Generator[StreamBatch, None, None]:
    """Yield the batches of row groups in their order, each file open while its row groups follow each other.

    Args:
        groups: What to read.
        rows: Most rows of a batch; none spans two row groups.
        left_out: Where bad row groups are noted that are then left out as a whole; if there is no such list,
            they are refused.
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
