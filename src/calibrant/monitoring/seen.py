"""Files that have been seen: how far each was read, and how to know it again."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant.streams.sources import Source, is_url


@dataclass(frozen=True)
class SeenFile:
    """How far a file of a stream was read.

    Attributes:
        stream: The stream that it came from, as ``stream_id`` calls it.
        rows: Number of rows that were read and counted, the first ones.
        total: Number of rows that the file had.
        check: What tells these rows apart from others.
        mark: What tells whether the file may have been written again: a size and a time.
    """

    stream: str
    rows: int
    total: int
    check: int
    mark: str

    def is_done(self, mark: str) -> bool:
        """Say whether all was read of a file that has not been touched since."""
        return self.rows == self.total and self.mark == mark


def file_id(source: Source) -> str:
    """Return the full path or address of a file, the same from every folder that one works in."""
    if source.filesystem is None:
        return str(Path(source.path).resolve())
    return str(source.filesystem.unstrip_protocol(source.path))


def file_mark(source: Source) -> str:
    """Return what changes whenever a file is written."""
    filesystem: Any = source.filesystem
    if filesystem is not None:
        return str(filesystem.ukey(source.path))
    status = Path(source.path).stat()
    return f"{status.st_size} {status.st_mtime_ns}"


def stream_id(source: str) -> str:
    """Return what tells a stream apart from others; a hash, as an address may hold a password."""
    place = source if is_url(source) else str(Path(source).resolve())
    return hashlib.sha256(place.encode()).hexdigest()[:16]
