"""Following a stream: its rows are read on from where a monitoring has come, each of them once."""

import os
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from calibrant.errors import FormatError, InputError
from calibrant.inputs import Floats
from calibrant.monitoring.files import Piece, find_files, read_pieces
from calibrant.monitoring.monitor import Monitoring
from calibrant.monitoring.rows import COLUMNS, check_sum, columns_of
from calibrant.monitoring.seen import SeenFile, file_id, file_mark, stream_id
from calibrant.monitoring.window import Window
from calibrant.streams.sources import Source


@dataclass(frozen=True)
class Step:
    """Some rows that were read and counted; the state may be saved after every step.

    Attributes:
        file: The file that they are from.
        rows: How many there were.
        windows: The windows that they have filled.
        number: Which one, from 1, it is of the files to be read.
        of: How many these are.
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
    tell: Callable[[str], None] | None = None,
) -> Generator[Step, None, None]:
    """Read what is new in a stream, some rows at a time, in memory that does not grow with it.

    The monitoring remembers how many rows it has of each file, by its full path. A file that was read is not
    read again, one that was read in part or has grown is read on, and the rows that were read before must
    still be the same. What is refused is refused when its turn comes: all rows before it are counted.

    Args:
        monitoring: Who watches.
        source: A folder, a pattern, an address or a Parquet file, as
            :func:`~calibrant.streams.open_stream` takes them. Files come in the order of their names.
        tell: Called with a sentence about what is strange, but no reason to stop.

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
    stream = stream_id(os.fspath(source))
    sources = find_files(os.fspath(source))
    ids = [file_id(each) for each in sources]
    _forget_gone(monitoring, stream, set(ids), tell)
    files: dict[Source, _File] = {}
    for each, path in zip(sources, ids, strict=True):
        seen, mark = monitoring.files.get(path), _mark(each)
        if seen is None or not seen.is_done(mark):
            files[each] = _File(path, mark, len(files) + 1, seen)
    least = {each: file.n_old for each, file in files.items()}
    with closing(read_pieces(list(files), least)) as pieces:
        for piece in pieces:
            file = files[piece.source]
            rows = file.new_rows(piece)
            windows = monitoring.read(rows)
            if piece.end >= file.n_old:
                monitoring.files[file.path] = SeenFile(stream, piece.end, piece.total, file.check, file.mark)
            yield Step(piece.source.name, rows.shape[1], tuple(windows), file.number, len(files))


@dataclass
class _File:
    """A file that is read from its beginning, up to where it was read before only to compare.

    Attributes:
        path: Its full path.
        mark: What changes when it is written again.
        number: Which one of the files to be read it is.
        seen: How far it was read before, if it was.
        check: What tells the rows that have been read so far apart from others.
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

    def new_rows(self, piece: Piece) -> Floats:
        """Return the rows of a piece that are new; those that are not must be what they were."""
        if piece.predictions is None:
            return np.empty((len(COLUMNS), 0))
        columns = columns_of(piece.predictions)
        n_old = min(max(self.n_old - piece.first_row, 0), columns.shape[1])
        self.check = check_sum(columns[:, :n_old], self.check)
        if self.seen is not None and piece.first_row + n_old == self.n_old and self.check != self.seen.check:
            raise InputError(
                f"{piece.source.name}: expected the {self.n_old:,} rows that were read of it before, got "
                "others; put the old file back, or give the new one a name of its own"
            )
        self.check = check_sum(columns[:, n_old:], self.check)
        return columns[:, n_old:]


def _mark(source: Source) -> str:
    try:
        return file_mark(source)
    except OSError as error:
        raise FormatError(
            f"{source.name}: expected a file that can be read, got {error.strerror or error}"
        ) from error


def _forget_gone(
    monitoring: Monitoring, stream: str, present: set[str], tell: Callable[[str], None] | None
) -> None:
    """Refuse to go on without the rest of a file; forget those that are gone and were read to their end."""
    gone = {
        path: seen for path, seen in monitoring.files.items() if seen.stream == stream and path not in present
    }
    for path, seen in gone.items():
        if seen.rows < seen.total:
            raise InputError(
                f"{path}: expected this file, of which {seen.rows:,} of {seen.total:,} rows were read, got "
                "none; put it back, or begin a new state"
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
