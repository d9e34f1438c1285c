"""Files of a stream in the order of time, and how a monitoring follows them: each row is read once."""

import glob
import hashlib
import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.data.columns import Columns
from calibrant.data.files import FORMATS
from calibrant.data.joined import UNKNOWN, PartlyLabelled, load_partly, read_label_file
from calibrant.data.predictions import Predictions
from calibrant.errors import CalibrantError, FormatError, InputError
from calibrant.files import suffix_of
from calibrant.monitoring.monitor import Monitoring
from calibrant.monitoring.state import SeenFile
from calibrant.monitoring.waiting import PATIENCE, prototype
from calibrant.monitoring.windows import (
    ReadRows,
    Window,
    check_sum,
    group_names,
    units_of,
    unweighed_outcomes,
)
from calibrant.streams.files import StreamFile, find_files, is_url, rows_at_once
from calibrant.streams.prediction_stream import PredictionStream
from calibrant.streams.row_groups import naming

_PARQUET = ".parquet"
# The most rows that are read at a time.
_ROWS = 1 << 16


@dataclass(frozen=True, eq=False)
class _Piece:
    """Consecutive rows of a file.

    Attributes:
        source: The file.
        first_row: Number of the first row in the file, from 0.
        total: Number of rows of the file.
        rows: The rows; none for a file without rows.
        groups: The name of the group of each row, if rows have groups.
    """

    source: StreamFile
    first_row: int
    total: int
    rows: PartlyLabelled | Predictions | None
    groups: npt.NDArray[np.object_] | None = None

    @property
    def predictions(self) -> Predictions | None:
        """All rows, with their truth if all have it."""
        return self.rows.outputs if isinstance(self.rows, PartlyLabelled) else self.rows

    @property
    def end(self) -> int:
        """Number of the row after the last one."""
        return self.first_row + (0 if self.predictions is None else len(self.predictions))


def _find_files(source: str | os.PathLike[str]) -> tuple[StreamFile, ...]:
    """List the files of a stream in the order of their names.

    The files of a folder are all Parquet files below it. If the folder also contains predictions in other
    formats, they are all files of predictions directly in it.
    """
    path = Path(source)
    if not path.is_dir():
        return find_files(os.fspath(source))
    known = [file for file in path.iterdir() if suffix_of(file) in FORMATS]
    inside = [file for file in known if file.is_file() and not file.name.startswith((".", "_"))]
    if any(suffix_of(file) != _PARQUET for file in inside):
        return tuple(StreamFile(file.name, str(file)) for file in sorted(inside))
    try:
        return find_files(os.fspath(source))
    except FormatError:
        raise FormatError(
            f"{path.name}: expected a folder with files of predictions ({', '.join(FORMATS)}), got none"
        ) from None


def _read_pieces(
    sources: Iterable[StreamFile],
    columns: Columns,
    *,
    need_labels: bool,
    tell: Callable[[str], None] | None = None,
) -> Generator[_Piece, None, None]:
    """Yield the rows of files in their order; a bad file is refused when its turn comes.

    Parquet files are read in pieces, unless their columns have other names than ours.
    """
    whole = columns.needs_whole_files
    for in_pieces, some in groupby(sources, lambda source: source.is_parquet and not whole):
        if in_pieces:
            yield from _in_pieces(tuple(some), columns, need_labels=need_labels)
            continue
        for source in some:
            if source.filesystem is not None:
                raise InputError(
                    f"{source.name}: expected a file on this machine, whose columns may have any names, got "
                    "an address; rename its columns to confidence and correct"
                )
            rows = load_rows(source.path, columns, need_labels=need_labels, tell=tell)
            piece = _Piece(source, 0, 0, rows, group_names(rows))
            yield replace(piece, total=piece.end)


def load_rows(
    path: str, columns: Columns, *, need_labels: bool, tell: Callable[[str], None] | None
) -> PartlyLabelled | Predictions:
    """Load a file of which some rows may have no label, and tell how many rows were left out."""
    rows = load_partly(path, columns, need_labels=need_labels)
    found = rows.outputs if isinstance(rows, PartlyLabelled) else rows
    if tell is not None and "dropped" in found.metadata:
        dropped, because = (found.metadata[key] for key in ("dropped", "dropped_because"))
        tell(f"{Path(path).name}: left out {int(dropped):,} of {found.n + int(dropped):,} rows: {because}")
    return rows


