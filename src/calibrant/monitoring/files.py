"""Files of a stream in the order of time, and how a monitoring follows them: each row is read once."""

import hashlib
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.data.columns import Columns
from calibrant.data.files import FORMATS, load_predictions
from calibrant.data.predictions import Predictions
from calibrant.errors import FormatError, InputError
from calibrant.files import suffix_of
from calibrant.inputs import Floats, Integers
from calibrant.monitoring.monitor import Monitoring
from calibrant.monitoring.state import SeenFile
from calibrant.monitoring.windows import (
    COLUMNS,
    Window,
    check_sum,
    columns_of,
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
        predictions: The rows; none for a file without rows.
    """

    source: StreamFile
    first_row: int
    total: int
    predictions: Predictions | None

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
    sources: Iterable[StreamFile], load: Callable[[str], Predictions] | None, units: Sequence[str]
) -> Generator[_Piece, None, None]:
    """Yield the rows of files in their order; a bad file is refused when its turn comes.

    Parquet files are read in pieces, unless ``load`` is given.
    """
    for in_pieces, some in groupby(sources, lambda source: load is None and source.is_parquet):
        if in_pieces:
            yield from _in_pieces(tuple(some), tuple(units))
            continue
        for source in some:
            if source.filesystem is not None:
                raise InputError(
                    f"{source.name}: expected a file on this machine, whose columns may have any names, got "
                    "an address; rename its columns to confidence and correct"
                )
            predictions = loader(load, units)(source.path)
            yield _Piece(source, 0, len(predictions), predictions)


def _in_pieces(sources: tuple[StreamFile, ...], units: tuple[str, ...]) -> Generator[_Piece, None, None]:
    stream = PredictionStream(sources, columns_unit=units)
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
                yield _Piece(source, batch.first_row, total, batch.predictions)


def loader(load: Callable[[str], Predictions] | None, units: Sequence[str]) -> Callable[[str], Predictions]:
    """Return what reads a file as a whole: ``load``, or the reader of files under our own names."""
    return load or partial(load_predictions, columns=Columns(units=units) if units else None)


def gather(
    source: str | os.PathLike[str],
    *,
    units: Sequence[str] = (),
    load: Callable[[str], Predictions] | None = None,
) -> Predictions:
    """Read only confidence, correctness and units of all rows of a stream, which fit into memory.

    Args:
        source: What :func:`~calibrant.streams.open_stream` takes, or a folder or pattern of files of
            predictions in any format.
        units: The columns that name the unit of each row, if not ``units``.
        load: Reads a file as a whole; by default Parquet is read in pieces, under our own names of columns.

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
    confidence, correct, known = [], [], []
    for piece in _read_pieces(_find_files(source), load, units):
        if piece.predictions is not None:
            outcomes = unweighed_outcomes(piece.predictions)
            confidence.append(outcomes.confidence.cpu().numpy().astype(np.float64))
            correct.append(outcomes.correct.cpu().numpy().astype(bool))
            known.append(units_of(piece.predictions))
    if not confidence:
        raise FormatError(f"{source}: expected predictions, got files without rows; name others")
    numbers = [each for each in known if each is not None]
    if 0 < len(numbers) < len(known):
        raise FormatError(f"{source}: expected units in all files or in none, got some with and some without")
    return Predictions(
        confidence=np.concatenate(confidence),
        correct=np.concatenate(correct),
        units=np.concatenate(numbers) if numbers else None,
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
    units: Sequence[str] = (),
    load: Callable[[str], Predictions] | None = None,
    tell: Callable[[str], None] | None = None,
) -> Generator[Step, None, None]:
    """Read the new rows of a stream step by step, in memory that does not grow with it.

    The monitoring remembers the number of rows that it has read of each file, by its full path. A file that
    was read completely is not read again. A file that was read in part or has grown is read further; the rows
    that were read before must be unchanged. A bad file is refused when its turn comes, after all rows before
    it are counted.

    Args:
        monitoring: The monitoring that reads the rows.
        source: A folder or a pattern of files of predictions in any format, a file, or an address of Parquet
            files. Files are read in the order of their names.
        units: The columns that name the unit of each row, if not ``units``.
        load: Reads a file as a whole; by default Parquet is read in pieces, under our own names of columns.
        tell: Called with a sentence about anything unusual that is no reason to stop.

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
    with closing(_read_pieces(files, load, units)) as pieces:
        for piece in pieces:
            file = files[piece.source]
            rows, own = file.new_rows(piece)
            try:
                windows = monitoring.read(rows, own)
            except InputError as refusal:
                with naming(piece.source.name, first_row=piece.end - rows.shape[1]):
                    raise refusal from None
            if piece.end >= file.n_old:
                monitoring.files[file.path] = SeenFile(stream, piece.end, piece.total, file.check, file.mark)
            yield Step(piece.source.name, rows.shape[1], tuple(windows), file.number, len(files))


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

    def new_rows(self, piece: _Piece) -> tuple[Floats, Integers | None]:
        """Return the new rows of a piece and their units, if any; the others must be unchanged."""
        if piece.total < self.n_old:
            raise InputError(
                f"{piece.source.name}: expected the {self.n_old:,} rows of this file that were read before, "
                f"got only {piece.total:,} rows; put the old file back, or give the new one a name of its own"
            )
        if piece.predictions is None:
            return np.empty((len(COLUMNS), 0)), None
        columns, units = columns_of(piece.predictions), units_of(piece.predictions)
        n_old = min(max(self.n_old - piece.first_row, 0), columns.shape[1])
        self.check = check_sum(columns[:, :n_old], self.check)
        if self.seen is not None and piece.first_row + n_old == self.n_old and self.check != self.seen.check:
            raise InputError(
                f"{piece.source.name}: expected the {self.n_old:,} rows of this file that were read before, "
                "got other rows; put the old file back, or give the new one a name of its own"
            )
        self.check = check_sum(columns[:, n_old:], self.check)
        return columns[:, n_old:], None if units is None else units[n_old:]


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
