"""Where results may be written: never over what is read, and never by two processes at once."""

import errno
import glob
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO

from calibrant.errors import FormatError, InputError
from calibrant.files import (
    address_of,
    is_there,
    local_path,
    make_folder,
    remove_file,
    remove_leftovers,
    shown,
    write_file,
    writing,
)

if sys.platform != "win32":
    import fcntl

#: Is in a folder of several files while they are written; what a killed process leaves is not read.
INCOMPLETE = ".calibrant.incomplete"
_LOCK = ".calibrant.lock"
# Is written to an address and removed again, to know before any work whether one may write there.
_PROBE = ".calibrant.writable"


def check_place(place: str | os.PathLike[str], *, name: str = "out") -> Path:
    """Return a place to write to, which must be a path or an address that can be written.

    An empty file is written to the folder of an address and removed again: that one may write there is not
    known before. An address of this machine becomes a path.

    Args:
        place: A path, or an address such as ``s3://bucket/honest``.
        name: The argument in error messages.

    Raises:
        InputError: The address cannot be written.
        MissingPackageError: fsspec, or what it needs for this address, is not installed.
    """
    address = address_of(place)
    if address is None:
        return local_path(place)
    scheme, _, inside = address.partition("://")
    folder, _, last = inside.rstrip("/").rpartition("/")
    # A file has a suffix; the bucket itself may look as if it had one.
    inside = folder if folder and "." in last else inside.rstrip("/")
    probe = Path(f"{scheme}://{inside}", _PROBE)
    try:
        write_file(probe, "")
        remove_file(probe)
    except InputError as error:
        reason = str(error.__cause__ or error)
        raise InputError(
            f"{name}: expected a place that can be written, got {address}: {' '.join(reason.split())[:160]}; "
            "name another one"
        ) from None
    return Path(place)


def check_is_local(place: Path, why: str, *, name: str = "out") -> Path:
    """Return a folder on this machine; refuse an address, where files cannot be locked or continued."""
    if (address := address_of(place)) is not None:
        raise InputError(
            f"{name}: expected a folder on this machine, {why}, got {address}; copy it there at the end"
        )
    return local_path(place)


def check_targets(
    targets: Iterable[str | os.PathLike[str]],
    sources: Iterable[str | os.PathLike[str]],
    *,
    name: str = "out",
) -> None:
    """Refuse to write over a file that is read, or to a place that the same sources would include next time.

    Links and other spellings of a path make no difference.

    Args:
        targets: The files to write; they need not exist.
        sources: Files, folders, patterns and addresses that are read. Nothing may be written below a folder,
            nor where a pattern would find it.
        name: The argument that names the targets, for error messages.

    Example:
        >>> check_targets(["honest.npz"], ["raw.npz"])
        >>> check_targets(["logs/new/a.csv"], ["logs/**/*.csv"])
        Traceback (most recent call last):
        calibrant.errors.InputError: out: expected a place apart from logs/**/*.csv, got logs/new/a.csv, \
which would be read as a part of it; name another one
    """
    given = [source for source in sources if os.fspath(source)]
    read = _Sources([os.fspath(local_path(source)) for source in given if address_of(source) is None])
    addresses = [address for source in given if (address := address_of(source)) is not None]
    for each in targets:
        address, target = address_of(each), local_path(each)
        if address is None:
            found = read.containing(os.path.realpath(target))
        else:
            found = next(((other, why) for other in addresses if (why := _overlap(address, other))), None)
        if found is not None:
            source, why = found
            raise InputError(
                f"{name}: expected a place apart from {source}, got {shown(each)}, which {why}; name another "
                "one"
            )


def _overlap(target: str, source: str) -> str:
    """Return how an address is, or lies below, one that is read, in words; empty if it does not."""
    parts, read = (tuple(address.strip("/").split("/")) for address in (target, source))
    if parts == read:
        return "is the same file"
    if parts[: len(read)] == read:
        return "lies below it"
    return "would be read as a part of it" if glob.has_magic(source) and _matches(parts, read) else ""


