"""Evaluate a stream: one pass over its batches, each group with accumulators of its own."""

import dataclasses
from contextlib import closing
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from calibrant.data.stream import PredictionStream, StreamBatch
from calibrant.errors import FormatError, InputError
from calibrant.evaluation.measured import Progress
from calibrant.evaluation.stream.measures import StreamEvaluation, StreamMeasures

# About so many numbers are read at a time, and at most so many rows.
_ENTRIES = 1 << 21
_ROWS = 1 << 17
# Smaller batches wait for each other: the accumulators take about as long for a few rows as for this many.
_ENOUGH = 1 << 16
# Cells of a sketch between 1/2 and 3/4: one sketch may take 2.6 MB, but of a thousand each takes 0.6 MB.
_FINE, _COARSE = 8192, 1024


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
        stream: What :func:`~calibrant.data.stream.open_stream` returns.
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
        >>> from calibrant.data.stream import open_stream
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
    width = max((layout.width for layout in layouts.values()), default=1)
    rows = min(_ROWS, max(1024, _ENTRIES // width))
    groups = _Groups(n_bins, stream.columns_by, most_groups)
    done = 0
    with closing(stream.read(layouts, rows, skip_bad=skip_bad)) as batches:
        for batch in batches:
            groups.add(batch)
            done += len(batch)
            if progress is not None:
                progress(batch.file, done, total)
    if done < 2:
        raise FormatError(
            f"stream: expected at least two rows, got {done}"
            + (f" with {len(stream.left_out)} files and row groups left out" if stream.left_out else "")
        )
    return dataclasses.replace(groups.compute(), left_out=tuple(stream.left_out))


class _Groups:
    """The measures of each group; batches that are small or mixed are gathered first."""

    def __init__(self, n_bins: int, by: str | None, most: int) -> None:
        self.n_bins, self.by, self.most = n_bins, by, most
        self.measures: dict[str, StreamMeasures] = {}
        self.waiting: list[StreamBatch] = []

    def add(self, batch: StreamBatch) -> None:
        """Take a batch."""
        self.waiting.append(batch)
        rows = sum(len(each) for each in self.waiting)
        mixed = len({name for each in self.waiting for name in each.names}) > 1
        entries = rows * (batch.predictions.k or 1)
        if entries >= 2 * _ENTRIES or (rows >= _ENOUGH and not mixed):
            self._flush()

    def compute(self) -> StreamEvaluation:
        """Return the measures of all rows, with those of the groups in the order of their names."""
        self._flush()
        if self.by is None:
            return self.measures[""].compute()
        whole = self._new()
        for measures in self.measures.values():
            whole.merge(measures)
        groups = {name: self.measures[name].compute() for name in sorted(self.measures)}
        return dataclasses.replace(whole.compute(), groups=MappingProxyType(groups))

    def _flush(self) -> None:
        if not self.waiting:
            return
        form, said, truth = _joined(self.waiting)
        names, codes = self._codes()
        self.waiting = []
        if len(names) == 1:
            self._of(names[0]).add(form, said, truth)
            return
        order = torch.from_numpy(np.argsort(codes, kind="stable"))
        said, truth = said[order], truth[order]
        ends = np.cumsum(np.bincount(codes, minlength=len(names))).tolist()
        for name, start, end in zip(names, [0, *ends[:-1]], ends, strict=True):
            self._of(name).add(form, said[start:end], truth[start:end])

    def _codes(self) -> tuple[list[str], np.ndarray[tuple[int], np.dtype[np.int64]]]:
        """Number the groups of all batches that wait."""
        numbers: dict[str, int] = {}
        codes = []
        for batch in self.waiting:
            own = np.array([numbers.setdefault(name, len(numbers)) for name in batch.names or ("",)])
            codes.append(own[np.zeros(len(batch), dtype=np.int64) if batch.codes is None else batch.codes])
        return list(numbers), np.concatenate(codes)

    def _of(self, name: str) -> StreamMeasures:
        if name not in self.measures:
            if len(self.measures) == self.most:
                raise InputError(
                    f"{self.by}: expected at most {self.most} groups, got more, such as {name!r}; "
                    "group by a column with fewer values"
                )
            self.measures[name] = self._new()
        return self.measures[name]

    def _new(self) -> StreamMeasures:
        return StreamMeasures(n_bins=self.n_bins, resolution=_FINE if self.by is None else _COARSE)


def _joined(batches: list[StreamBatch]) -> tuple[str, Tensor, Tensor]:
    """Return what was said in which form and what was true, of several batches."""
    first = batches[0].predictions
    form = next(name for name in ("logits", "probs", "confidence") if getattr(first, name) is not None)
    truth = "correct" if form == "confidence" else "labels"
    said, true = ([getattr(batch.predictions, name) for batch in batches] for name in (form, truth))
    if len(batches) == 1:
        return form, said[0], true[0]
    return form, torch.cat(said), torch.cat(true)
