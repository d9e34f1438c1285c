"""Evaluate a stream in one pass over its batches, each group with measures of its own."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.errors import FormatError, InputError
from calibrant.evaluation.calibrated import calibrated
from calibrant.evaluation.groups import (
    GroupTest,
    group_tests,
    group_to_dict,
    sentence_on_groups,
    worst_first,
)
from calibrant.evaluation.tables import stream_groups_table
from calibrant.files import without_nan
from calibrant.inference.corrections import Correction
from calibrant.inputs import Progress
from calibrant.metrics.cumulative import CumulativeDifference
from calibrant.posthoc.calibrator import Calibrator
from calibrant.results import FrozenDict, Result
from calibrant.show.table import Table
from calibrant.streams.files import ENTRIES, FileLayout, StreamFile, rows_at_once
from calibrant.streams.measures import StreamEvaluation, StreamMeasures, joined_weights, tensors_of
from calibrant.streams.prediction_stream import PredictionStream
from calibrant.streams.row_groups import LeftOut, StreamBatch
from calibrant.streams.sums import Form
from calibrant.threads import one_thread_each

# The most rows that are read at a time.
_ROWS = 1 << 17
# Threads that read: with one more that sums, two cores are always busy.
_LANES = 2
# Batches with fewer rows are buffered: accumulators take about as long for a few rows as for this many.
_ENOUGH = 1 << 16
# The most samples of all groups that are buffered to be sorted.
_WAITING = 1 << 20
# Cells of a sketch between 1/2 and 3/4: a single sketch takes 2.6 MB, one of a thousand groups 0.6 MB.
_FINE, _COARSE = 8192, 1024


class GroupedMeasures:
    """The measures of each group of a stream; small batches and those of several groups are buffered first.

    Args:
        n_bins: Number of bins of the binned measures.
        by: The column or key that groups the rows; none if they are not grouped.
        most: The most groups; more are refused.
    """

    def __init__(self, *, n_bins: int = 15, by: str | None = None, most: int = 1000) -> None:
        self.n_bins, self.by, self.most = n_bins, by, most
        self.measures: dict[str, StreamMeasures] = {}
        self.waiting: list[StreamBatch] = []

    @property
    def n(self) -> int:
        """Number of samples so far."""
        return sum(map(len, self.waiting)) + sum(each.n for each in self.measures.values())

    def add(self, batch: StreamBatch) -> None:
        """Read a batch."""
        self.waiting.append(batch)
        rows = sum(len(each) for each in self.waiting)
        mixed = len({name for each in self.waiting for name in each.names}) > 1
        entries = rows * (batch.predictions.k or 1)
        if entries >= ENTRIES or (rows >= _ENOUGH and not mixed):
            self.flush()

    def merge(self, other: "GroupedMeasures") -> None:
        """Add the measures of another worker, whose buffered batches are measured first."""
        self.flush()
        other.flush()
        for name, measures in other.measures.items():
            self._of(name).merge(measures)

    def compute(self, *, intervals: bool = False) -> StreamEvaluation:
        """Return the measures of all rows, with intervals if requested, and of the groups by name."""
        self.flush()
        if self.by is None:
            return self.measures[""].compute(intervals=intervals)
        whole = self._new()
        for measures in self.measures.values():
            whole.merge(measures)
        # A group whose samples all have weight 0 is as absent as they are.
        counted = (name for name in sorted(self.measures) if self.measures[name].weight)
        groups = {name: self.measures[name].compute() for name in counted}
        return dataclasses.replace(whole.compute(intervals=intervals), groups=FrozenDict(groups))

    def flush(self) -> None:
        """Measure the buffered batches."""
        if not self.waiting:
            return
        form, outputs, truth, weights, units = _joined(self.waiting)
        present = {name for batch in self.waiting for name in batch.names or ("",)}
        if len(present) == 1:
            self.waiting = []
            self._of(present.pop()).add(form, outputs, truth, weights, units)
            return
        names, codes = self._codes()
        self.waiting = []
        # Integers of 16 bits are sorted by counting, which is several times as fast.
        codes = codes.astype(np.min_scalar_type(len(names)))
        order = torch.from_numpy(np.argsort(codes, kind="stable"))
        outputs, truth = outputs.index_select(0, order), truth.index_select(0, order)
        weights, units = (None if each is None else each.index_select(0, order) for each in (weights, units))
        ends = np.cumsum(np.bincount(codes, minlength=len(names))).tolist()
        for name, start, end in zip(names, [0, *ends[:-1]], ends, strict=True):
            own = (None if each is None else each[start:end] for each in (weights, units))
            self._of(name).add(form, outputs[start:end], truth[start:end], *own)

    def _codes(self) -> tuple[list[str], npt.NDArray[np.integer]]:
        """Return the names of the groups of all buffered batches, and the number of each row's group."""
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
        measures = self.measures[name]
        measures.most_waiting = min(measures.most_waiting, _WAITING // len(self.measures))
        return measures

    def _new(self) -> StreamMeasures:
        return StreamMeasures(n_bins=self.n_bins, resolution=_FINE if self.by is None else _COARSE)


@dataclasses.dataclass(frozen=True, eq=False)
class StreamPass:
    """One pass over a stream, for an engine to do.

    Attributes:
        stream: The stream; an engine adds to its ``left_out``.
        layouts: Its files that can be read.
        groups: Measures without samples; an engine fills and returns these or others like them.
        progress: Called with the current file, the rows that are done, and the total.
        skip_bad: Whether bad files and row groups are left out.
    """

    stream: PredictionStream
    layouts: dict[StreamFile, FileLayout]
    groups: GroupedMeasures
    progress: Progress
    skip_bad: bool

    @property
    def total(self) -> int:
        """Number of rows."""
        return sum(sum(layout.rows) for layout in self.layouts.values())

    @property
    def rows_at_once(self) -> int:
        """The most rows of a batch."""
        return rows_at_once(self.layouts.values(), _ROWS)


Engine: TypeAlias = Callable[[StreamPass], GroupedMeasures]


def _measure_here(
    job: StreamPass, change: Callable[[Predictions], Predictions] | None = None
) -> GroupedMeasures:
    """Measure a stream in this process; ``change`` makes other predictions of the same rows."""
    done = 0
    batches = job.stream.read(job.layouts, job.rows_at_once, skip_bad=job.skip_bad, lanes=_LANES)
    with one_thread_each(), closing(batches):
        for batch in batches:
            if change is not None:
                batch = dataclasses.replace(batch, predictions=change(batch.with_groups()))
            job.groups.add(batch)
            done += len(batch)
            job.progress(batch.file, done, job.total)
    return job.groups


def evaluate_stream(
    stream: PredictionStream,
    *,
    n_bins: int = 15,
    by: str | None = None,
    intervals: bool = False,
    progress: Progress | None = None,
    skip_bad: bool = False,
    most_groups: int = 1000,
    engine: Engine = _measure_here,
) -> StreamEvaluation:
    """Compute measures of a stream in one pass, in memory that does not grow with it.

    Args:
        stream: What :func:`~calibrant.streams.open_stream` returns.
        n_bins: Number of bins of the binned measures.
        by: A column that groups the rows, or a key of folders named ``key=value``; by default the one with
            which the stream was opened.
        intervals: Whether to bootstrap a 95 % interval for each measure that allows it; rows need units.
        progress: Called with the current file, the rows that are done, and the total.
        skip_bad: Whether bad files and row groups are left out as a whole and listed in the result instead
            of refused.
        most_groups: The most groups; more are refused.
        engine: What reads and measures the batches; by default this process.

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
    job = StreamPass(
        stream=stream,
        layouts=stream.layouts(skip_bad=skip_bad),
        groups=GroupedMeasures(n_bins=n_bins, by=stream.columns_by, most=most_groups),
        progress=progress or (lambda *_: None),
        skip_bad=skip_bad,
    )
    groups, left_out = engine(job), stream.left_out
    if groups.n < 2:
        raise FormatError(
            f"stream: expected at least two rows, got {groups.n}"
            + (f" with {len(left_out)} files and row groups left out" if left_out else "")
        )
    ordered = sorted(_per_place(left_out), key=lambda left: (left.file, left.row_group or 0))
    return dataclasses.replace(groups.compute(intervals=intervals), left_out=tuple(ordered))


def evaluate_calibrated(
    stream: PredictionStream, calibrator: Calibrator, *, progress: Progress | None = None
) -> StreamEvaluation:
    """Compute measures of a stream as :func:`evaluate_stream` does, after a calibrator was applied to it."""
    change = partial(calibrated, calibrator)
    return evaluate_stream(stream, progress=progress, engine=partial(_measure_here, change=change))


def stream_group_tests(
    result: StreamEvaluation, *, correction: Correction = "holm", level: float = 0.95
) -> dict[str, GroupTest]:
    """Return the gap and the corrected test of each group of a stream, the worst first.

    The cumulative difference is known at the edges of the bins only. So the statistic is a bit too low, and
    the test a bit too cautious: opposite gaps within a bin go unseen. If samples have weights, a bin counts
    as its effective number of samples. If they have units, hits are drawn with the covariance between bins
    that units have, the interval of the gap is as wide as their variance demands, and groups with fewer than
    ten units are not tested.

    Args:
        result: What :func:`evaluate_stream` returned for a stream with groups.
        correction: ``"holm"`` or ``"benjamini_hochberg"``, as in :func:`~calibrant.evaluation.by_group`.
        level: Level of the intervals and of the test.
    """
    found = group_tests(map(_difference, result.groups.values()), correction=correction, level=level)
    tests = {
        name: dataclasses.replace(test, n=group.n)
        for (name, group), test in zip(result.groups.items(), found, strict=True)
    }
    return dict(sorted(tests.items(), key=lambda entry: worst_first(entry[1], level)))


def _difference(group: StreamEvaluation) -> CumulativeDifference:
    if group.unit_sums is None or group.unit_sums.are_rows:
        return CumulativeDifference.from_bins(group.bins, group.bin_sizes)
    return group.unit_sums.difference(group.bins, group.n)


def _per_place(left_out: Sequence[LeftOut]) -> list[LeftOut]:
    """Join the entries of a file that several readers could not open."""
    found: dict[tuple[str, int | None], LeftOut] = {}
    for left in left_out:
        place = left.file, left.row_group
        rows = (found[place].rows or 0) + (left.rows or 0) if place in found else left.rows
        found[place] = dataclasses.replace(left, rows=rows)
    return list(found.values())


def _joined(batches: list[StreamBatch]) -> tuple[Form, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return the form, outputs, truth, weights and units of several batches as one."""
    if len(batches) == 1:
        return tensors_of(batches[0].predictions)
    parts = [tensors_of(batch.predictions) for batch in batches]
    forms, outputs, truth, weights, units = zip(*parts, strict=True)
    joined = joined_weights(list(zip(weights, map(len, outputs), strict=True)))
    # All files of a stream have the same columns.
    numbers = None if units[0] is None else torch.cat(units)
    return forms[0], torch.cat(outputs), torch.cat(truth), joined, numbers


@dataclasses.dataclass(frozen=True, eq=False)
class GroupedStream(Result):
    """The evaluation of a stream, and the tests of its groups.

    Attributes:
        result: The evaluation.
        tests: The test of each group, the worst first.
        by: The column that made the groups.
    """

    result: StreamEvaluation
    tests: Mapping[str, GroupTest]
    by: str

    @classmethod
    def of(cls, result: StreamEvaluation, by: str) -> Self:
        """Test the groups of an evaluation."""
        return cls(result, FrozenDict(stream_group_tests(result)), by)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: those of the evaluation, its groups with their tests."""
        answer = self.result.to_dict()
        tests = {name: without_nan(group_to_dict(test)) for name, test in self.tests.items()}
        return answer | {"groups": {name: answer["groups"][name] | test for name, test in tests.items()}}

    def to_table(self) -> Table:
        """Return the groups, those that are miscalibrated marked."""
        groups = {name: each.metrics for name, each in self.result.groups.items()}
        found = sentence_on_groups(list(self.tests.values()), correction="holm", level=0.95)
        return stream_groups_table(groups, self.tests, self.by, found, level=0.95)