def _in_pieces(
    sources: tuple[StreamFile, ...], columns: Columns, *, need_labels: bool
) -> Generator[_Piece, None, None]:
    stream = PredictionStream(
        sources,
        columns.by,
        need_labels,
        columns_unit=tuple(columns.units),
        columns_id=tuple(columns.ids),
        partly=True,
    )
    layouts = stream.layouts(skip_bad=True)
    reasons = {left_out.file: left_out.reason for left_out in stream.left_out}
    with closing(stream.read(layouts, rows_at_once(layouts.values(), _ROWS))) as batches:
        for source in sources:
            if source not in layouts:
                raise FormatError(reasons[source.name])
            end, total = 0, sum(layouts[source].rows)
            if total == 0:
                yield _Piece(source, 0, 0, None)
            while end < total:
                batch = next(batches)
                end += len(batch)
                truth, rows = batch.truth, batch.predictions
                if truth is None and rows.truth is None:
                    truth = np.full(len(batch), UNKNOWN)
                names = np.array(batch.names, dtype=object)
                codes = np.zeros(len(batch), dtype=np.int64) if batch.codes is None else batch.codes
                yield _Piece(
                    source,
                    batch.first_row,
                    total,
                    rows if truth is None else PartlyLabelled(rows, truth),
                    names[codes] if len(names) else None,
                )


def gather(source: str | os.PathLike[str], *, columns: Columns | None = None) -> Predictions:
    """Read only confidence, correctness, units and groups of all rows of a stream, which fit into memory.

    Args:
        source: What :func:`~calibrant.streams.open_stream` takes, or a folder or pattern of files of
            predictions in any format.
        columns: Which columns hold what; files are read in pieces if these have our own names.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from calibrant import save_predictions
        >>> with TemporaryDirectory() as folder:
        ...     for day in ("monday", "tuesday"):
        ...         save_predictions(
        ...             Predictions(logits=[[2.0, 0.0]], labels=[0]), f"{folder}/{day}.parquet"
        ...         )
        ...     len(gather(folder))
        2
    """
    confidence, correct, known, groups = [], [], [], []
    for piece in _read_pieces(_find_files(source), columns or Columns(), need_labels=True):
        if piece.rows is not None:
            if isinstance(piece.rows, PartlyLabelled):
                raise FormatError(
                    f"{piece.source.name}: expected a label in every row of the reference, got none in row "
                    f"{piece.first_row + int((piece.rows.truth == UNKNOWN).argmax())}; leave such rows out"
                )
            outcomes = unweighed_outcomes(piece.rows)
            confidence.append(outcomes.confidence.cpu().numpy().astype(np.float64))
            correct.append(outcomes.correct.cpu().numpy().astype(bool))
            known.append(units_of(piece.rows, before=sum(map(len, confidence[:-1]))))
            groups.append(piece.groups)
    if not confidence:
        raise FormatError(f"{source}: expected predictions, got files without rows; name others")
    numbers = [each for each in known if each is not None]
    if 0 < len(numbers) < len(known):
        raise FormatError(f"{source}: expected units in all files or in none, got some with and some without")
    named = [each for each in groups if each is not None]
    return Predictions(
        confidence=np.concatenate(confidence),
        correct=np.concatenate(correct),
        units=np.concatenate(numbers) if numbers else None,
        groups=np.concatenate(named) if len(named) == len(groups) else None,
    )


@dataclass(frozen=True)
class Step:
    """Rows that were read and counted; the state may be saved after every step.

    Attributes:
        file: The file of the rows.
        rows: Number of rows.
        windows: The windows that were completed.
        number: Number of the file, from 1, among the files to be read.
        of: Number of files to be read.
    """

    file: str
    rows: int
    windows: tuple[Window, ...]
    number: int
    of: int


