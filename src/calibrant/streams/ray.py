"""Streams on a Ray cluster: the accumulators of one process, filled by many workers and merged.

A stream is cut into parts of neighbouring row groups, which depend on the stream alone and not on the
cluster. Each part is one row of a Ray dataset; the task that takes it reads it where it runs and sends back
accumulators, never predictions. They are merged in the order of the stream as they come, so that the result
is the same to the bit on any cluster, whatever its workers do or suffer.
"""

import dataclasses
import pickle
import warnings
import zlib
from collections.abc import Generator, Sequence
from contextlib import closing
from importlib import import_module
from itertools import accumulate, groupby
from operator import itemgetter
from types import ModuleType
from typing import TypeAlias

from calibrant._version import __version__
from calibrant.errors import CalibrantError
from calibrant.inputs import Progress
from calibrant.streams.evaluate import evaluation_of, rows_at_once
from calibrant.streams.groups import GroupedMeasures
from calibrant.streams.lanes import ahead
from calibrant.streams.measures import StreamEvaluation
from calibrant.streams.prediction_stream import PredictionStream
from calibrant.streams.ray_cluster import (
    check_address,
    connected,
    import_ray,
    in_short,
    is_client,
    quiet,
)
from calibrant.streams.row_group import LeftOut, RowGroup, read_groups
from calibrant.threads import one_thread_each

_Merged: TypeAlias = tuple[GroupedMeasures, list[LeftOut]]

# Numbers to read in a part: enough to be worth a task, few enough for a second try to be cheap.
_LEAST, _MOST = 1 << 24, 1 << 28
# About so many parts in between. Each costs the driver a few milliseconds for each of its groups.
_PARTS, _PARTS_BY = 4096, 1024
# Batches that a task reads while one is at work.
_AHEAD = 2


@dataclasses.dataclass(frozen=True)
class _Part:
    """What a task is to do, and by which release, since another one might count differently."""

    groups: tuple[RowGroup, ...]
    rows: int
    n_bins: int
    by: str | None
    most: int
    skip_bad: bool
    version: str

    @property
    def n(self) -> int:
        return sum(group.rows for group in self.groups)

    def empty(self) -> GroupedMeasures:
        return GroupedMeasures(n_bins=self.n_bins, by=self.by, most=self.most)


@dataclasses.dataclass(frozen=True)
class _Answer:
    """What a task has found: packed measures of each group and what it left out, or what was refused."""

    measures: dict[str, bytes] = dataclasses.field(default_factory=dict)
    left_out: tuple[LeftOut, ...] = ()
    refusal: CalibrantError | None = None


def evaluate_stream_on_ray(
    stream: PredictionStream,
    *,
    n_bins: int = 15,
    by: str | None = None,
    progress: Progress | None = None,
    skip_bad: bool = False,
    most_groups: int = 1000,
    address: str | None = None,
) -> StreamEvaluation:
    """Compute measures of a stream by the workers of a Ray cluster.

    The result is that of :func:`~calibrant.streams.evaluate_stream`, to 1e-12. A worker that dies
    loses only its part, which Ray gives to another one.

    Args:
        stream: What :func:`~calibrant.streams.open_stream` returns. Every worker must see the files under
            the same paths or addresses.
        n_bins: Number of bins of the binned measures.
        by: A column that groups the rows, or a key of folders named ``key=value``; as the stream was
            opened if none is given.
        progress: Called with the file at work, how many rows are done, and how many there are.
        skip_bad: Whether files that cannot be read and row groups with bad rows are left out as a whole
            and listed in the result, rather than refused.
        most_groups: More groups than this are refused.
        address: Of a running cluster, such as ``"10.0.0.1:6379"``, ``"ray://10.0.0.1:10001"`` or ``"auto"``.
            Without one, Ray is used as this process has initialised it, then the cluster that the environment
            variable ``RAY_ADDRESS`` tells; if there is neither, the cores of this machine are a cluster of
            their own for the time of the call. Nobody else's cluster is joined because it was found.

    Raises:
        MissingPackageError: Ray is not installed.
        CalibrantError: There is no such cluster, its workers cannot do the work, or the data are bad.
    """
    ray = import_ray()
    check_address(ray, address)
    if by is not None and by != stream.columns_by:
        stream = dataclasses.replace(stream, columns_by=by)
    layouts = stream.layouts(skip_bad=skip_bad)
    work = _Part(
        groups=(),
        rows=rows_at_once(layouts.values()),
        n_bins=n_bins,
        by=stream.columns_by,
        most=most_groups,
        skip_bad=skip_bad,
        version=__version__,
    )
    row_groups = stream.row_groups(layouts)
    parts = [dataclasses.replace(work, groups=groups) for groups in _cut(row_groups, by=stream.columns_by)]
    if not parts:
        return evaluation_of(work.empty(), stream.left_out)
    if progress is not None:
        progress("starting Ray", 0, sum(group.rows for group in row_groups))
    with connected(ray, address):
        whole, left_out = _merge_there(ray, parts) if is_client(ray) else _merge(parts, progress)
    stream.left_out.extend(left_out)
    return evaluation_of(whole, stream.left_out)


