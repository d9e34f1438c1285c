"""A stream of predictions: its files, checked against each other, read batch by batch ahead of the reader."""

import os
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from calibrant.errors import CalibrantError
from calibrant.inputs import check_count
from calibrant.streams.batch import StreamBatch
from calibrant.streams.lanes import ahead, in_turns
from calibrant.streams.layout import Layout, check_same, read_layout
from calibrant.streams.row_group import LeftOut, RowGroup, naming, read_groups
from calibrant.streams.sources import Source, find_sources

# Footers are read at once by so many threads: most of that time is waiting.
_FOOTERS = 8
# Batches read while one is at work.
_AHEAD = 2


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

    def row_groups(self, layouts: Mapping[Source, Layout]) -> list[RowGroup]:
        """List the row groups of files whose footers have been read, in the order of their rows."""
        k = next((layout.k for layout in layouts.values() if any(layout.rows)), None)
        found = []
        for source, layout in layouts.items():
            first_row = 0
            for number, rows in enumerate(layout.rows):
                found.append(RowGroup(source, layout, self.columns_by, number, first_row, rows, k))
                first_row += rows
        return found

    def read(
        self, layouts: Mapping[Source, Layout], rows: int, *, skip_bad: bool = False, lanes: int = 1
    ) -> Generator[StreamBatch, None, None]:
        """Yield the batches of files whose footers have been read.

        Args:
            layouts: What ``layouts`` returns, or some of it.
            rows: Most rows of a batch.
            skip_bad: Whether bad row groups are left out.
            lanes: How many threads read. With more than one they take row groups in turn, and so come their
                batches: not in the order of the rows, but always in the same.
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

    def _try_layout(self, source: Source) -> Layout | CalibrantError:
        try:
            with naming(source.name):
                return read_layout(source, by=self.columns_by, need_labels=self.need_labels)
        except CalibrantError as error:
            return error


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