class _Sources:
    """Files, folders and patterns on this machine, by what identifies them under any name."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.files: dict[object, str] = {}
        self.folders: dict[object, str] = {}
        self.patterns: dict[str, tuple[str, ...]] = {}
        for path in paths:
            if Path(path).is_dir():
                self.folders[_number(path)] = path
            elif glob.has_magic(path) and not Path(path).exists():
                self.patterns[path] = _resolved(path)
                self._add_files(glob.glob(path, recursive=True), path)  # noqa: PTH207  # Path.glob takes no absolute pattern
            else:
                self._add_files([path], path)

    def _add_files(self, files: Iterable[str], source: str) -> None:
        for file in files:
            self.files.setdefault(os.path.realpath(file), source)
            self.files.setdefault(_number(file) or file, source)

    def containing(self, place: str) -> tuple[str, str] | None:
        """Return the source that contains a resolved path, and how, in words; None if there is none."""
        for above in (Path(place), *Path(place).parents) if self.folders else ():
            if (number := _number(above)) in self.folders:
                return self.folders[number], "lies below it"
        source = self.files.get(place) or self.files.get(_number(place))
        if source is not None:
            return source, "is one of its files" if source in self.patterns else "is the same file"
        for source, pattern in self.patterns.items():
            if _matches(Path(place).parts, pattern):
                return source, "would be read as a part of it"
        return None


def _number(path: str | Path) -> tuple[int, int] | None:
    """Return what identifies a file or folder under any name; None if there is none."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def _resolved(pattern: str) -> tuple[str, ...]:
    """Return the parts of an absolute pattern; links before its first wildcard are followed."""
    parts = Path(pattern).parts
    fixed = next(place for place, part in enumerate(parts) if glob.has_magic(part))
    return (*Path(os.path.realpath(Path(*parts[:fixed]))).parts, *parts[fixed:])


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[start:], pattern[1:]) for start in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


@contextmanager
def one_writer(folder: Path, name: str = "out") -> Iterator[None]:
    """Create a folder if necessary, and refuse it if another process is writing into it.

    The lock belongs to the process, so that it ends with it, also if it is killed. An address has no lock.
    """
    if address_of(folder) is not None:
        yield
        return
    folder = local_path(folder)
    make_folder(folder, name)
    path = folder / _LOCK
    with writing(folder, "a folder that can be written"):
        lock = _locked(path)
    if lock is None:
        raise InputError(
            f"{name}: expected a folder that nobody else writes to, got {folder}, into which another process "
            "is writing; wait for it, or name another one"
        )
    try:
        remove_leftovers(folder)
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.close()


def _locked(path: Path) -> IO[bytes] | None:
    """Open a file and lock it; return None if another process has locked it."""
    while True:
        file = path.open("ab")
        if sys.platform == "win32":
            return file
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # Some network drives know no locks.
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                return file
            file.close()
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # the one before us has removed the file in the meantime


@contextmanager
def filling(folder: Path, name: str = "out") -> Iterator[list[Path]]:
    """Write several files into a folder, which counts as incomplete until all of them are there.

    Append each finished file to the list. If the block fails after the first one, or the process is killed,
    :func:`check_complete` refuses the folder until a later block has ended well.
    """
    with one_writer(folder, name):
        mark, finished = folder / INCOMPLETE, list[Path]()
        was_incomplete = is_there(mark)
        if not was_incomplete:
            write_file(mark, "Files are missing here: repeat the command that was writing them.\n")
        try:
            yield finished
        except BaseException:
            if not finished and not was_incomplete:
                remove_file(mark)
            raise
        remove_file(mark)


def check_complete(folder: Path) -> None:
    """Refuse a folder of results if its writer was killed, or is not ready yet.

    Raises:
        FormatError: The folder, or one above it, is marked as incomplete.
    """
    place = Path(os.path.realpath(folder))
    for each in (place, *place.parents):
        if (each / INCOMPLETE).exists():
            raise FormatError(
                f"{folder}: expected a complete folder, got one whose writing has not ended; repeat the "
                f"command that was interrupted, or remove {each / INCOMPLETE} to read what is there"
            )