def follow(
    monitoring: Monitoring,
    source: str | os.PathLike[str],
    *,
    columns: Columns | None = None,
    tell: Callable[[str], None] | None = None,
    now: Callable[[], float] = time.time,
) -> Generator[Step, None, None]:
    """Read the new rows of a stream step by step, in memory that does not grow with it.

    The monitoring remembers the number of rows that it has read of each file, by its full path. A file that
    was read completely is not read again. A file that was read in part or has grown is read further; the rows
    that were read before must be unchanged. A bad file is refused when its turn comes, after all rows before
    it are counted. Rows without a label are counted and left out, unless they wait for it, see
    :func:`follow_labels`.

    Args:
        monitoring: The monitoring that reads the rows.
        source: A folder or a pattern of files of predictions in any format, a file, or an address of Parquet
            files. Files are read in the order of their names.
        columns: Which columns hold what; Parquet is read in pieces if these have our own names.
        tell: Called with a sentence about anything unusual that is no reason to stop.
        now: The time in seconds since 1970, from which rows wait for their labels.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from calibrant import Predictions, save_predictions
        >>> day = Predictions(confidence=[0.9] * 600, correct=([True] * 9 + [False]) * 60)
        >>> monitoring = Monitoring(day, window=500)
        >>> with TemporaryDirectory() as folder:
        ...     for name in ("monday", "tuesday"):
        ...         save_predictions(day, f"{folder}/{name}.parquet")
        ...         new = sum(step.rows for step in follow(monitoring, folder))
        ...         print(new, monitoring.n)
        600 600
        600 1200
    """
    stream = _stream_id(os.fspath(source))
    sources = _find_files(os.fspath(source))
    ids = [_file_id(each) for each in sources]
    _forget_gone(monitoring, stream, set(ids), tell)
    files: dict[StreamFile, _File] = {}
    for each, path in zip(sources, ids, strict=True):
        seen, mark = monitoring.files.get(path), _file_mark(each)
        if seen is None or seen.rows < seen.total or seen.mark != mark:
            files[each] = _File(path, mark, len(files) + 1, seen)
    need_labels = monitoring.late is None
    read = _read_pieces(files, columns or Columns(), need_labels=need_labels, tell=tell)
    with closing(read) as pieces:
        for piece in pieces:
            file = files[piece.source]
            rows = file.new_rows(piece, monitoring)
            try:
                windows = [] if rows is None else monitoring.take(rows, now=now())
            except InputError as refusal:
                with naming(piece.source.name, first_row=piece.end - len(rows or ())):
                    raise refusal from None
            if piece.end >= file.n_old:
                monitoring.files[file.path] = SeenFile(stream, piece.end, piece.total, file.check, file.mark)
            yield Step(piece.source.name, len(rows or ()), tuple(windows), file.number, len(files))


def follow_labels(
    monitoring: Monitoring,
    labels: str | os.PathLike[str],
    sources: Sequence[str],
    *,
    columns: Columns,
    patience: float = PATIENCE,
    now: Callable[[], float] = time.time,
) -> Generator[Step, None, None]:
    """Let rows wait for labels that come in other files, and read those that are new, step by step.

    Call it before :func:`follow`, which then keeps rows without a label until it comes. A file of labels is
    loaded as a whole, and read again whenever it was written again; a label that is there already must be
    the same. Rows are tested when their label comes, in the order in which they were read.

    Args:
        monitoring: The monitoring that reads the rows.
        labels: A file, folder or pattern of files with ids and labels, on this machine.
        sources: The predictions; the first file decides what labels mean.
        columns: Which columns hold what; ``ids`` are needed.
        patience: Seconds that a row waits for its label, and a label for its row, since it was read; also
            how long ids are remembered.
        now: The time in seconds since 1970.
    """
    if not columns.ids:
        raise InputError(
            "labels: expected together with the column that names each row, got none; name it with ids="
        )
    if monitoring.late is None:
        form = _form_of(sources, columns)
        if form is None:
            return
        monitoring.wait_for_labels(form)
    assert monitoring.late is not None
    late, stream, files = monitoring.late, _stream_id(os.fspath(labels)), _label_files(os.fspath(labels))
    late.expire(now(), patience)
    seen, marks = monitoring.files, {each: _file_mark(each) for each in files}
    _forget_gone(monitoring, stream, {_file_id(each) for each in files}, None)
    new = {each: mark for each, mark in marks.items() if _mark_of(seen.get(_file_id(each))) != mark}
    before, windows = monitoring.n, monitoring.take_labelled()
    if monitoring.n > before:  # units that waited for a label in vain are complete without it
        yield Step(os.fspath(labels), monitoring.n - before, tuple(windows), 1, max(1, len(new)))
    for number, (file, mark) in enumerate(new.items(), 1):
        found = read_label_file(file.path, columns, pairs=late.k is None)
        late.add_labels(found, now())
        windows, n = monitoring.take_labelled(), len(found.numbers)
        seen[_file_id(file)] = SeenFile(stream, n, n, 0, mark)
        yield Step(file.name, n, tuple(windows), number, len(new))


