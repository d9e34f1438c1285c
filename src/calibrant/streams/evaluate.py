"""Evaluate a stream: one pass over its batches, each group with accumulators of its own."""

import dataclasses
from collections.abc import Iterable, Sequence
from contextlib import closing

from calibrant.errors import FormatError
from calibrant.inputs import Progress
from calibrant.streams.groups import GroupedMeasures
from calibrant.streams.layout import Layout
from calibrant.streams.measures import StreamEvaluation
from calibrant.streams.prediction_stream import PredictionStream
from calibrant.streams.row_group import LeftOut
from calibrant.threads import one_thread_each

# About so many numbers are read at a time, and at most so many rows.
_ENTRIES = 1 << 21
_ROWS = 1 << 17
# Threads that read: with one more that sums up, two cores have no pause.
_LANES = 2


def evaluate_stream(
    stream: PredictionStream,
    *,
    n_bins: int = 15,
    by: str | None = None,
    progress: Progress | None = None,
    skip_bad: bool = False,
    most_groups: int = 1000,
) -> StreamEvaluation:
    """Compute measures of a stream in one pass, in memory that does not grow with it.

    Args:
        stream: What :func:`~calibrant.streams.open_stream` returns.
        n_bins: Number of bins of the binned measures.
        by: A column that groups the rows, or a key of folders named ``key=value``; as the stream was
            opened if none is given.
        progress: Called with the file at work, how many rows are done, and how many there are.
        skip_bad: Whether files that cannot be read and row groups with bad rows are left out as a whole
            and listed in the result, rather than refused.
        most_groups: More groups than this are refused.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from calibrant import Predictions, save_predictions
        >>> from calibrant.streams import open_stream
        >>> with TemporaryDirectory() as folder:
        ...     save_predictions(Predictions(confidence=[0.9], correct=[True]), f"{folder}/a.parquet")
        ...     save_predictions(Predictions(confidence=[0.6], correct=[False]), f"{folder}/b.parquet")
        ...     round(evaluate_stream(open_stream(folder)).metrics["ece"], 6)
        0.35
    """
    if by is not None and by != stream.columns_by:
        stream = dataclasses.replace(stream, columns_by=by)
    layouts = stream.layouts(skip_bad=skip_bad)
    total = sum(sum(layout.rows) for layout in layouts.values())
    groups = GroupedMeasures(n_bins=n_bins, by=stream.columns_by, most=most_groups)
    done = 0
    rows = rows_at_once(layouts.values())
    with one_thread_each(), closing(stream.read(layouts, rows, skip_bad=skip_bad, lanes=_LANES)) as batches:
        for batch in batches:
            groups.add(batch)
            done += len(batch)
            if progress is not None:
                progress(batch.file, done, total)
    return evaluation_of(groups, stream.left_out)


def rows_at_once(layouts: Iterable[Layout]) -> int:
    """Return how many rows to read at a time, so that a batch takes about the same memory of any width."""
    width = max((layout.width for layout in layouts), default=1)
    return min(_ROWS, max(1024, _ENTRIES // width))


def evaluation_of(groups: GroupedMeasures, left_out: Sequence[LeftOut]) -> StreamEvaluation:
    """Return the measures of a whole stream, with what was left out of it in the order of the files."""
    if groups.n < 2:
        raise FormatError(
            f"stream: expected at least two rows, got {groups.n}"
            + (f" with {len(left_out)} files and row groups left out" if left_out else "")
        )
    ordered = sorted(_joined(left_out), key=lambda left: (left.file, left.row_group or 0))
    return dataclasses.replace(groups.compute(), left_out=tuple(ordered))


def _joined(left_out: Sequence[LeftOut]) -> list[LeftOut]:
    """Make one of the parts of a file that several readers could not open."""
    found: dict[tuple[str, int | None], LeftOut] = {}
    for left in left_out:
        place = left.file, left.row_group
        rows = (found[place].rows or 0) + (left.rows or 0) if place in found else left.rows
        found[place] = dataclasses.replace(left, rows=rows)
    return list(found.values())
