"""A stream of predictions: its files, checked against each other, read in batches by threads."""

import os
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeVar

from calibrant.errors import CalibrantError
from calibrant.inputs import check_count
from calibrant.streams.files import FileLayout, StreamFile, check_same, find_stream_files, read_layout
from calibrant.streams.row_groups import LeftOut, RowGroup, StreamBatch, naming, read_groups

T = TypeVar("T")

# Threads that read footers, which is mostly waiting.
_FOOTERS = 8
# Batches that are read in advance.
_AHEAD = 2


@dataclass(eq=False)
class PredictionStream:
    """Predictions in Parquet files of any size, read in memory that does not grow with them.

    Attributes:
        sources: The files.
        columns_by: The column by which rows are grouped, if any.
        need_labels: Whether files without labels are refused.
        place: The folder, pattern or address that was opened.
        left_out: The files and row groups that the last pass has left out.
        columns_unit: The columns that name the unit of each row, if any are named.
        columns_id: The columns that name each row, if any are named.
        partly: Whether some rows may have no label; batches then say which.
        features: Whether features are read too.
    """

    sources: tuple[StreamFile, ...]
    columns_by: str | None = None
    need_labels: bool = True
    place: str = ""
    left_out: list[LeftOut] = field(default_factory=list)
    columns_unit: tuple[str, ...] = ()
    columns_id: tuple[str, ...] = ()
    partly: bool = False
    features: bool = False

    def layouts(self, *, skip_bad: bool = False) -> dict[StreamFile, FileLayout]:
        """Begin a pass: read all footers and check that the files have the same columns."""
        self.left_out = []
        found: dict[StreamFile, FileLayout] = {}
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
                    rows = sum(layout.rows) if isinstance(layout, FileLayout) else None
                    self.left_out.append(LeftOut(source.name, None, rows, str(error)))
        return found

    def batches(self, rows: int = 65_536, *, skip_bad: bool = False) -> Generator[StreamBatch, None, None]:
        """Yield batches of rows; no batch spans two row groups.

        Args:
            rows: The most rows of a batch.
            skip_bad: Whether bad files and row groups are left out as a whole and listed in ``left_out``
                instead of refused.
        """
        rows = check_count(rows, "rows")
        return self.read(self.layouts(skip_bad=skip_bad), rows, skip_bad=skip_bad)

    def row_groups(self, layouts: Mapping[StreamFile, FileLayout]) -> list[RowGroup]:
        """List the row groups of files whose footers have been read, in the order of their rows."""
        k = next((layout.k for layout in layouts.values() if any(layout.rows)), None)
        return [
            RowGroup(source, layout, self.columns_by, number, end - rows, rows, k)
            for source, layout in layouts.items()
            for number, (rows, end) in enumerate(zip(layout.rows, accumulate(layout.rows), strict=True))
        ]

    def read(
        self, layouts: Mapping[StreamFile, FileLayout], rows: int, *, skip_bad: bool = False, lanes: int = 1
    ) -> Generator[StreamBatch, None, None]:
        """Yield the batches of files whose footers have been read.

        Args:
            layouts: What ``layouts`` returns, or some of it.
            rows: The most rows of a batch.
            skip_bad: Whether bad row groups are left out.
            lanes: Number of threads that read. Several threads take row groups in turn, and their batches
                come in turn: not in the order of the rows, but in the same order every time.
        """
        groups = self.row_groups(layouts)
        left_out = self.left_out if skip_bad else None
        most = max(1, _AHEAD // lanes)
        return in_turns(
            [
                ahead(read_groups(groups[lane::lanes], rows, left_out=left_out), most=most)
                for lane in range(lanes)
            ]
        )

    def _try_layout(self, source: StreamFile) -> FileLayout | CalibrantError:
        try:
            with naming(source.name):
                return read_layout(
                    source,
                    by=self.columns_by,
                    need_labels=self.need_labels,
                    units=self.columns_unit,
                    ids=self.columns_id,
                    partly=self.partly,
                    features=self.features,
                )
        except CalibrantError as error:
            return error


def open_stream(
    source: str | os.PathLike[str],
    *,
    columns_by: str | None = None,
    columns_unit: str | Sequence[str] = (),
    need_labels: bool = True,
    features: bool = False,
) -> PredictionStream:
    """Open a stream of predictions: a Parquet file, a folder of them, a pattern, or an address.

    The files have the columns that :func:`~calibrant.data.load_predictions` reads, the same ones in all
    files. This lists the files but does not read them.

    Args:
        source: A ``.parquet`` file; a folder, for all such files below it; a pattern such as
            ``"runs/*/part-*.parquet"``; or, with fsspec, an address such as ``"s3://bucket/folder"``.
        columns_by: A column that groups the rows, or a key of folders named ``key=value``.
        columns_unit: The column, or several, that name what rows belong to that depend on each other; or keys
            of folders. By default a column ``units``, if there is one.
        need_labels: Whether files without labels are refused.
        features: Whether features are read too; what reads all rows needs none.

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
    place = os.fspath(source)
    units = (columns_unit,) if isinstance(columns_unit, str) else tuple(columns_unit)
    return PredictionStream(
        find_stream_files(place), columns_by, need_labels, place, columns_unit=units, features=features
    )


def ahead(items: Generator[T, None, None], *, most: int) -> Generator[T, None, None]:
    """Yield items that a thread makes in advance, at most ``most`` of them."""
    end = object()
    with ThreadPoolExecutor(1) as pool:
        waiting: deque[Future[T | object]] = deque(pool.submit(next, items, end) for _ in range(most))
        try:
            while (item := waiting.popleft().result()) is not end:
                waiting.append(pool.submit(next, items, end))
                yield item  # type: ignore[misc]  # the end is no item
        finally:
            pool.shutdown(cancel_futures=True)
            items.close()


def in_turns(lanes: Sequence[Generator[T, None, None]]) -> Generator[T, None, None]:
    """Yield one item of each generator in turn until all have ended: an order that does not depend on speed.

    Example:
        >>> def count(start, end):
        ...     yield from range(start, end)
        >>> list(in_turns([count(0, 2), count(10, 14)]))
        [0, 10, 1, 11, 12, 13]
    """
    end = object()
    with ExitStack() as stack:
        open_lanes = deque(stack.enter_context(closing(lane)) for lane in lanes)
        while open_lanes:
            lane = open_lanes.popleft()
            if (item := next(lane, end)) is not end:
                open_lanes.append(lane)
                yield item  # type: ignore[misc]  # the end is no item
