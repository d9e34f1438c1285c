"""Where a stream comes from: a file, a folder, a pattern, or an address such as ``s3://bucket/folder``."""

import glob
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow.parquet as pq

from calibrant.errors import FormatError, MissingPackageError

_SUFFIX = ".parquet"


@dataclass(frozen=True)
class Source:
    """One Parquet file of a stream.

    Attributes:
        name: Its path below the folder of the stream, by which errors call it.
        path: Where it is, on this machine or in ``filesystem``.
        filesystem: The fsspec file system of an address; none for a file of this machine.
    """

    name: str
    path: str
    filesystem: Any = None

    @contextmanager
    def open(self, *, buffer_size: int = 0) -> Iterator[pq.ParquetFile]:
        """Open the file; with a buffer, columns of a row group are read in pieces of that size."""
        with ExitStack() as stack:
            handle = self.path
            if self.filesystem is not None:
                handle = stack.enter_context(self.filesystem.open(self.path, "rb"))
            yield stack.enter_context(pq.ParquetFile(handle, buffer_size=buffer_size))

    @property
    def partition(self) -> dict[str, str]:
        """What folders named ``key=value`` say about all rows of the file."""
        pairs = (part.partition("=") for part in PurePosixPath(self.path.replace(os.sep, "/")).parts[:-1])
        return {key: value for key, mark, value in pairs if mark}


def is_url(source: str) -> bool:
    """Say whether this is an address such as ``s3://bucket/folder`` and no path of this machine."""
    return "://" in source


def is_many(source: str) -> bool:
    """Say whether this names a stream by itself: an address, a folder, or a pattern."""
    return is_url(source) or Path(source).is_dir() or (glob.has_magic(source) and not Path(source).exists())


def find_sources(source: str) -> tuple[Source, ...]:
    """List the Parquet files meant, in the order of their names; hidden files and folders are ignored."""
    found = _remote(source) if is_url(source) else _local(source)
    if not found:
        raise FormatError(f"{source}: expected files named *{_SUFFIX}, got none; check the path")
    return tuple(sorted(found, key=lambda file: file.name))


def _local(source: str) -> list[Source]:
    path = Path(source)
    if path.is_dir():
        files = [file for file in path.rglob(f"*{_SUFFIX}") if file.is_file()]
        return [
            Source(name, str(file))
            for file in files
            if not _is_hidden(name := file.relative_to(path).as_posix())
        ]
    if path.exists():
        if path.suffix.lower() != _SUFFIX:
            raise FormatError(
                f"{path.name}: expected a {_SUFFIX} file, a folder or a pattern, got {path.suffix!r}; "
                "only Parquet is read as a stream"
            )
        return [Source(path.name, str(path))]
    if not glob.has_magic(source):
        raise FormatError(f"{path.name}: no such file or folder in {path.parent}; check the path")
    found = [Path(file) for file in glob.glob(source, recursive=True) if file.endswith(_SUFFIX)]  # noqa: PTH207  # Path.glob takes no absolute pattern
    root = _common([file.as_posix() for file in found])
    return [Source(file.as_posix()[len(root) :], str(file)) for file in found if file.is_file()]


def _remote(source: str) -> list[Source]:
    try:
        core = import_module("fsspec.core")
    except ModuleNotFoundError as error:
        raise MissingPackageError(source, "fsspec", "scale") from error
    try:
        filesystem, path = core.url_to_fs(source)
        if glob.has_magic(path):
            found = filesystem.glob(path)
        else:
            found = filesystem.find(path) if filesystem.isdir(path) else [path] * filesystem.exists(path)
    except (ImportError, ValueError, OSError) as error:
        detail = " ".join(str(error).split())[:160]
        raise FormatError(f"{source}: expected an address that can be read, got {detail}") from error
    files = [str(file) for file in found if str(file).endswith(_SUFFIX)]
    root = _common(files)
    named = [Source(file[len(root) :], file, filesystem) for file in files]
    return [file for file in named if not _is_hidden(file.name)]


def _common(paths: list[str]) -> str:
    """Return the folder that all paths share, with its last slash."""
    folders = [path.rpartition("/")[0] for path in paths]
    shared = os.path.commonpath(folders) if folders and all(folders) else ""
    return shared if not shared or shared.endswith("/") else f"{shared}/"


def _is_hidden(name: str) -> bool:
    return any(part.startswith((".", "_")) for part in PurePosixPath(name).parts)
