"""Streams on a Ray cluster: workers measure parts of a stream, and their accumulators are merged.

A stream is cut into parts of neighbouring row groups; the cuts depend on the stream and not on the cluster.
Each part is one row of a Ray dataset. A task reads its part on a worker and returns accumulators, never
predictions. These are merged in the order of the stream, so the result is the same to the last bit on any
cluster, also if workers die.
"""

import dataclasses
import pickle
import warnings
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from importlib import import_module
from itertools import accumulate, groupby
from operator import itemgetter
from types import ModuleType
from typing import TypeAlias, TypedDict, Unpack

from calibrant._version import __version__
from calibrant.errors import CalibrantError
from calibrant.inputs import Progress
from calibrant.streams.evaluate import GroupedMeasures, StreamPass, evaluate_stream
from calibrant.streams.measures import StreamEvaluation
from calibrant.streams.prediction_stream import PredictionStream, ahead
from calibrant.streams.ray_cluster import (
    check_address,
    connected,
    import_ray,
    in_short,
    is_client,
    quiet,
    replaced,
)
from calibrant.streams.rewriting import FileJob
from calibrant.streams.row_groups import LeftOut, RowGroup, read_groups
from calibrant.threads import one_thread_each

_Merged: TypeAlias = tuple[GroupedMeasures, list[LeftOut]]

# The fewest and most numbers of a part: enough to be worth a task, few enough to be cheap to repeat.
_LEAST, _MOST = 1 << 24, 1 << 28
# Between these limits, the number of parts, without and with groups: merging a part takes the driver a few
# milliseconds for each of its groups.
_PARTS, _PARTS_BY = 4096, 1024
# Batches that a task reads in advance.
_AHEAD = 2


class StreamOptions(TypedDict, total=False):
    """The options of :func:`~calibrant.streams.evaluate_stream` that every engine has."""

    n_bins: int
    by: str | None
    intervals: bool
    progress: Progress | None
    skip_bad: bool
    most_groups: int


@dataclasses.dataclass(frozen=True)
class _Part:
    """The work of a task, and the version of Calibrant, since another one might count differently."""

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
    """The result of a task: packed measures of each group and what it left out, or why it refused."""

    measures: dict[str, bytes] = dataclasses.field(default_factory=dict)
    left_out: tuple[LeftOut, ...] = ()
    refusal: CalibrantError | None = None


def evaluate_stream_on_ray(
    stream: PredictionStream, *, address: str | None = None, **options: Unpack[StreamOptions]
) -> StreamEvaluation:
    """Compute measures of a stream by the workers of a Ray cluster.

    The result is that of :func:`~calibrant.streams.evaluate_stream`, to 1e-12. If a worker dies, only its
    part is lost, and Ray gives it to another one.

    Args:
        stream: What :func:`~calibrant.streams.open_stream` returns. Every worker must see the files under
            the same paths or addresses.
        address: Of a running cluster, such as ``"10.0.0.1:6379"``, ``"ray://10.0.0.1:10001"`` or ``"auto"``.
            Without one, Ray is used as this process has initialised it, else the cluster in the environment
            variable ``RAY_ADDRESS``; else a cluster of the cores of this machine is started for the call. A
            cluster that happens to run on this machine is not joined.
        options: ``n_bins``, ``by``, ``intervals``, ``progress``, ``skip_bad`` and ``most_groups`` of
            :func:`~calibrant.streams.evaluate_stream`.

    Raises:
        MissingPackageError: Ray is not installed.
        CalibrantError: There is no such cluster, its workers cannot do the work, or the data are bad.
    """
    ray = import_ray()
    check_address(ray, address)
    return evaluate_stream(stream, **options, engine=partial(_measure_there, ray, address))


def rewrite_on_ray(jobs: Sequence[FileJob]) -> Iterator[tuple[FileJob, int, bool]]:
    """Let the workers of a Ray cluster write files again, each completely or not at all.

    It is an engine of :func:`~calibrant.streams.rewrite_stream`; the cluster is found as above. If a worker
    dies, Ray gives its file to another one. Every worker must reach the files, and the folder to write to,
    under the same paths or addresses.
    """
    ray = import_ray()
    with connected(ray, None):
        task = ray.remote(_write_there)
        waiting = {task.remote(job, __version__): job for job in jobs}
        try:
            while waiting:
                (ready,), _ = ray.wait(list(waiting), num_returns=1)
                found = ray.get(ready)
                if isinstance(found, CalibrantError):
                    raise found
                yield waiting.pop(ready), found, True
        except ray.exceptions.RayError as error:
            raise _failure(error, "write every file") from error
        finally:
            for rest in waiting:
                ray.cancel(rest)


