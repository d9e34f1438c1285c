"""A sample of a stream that fits into memory: whole units, the same ones however the stream is cut."""

import sys
from contextlib import closing
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from calibrant.data.predictions import Predictions, join_predictions
from calibrant.errors import FormatError
from calibrant.evaluation.large_sets import most_rows
from calibrant.inputs import Progress, check_count
from calibrant.streams.files import rows_at_once
from calibrant.streams.prediction_stream import PredictionStream
from calibrant.streams.row_groups import StreamBatch

_Ranks: TypeAlias = npt.NDArray[np.uint64]

# No more rows at once than are wanted, because features may be wide, but not many small batches either.
_ROWS, _LEAST_AT_ONCE = 1 << 16, 1024


@dataclass(frozen=True, eq=False)
class StreamSample:
    """Some rows of a stream, in their order.

    Attributes:
        predictions: The rows.
        n: Number of rows of the stream.
    """

    predictions: Predictions
    n: int


def sample_stream(
    stream: PredictionStream, *, n_rows: int | None = None, seed: int = 0, progress: Progress | None = None
) -> StreamSample:
    """Draw rows of a stream without replacement in one pass, all rows of a unit or none.

    Each unit, or row without units, has a rank that follows from its number and the seed; those with the
    lowest ranks are drawn, as many as fit. So the sample does not depend on batches or the order of units.

    Args:
        stream: What :func:`~calibrant.streams.open_stream` returns.
        n_rows: The most rows; by default as many as methods are fitted on, see
            :func:`~calibrant.evaluation.large_sets.most_rows`.
        seed: Another seed draws other rows.
        progress: Called with the current file, the rows that are done, and the total.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from calibrant import save_predictions
        >>> from calibrant.streams import open_stream
        >>> with TemporaryDirectory() as folder:
        ...     some = Predictions(confidence=[0.9] * 50, correct=[True] * 50)
        ...     save_predictions(some, f"{folder}/a.parquet")
        ...     sample = sample_stream(open_stream(folder), n_rows=10)
        ...     sample.predictions.n, sample.n
        (10, 50)
    """
    layouts = stream.layouts()
    total = sum(sum(layout.rows) for layout in layouts.values())
    width = max((layout.width for layout in layouts.values()), default=1)
    most = most_rows(width) if n_rows is None else check_count(n_rows, "n_rows", at_most=sys.maxsize)
    drawn = _Drawn(most)
    rows = rows_at_once(layouts.values(), min(_ROWS, max(_LEAST_AT_ONCE, most)))
    with closing(stream.read(layouts, rows)) as batches:
        for batch in batches:
            drawn.add(batch, seed)
            if progress is not None:
                progress(batch.file, drawn.n, total)
    drawn.cut()
    if not drawn.parts:
        raise FormatError("stream: expected rows, got none; name other files")
    parts = {f"part {place}": part for place, (part, _) in enumerate(drawn.parts)}
    return StreamSample(join_predictions(parts), drawn.n)


class _Drawn:
    """The rows of the lowest ranks so far; more of them are buffered than are wanted."""

    def __init__(self, most: int) -> None:
        self.most, self.n = most, 0
        self.parts: list[tuple[Predictions, _Ranks]] = []
        self._below = np.uint64(2**64 - 1)

    def add(self, batch: StreamBatch, seed: int) -> None:
        """Add the rows of a batch whose rank may be low enough."""
        rows = batch.with_groups()
        numbers = np.arange(self.n, self.n + rows.n) if rows.units is None else rows.units.cpu().numpy()
        ranks = ranks_of(numbers, seed)
        self.n += rows.n
        kept = ranks < self._below
        if kept.any():
            self.parts.append((rows.take(kept), ranks[kept]))
        if sum(len(ranks) for _, ranks in self.parts) > 2 * self.most:
            self.cut()

    def cut(self) -> None:
        """Keep the units of the lowest ranks that together have at most as many rows as are wanted."""
        if not self.parts:
            return
        ranks, sizes = np.unique(np.concatenate([ranks for _, ranks in self.parts]), return_counts=True)
        fit = int(np.searchsorted(np.cumsum(sizes), self.most, side="right"))
        # A unit that alone has more rows is taken nevertheless.
        fit = max(fit, 1)
        if fit < len(ranks):
            self._below = ranks[fit]
        kept = [(part, ranks, ranks < self._below) for part, ranks in self.parts]
        self.parts = [(part.take(own), ranks[own]) for part, ranks, own in kept if own.any()]


def ranks_of(numbers: npt.NDArray[np.int64], seed: int) -> _Ranks:
    """Return a rank for each number, as if drawn at random: the finaliser of SplitMix64.

    Example:
        >>> ranks_of(np.array([7, 7, 8]), 0).tolist() == ranks_of(np.array([7, 7, 8]), 1).tolist()
        False
    """
    start = np.random.default_rng(seed).integers(2**63, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    x = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) ^ start
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(x ^ (x >> np.uint64(31)), dtype=np.uint64)