def _label_files(labels: str) -> tuple[StreamFile, ...]:
    """List the files of labels; a folder may be empty before the first ones come."""
    if is_url(labels):
        raise InputError(f"labels: expected files on this machine, got the address {labels}; copy them")
    try:
        return _find_files(labels)
    except FormatError:
        if Path(labels).is_dir() or glob.has_magic(labels):
            return ()
        raise


def _mark_of(seen: SeenFile | None) -> str | None:
    return None if seen is None else seen.mark


def _form_of(sources: Sequence[str], columns: Columns) -> Predictions | None:
    """Return predictions of the kind that the first readable file has; None if there is no file yet."""
    for source in sources:
        with suppress(CalibrantError):  # which is raised when its turn comes
            for file in _find_files(source):
                with (
                    suppress(CalibrantError),
                    closing(_read_pieces([file], columns, need_labels=False)) as every,
                ):
                    found = next((piece.predictions for piece in every if piece.rows is not None), None)
                    if found is not None:
                        return prototype(found.k, found.class_names)
    return None


@dataclass
class _File:
    """A file that is read from its beginning; rows that were read before are only compared.

    Attributes:
        path: Its full path.
        mark: Its ``_file_mark``.
        number: Its number among the files to be read.
        seen: How much of it was read before, if any.
        check: Checksum of the rows that have been read so far.
    """

    path: str
    mark: str
    number: int
    seen: SeenFile | None
    check: int = 0

    @property
    def n_old(self) -> int:
        """Number of rows that were read before."""
        return 0 if self.seen is None else self.seen.rows

    def new_rows(self, piece: _Piece, monitoring: Monitoring) -> ReadRows | None:
        """Return the new rows of a piece, None without rows; the others must be unchanged."""
        if piece.total < self.n_old:
            raise InputError(
                f"{piece.source.name}: expected the {self.n_old:,} rows of this file that were read before, "
                f"got only {piece.total:,} rows; put the old file back, or give the new one a name of its own"
            )
        if piece.rows is None:
            return None
        rows = monitoring.prepared(piece.rows, piece.groups)
        pairs, n_old = rows.pairs, min(max(self.n_old - piece.first_row, 0), len(rows))
        self.check = check_sum(pairs[:, :n_old], self.check)
        if self.seen is not None and piece.first_row + n_old == self.n_old and self.check != self.seen.check:
            raise InputError(
                f"{piece.source.name}: expected the {self.n_old:,} rows of this file that were read before, "
                "got other rows; put the old file back, or give the new one a name of its own"
            )
        self.check = check_sum(pairs[:, n_old:], self.check)
        return rows.take(slice(n_old, None))


def _forget_gone(
    monitoring: Monitoring, stream: str, present: set[str], tell: Callable[[str], None] | None
) -> None:
    """Refuse to continue if a file that was read in part is gone; forget those that were read completely."""
    gone = {
        path: seen for path, seen in monitoring.files.items() if seen.stream == stream and path not in present
    }
    for path, seen in gone.items():
        if seen.rows < seen.total:
            raise InputError(
                f"{path}: expected this file, which was read up to row {seen.rows:,} of {seen.total:,}; it "
                "is missing; put it back, or begin a new state"
            )
    for path in gone:
        del monitoring.files[path]
    if gone and tell is not None:
        shown = ", ".join(path.replace("\\", "/").rpartition("/")[2] for path in sorted(gone)[:3])
        more = ", ..." if len(gone) > 3 else ""
        tell(
            f"{len(gone):,} of the files that were read are gone ({shown}{more}): "
            "their rows stay counted, and would be counted again if the files came back"
        )


def _file_id(source: StreamFile) -> str:
    """Return the full path or address of a file, independent of the current folder."""
    if source.filesystem is None:
        return str(Path(source.path).resolve())
    return str(source.filesystem.unstrip_protocol(source.path))


def _file_mark(source: StreamFile) -> str:
    """Return a text that changes whenever a file is written: its size and time, or its remote key."""
    filesystem: Any = source.filesystem
    try:
        if filesystem is not None:
            return str(filesystem.ukey(source.path))
        status = Path(source.path).stat()
    except OSError as error:
        raise FormatError(
            f"{source.name}: expected a file that can be read, got {error.strerror or error}"
        ) from error
    return f"{status.st_size} {status.st_mtime_ns}"


def _stream_id(source: str) -> str:
    """Return a hash that identifies a stream; not its address, which may contain a password."""
    place = source if is_url(source) else str(Path(source).resolve())
    return hashlib.sha256(place.encode()).hexdigest()[:16]