def _write_there(job: FileJob, version: str) -> int | CalibrantError:
    """Write one file, on a worker; an error in the data is returned, because a retry would not help."""
    try:
        _check_version(version)
        with one_thread_each():
            return sum(job.run())
    except CalibrantError as refusal:
        return refusal


def _measure_there(ray: ModuleType, address: str | None, job: StreamPass) -> GroupedMeasures:
    """Measure a stream on a cluster."""
    work = _Part(
        groups=(),
        rows=job.rows_at_once,
        n_bins=job.groups.n_bins,
        by=job.groups.by,
        most=job.groups.most,
        skip_bad=job.skip_bad,
        version=__version__,
    )
    row_groups = job.stream.row_groups(job.layouts)
    parts = [dataclasses.replace(work, groups=groups) for groups in _cut(row_groups, by=work.by)]
    if not parts:
        return job.groups
    job.progress("starting Ray", 0, job.total)
    with connected(ray, address):
        whole, left_out = _merge_there(ray, parts) if is_client(ray) else _merge(parts, job.progress)
    job.stream.left_out.extend(left_out)
    return whole


def _merge(parts: Sequence[_Part], progress: Progress | None = None) -> _Merged:
    """Let workers measure the parts, and merge the results; at most one group is unpacked at a time."""
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
    """Do the same in a task of the cluster, for a connection that does not support datasets."""
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
    """Cut a stream into parts of neighbouring row groups with about equally many numbers."""
    entries = [max(1, group.rows * group.layout.width) for group in groups]
    total = sum(entries)
    size = min(_MOST, max(_LEAST, total // (_PARTS if by is None else _PARTS_BY)))
    count = max(1, round(total / size))
    # A row group is not divided; it belongs to the part that contains its middle.
    numbers = [
        (2 * end - own) * count // (2 * total) for own, end in zip(entries, accumulate(entries), strict=True)
    ]
    numbered = groupby(zip(numbers, groups, strict=True), key=itemgetter(0))
    return [tuple(group for _, group in part) for _, part in numbered]


def _answers(parts: Sequence[_Part]) -> Generator[_Answer, None, None]:
    """Yield the results of the tasks in the order of the parts; Ray buffers those that come early."""
    try:
        data = import_module("ray.data")
        rows = [{"part": pickle.dumps(part)} for part in parts]
        with warnings.catch_warnings():
            # Ray sets options that it has itself deprecated.
            warnings.simplefilter("ignore", DeprecationWarning)
            dataset = data.from_items(rows, override_num_blocks=len(rows)).map(_measure)
        dataset.context.print_on_execution_start = False
        dataset.context.execution_options.preserve_order = True
        # New versions of Ray read this from the dataset, old ones from the process.
        dataset.context.enable_progress_bars = False
        silent = replaced(data.DataContext.get_current(), "enable_progress_bars", False)
        with silent, quiet("ray.data"), closing(iter(dataset.iter_rows())) as found:
            for row in found:
                yield pickle.loads(row["answer"])
    except Exception as error:
        raise _failure(error) from error


def _failure(error: Exception, task: str = "measure every part") -> CalibrantError:
    return CalibrantError(
        f"ray: expected the workers to {task}, got {in_short(error)}; they need the packages "
        "that are installed here; see Ray's logs"
    )


def _measure(row: dict[str, bytes]) -> dict[str, bytes]:
    """Measure a part, on a worker; an error in the data is returned, because a retry would not help."""
    part: _Part = pickle.loads(row["part"])
    try:
        # A machine runs one task per core.
        with one_thread_each():
            answer = _answer(part)
    except CalibrantError as refusal:
        answer = _Answer(refusal=refusal)
    return {"answer": pickle.dumps(answer)}


def _check_version(version: str) -> None:
    if version != __version__:
        raise CalibrantError(
            f"ray: expected Calibrant {version} on every worker, as here, got {__version__}; "
            "install the same version everywhere"
        )


def _answer(part: _Part) -> _Answer:
    _check_version(part.version)
    measures, left_out = part.empty(), list[LeftOut]()
    batches = read_groups(part.groups, part.rows, left_out=left_out if part.skip_bad else None)
    with closing(ahead(batches, most=_AHEAD)) as ready:
        for batch in ready:
            measures.add(batch)
    measures.flush()
    # Most cells of a sketch are empty: compressed, it is several times smaller.
    packed = {name: zlib.compress(pickle.dumps(own), 1) for name, own in measures.measures.items()}
    return _Answer(packed, tuple(left_out))