def _merge(parts: Sequence[_Part], progress: Progress | None = None) -> _Merged:
    """Have the parts measured, and make one of what is found; at most one group is unpacked at a time."""
    whole, left_out, done = parts[0].empty(), list[LeftOut](), 0
    total = sum(part.n for part in parts)
    with closing(_answers(parts)) as answers:
        for part, answer in zip(parts, answers, strict=True):
            if answer.refusal is not None:
                raise answer.refusal
            for name, packed in answer.measures.items():
                found = part.empty()
                found.measures[name] = pickle.loads(zlib.decompress(packed))
                whole.merge(found)
            left_out.extend(answer.left_out)
            done += part.n - sum(left.rows or 0 for left in answer.left_out)
            if progress is not None:
                progress(part.groups[-1].source.name, done, total)
    return whole, left_out


def _merge_there(ray: ModuleType, parts: Sequence[_Part]) -> _Merged:
    """Do the same in a task of the cluster, for a connection that does not carry datasets."""
    try:
        found: _Merged | CalibrantError = ray.get(ray.remote(num_cpus=0)(_try_merge).remote(parts))
    except ray.exceptions.RayError as error:
        raise _failure(error) from error
    if isinstance(found, CalibrantError):
        raise found
    return found


def _try_merge(parts: Sequence[_Part]) -> _Merged | CalibrantError:
    try:
        return _merge(parts)
    except CalibrantError as refusal:
        return refusal


def _cut(groups: Sequence[RowGroup], *, by: str | None) -> list[tuple[RowGroup, ...]]:
    """Cut a stream into parts of neighbouring row groups that hold about as many numbers each."""
    entries = [max(1, group.rows * group.layout.width) for group in groups]
    total = sum(entries)
    size = min(_MOST, max(_LEAST, total // (_PARTS if by is None else _PARTS_BY)))
    count = max(1, round(total / size))
    # A row group is not divided; it belongs to the part in which its middle lies.
    numbers = [
        (2 * end - own) * count // (2 * total) for own, end in zip(entries, accumulate(entries), strict=True)
    ]
    numbered = groupby(zip(numbers, groups, strict=True), key=itemgetter(0))
    return [tuple(group for _, group in part) for _, part in numbered]


def _answers(parts: Sequence[_Part]) -> Generator[_Answer, None, None]:
    """Yield what the tasks find, in the order of the parts; Ray keeps what comes early."""
    try:
        data = import_module("ray.data")
        rows = [{"part": pickle.dumps(part)} for part in parts]
        with warnings.catch_warnings():
            # Ray sets options of its own that it has deprecated.
            warnings.simplefilter("ignore", DeprecationWarning)
            dataset = data.from_items(rows, override_num_blocks=len(rows)).map(_measure)
        dataset.context.enable_progress_bars = False
        dataset.context.print_on_execution_start = False
        dataset.context.execution_options.preserve_order = True
        with quiet("ray.data"), closing(iter(dataset.iter_rows())) as found:
            for row in found:
                yield pickle.loads(row["answer"])
    except Exception as error:
        raise _failure(error) from error


def _failure(error: Exception) -> CalibrantError:
    return CalibrantError(
        f"ray: expected the workers to measure every part, got {in_short(error)}; they need the packages "
        "that are installed here, and Ray's logs tell more"
    )


def _measure(row: dict[str, bytes]) -> dict[str, bytes]:
    """Do a part, on a worker. What is wrong with the data is an answer: to try again would not help."""
    part: _Part = pickle.loads(row["part"])
    try:
        # A machine has as many tasks at once as cores.
        with one_thread_each():
            answer = _answer(part)
    except CalibrantError as refusal:
        answer = _Answer(refusal=refusal)
    return {"answer": pickle.dumps(answer)}


def _answer(part: _Part) -> _Answer:
    if part.version != __version__:
        raise CalibrantError(
            f"ray: expected Calibrant {part.version} on every worker, as here, got {__version__}; "
            "install the same version everywhere"
        )
    measures, left_out = part.empty(), list[LeftOut]()
    batches = read_groups(part.groups, part.rows, left_out=left_out if part.skip_bad else None)
    with closing(ahead(batches, most=_AHEAD)) as ready:
        for batch in ready:
            measures.add(batch)
    measures.flush()
    # Most cells of a sketch are empty: packed, it is several times smaller.
    packed = {name: zlib.compress(pickle.dumps(own), 1) for name, own in measures.measures.items()}
    return _Answer(packed, tuple(left_out))
