"""The one door for files: written whole or not at all, errors that name the file, JSON without NaN."""

import errno
import functools
import gzip
import hashlib
import json
import math
import os
import platform
import re
import reprlib
import secrets
import stat
import sys
import tomllib
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import (
    IO,
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from calibrant.errors import CalibrantError, FormatError, InputError, did_you_mean
from calibrant.extras import optional

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from torch import Tensor

T = TypeVar("T", bound="DataclassInstance")


@contextmanager
def atomic_path(
    path: str | os.PathLike[str],
    expected: str = "a file that can be written",
    *,
    suffix: str | None = None,
) -> Iterator[Path]:
    """Yield a temporary path next to the target, and move it to the target at the end.

    If the block fails, the temporary file is removed and an existing target is untouched; a full disk is one
    sentence. The temporary name has the target's suffix. The result has the permissions of the file that it
    replaces, or of any other new file. Temporary files of killed processes are removed. For an address, the
    temporary file is on this machine and is uploaded at the end.

    Args:
        path: The file to write, or its address. Folders, devices and pipes are refused.
        expected: What writing takes, for error messages.
        suffix: Suffix of the temporary name, if not the target's.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     with atomic_path(Path(folder, "notes.txt")) as temporary:
        ...         _ = temporary.write_text("all of it")
        ...     Path(folder, "notes.txt").read_text()
        'all of it'
    """
    if (address := address_of(path)) is not None:
        with TemporaryDirectory(prefix="calibrant-") as folder:
            upload = Path(folder, f"upload{Path(path).suffix}")
            yield upload
            _upload(upload, address)
        return
    target = local_path(path)
    with writing(target, expected):
        _check_is_a_place_for_a_file(target)
        remove_leftovers(target.parent)
        ending = target.suffix if suffix is None else suffix
        temporary = target.with_name(f"{_temporary_prefix()}{os.getpid()}-{secrets.token_hex(4)}{ending}")
        try:
            temporary.touch(exist_ok=False)
            mode = stat.S_IMODE((target if target.exists() else temporary).stat().st_mode)
            temporary.chmod(mode | stat.S_IWUSR)  # before there is something that others may not read
            yield temporary
            temporary.chmod(mode)  # safetensors replaces the file by a private one
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)


# Of an address, pathlib joins the slashes; a name of one letter before the colon is a drive.
_ADDRESS = re.compile(r"([A-Za-z][\w+.-]+(?:::[\w+.-]+)*):(/+)(.*)", re.DOTALL)
_LOCAL = ("file", "local")


def address_of(path: str | os.PathLike[str]) -> str | None:
    """Return an address such as ``s3://bucket/folder``; None for a path on this machine.

    Example:
        >>> address_of(Path("s3://bucket") / "honest" / "report.html")
        's3://bucket/honest/report.html'
        >>> address_of("honest/report.html"), address_of("file:///data/report.html")
        (None, None)
    """
    found = _ADDRESS.match(os.fspath(path))
    return None if found is None or found[1] in _LOCAL else f"{found[1]}://{found[3]}"


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return a path on this machine, also from an address such as ``file:///data/report.html``."""
    found = _ADDRESS.match(os.fspath(path))
    if found is None or found[1] not in _LOCAL:
        return Path(path)
    return Path(found[3] if len(found[2]) == 2 else f"/{found[3]}")


def shown(path: str | os.PathLike[str]) -> str:
    """Return a path or an address as a person writes it."""
    return address_of(path) or os.fspath(path)


def is_there(path: Path) -> bool:
    """Return whether there is such a file or folder, on this machine or at an address."""
    if (address := address_of(path)) is None:
        return path.exists()
    with _storing(address, "an address that can be read"):
        filesystem, place = _file_system(address)
        return bool(filesystem.exists(place))


@contextmanager
def local_copy(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a path on this machine to read: the file itself, or a copy of what is at an address.

    The copy has the name of the original, and is removed at the end.
    """
    if (address := address_of(path)) is None:
        yield local_path(path)
        return
    with TemporaryDirectory(prefix="calibrant-") as folder:
        copy = Path(folder, address.rpartition("/")[2] or "file")
        with _storing(address, "an address that can be read"):
            filesystem, place = _file_system(address)
            filesystem.get_file(place, os.fspath(copy))
        yield copy


def remove_file(path: Path) -> None:
    """Remove a file, on this machine or at an address, if it is there."""
    if (address := address_of(path)) is None:
        path.unlink(missing_ok=True)
        return
    with _storing(address), suppress(FileNotFoundError):
        filesystem, place = _file_system(address)
        filesystem.rm_file(place)


def _upload(file: Path, address: str) -> None:
    """Copy a file to an address; an object store shows it when all of it is there."""
    with _storing(address):
        filesystem, place = _file_system(address)
        filesystem.put_file(os.fspath(file), place)


def _file_system(address: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path in it."""
    with optional(address):
        core = import_module("fsspec.core")
    filesystem, place = core.url_to_fs(address)
    return filesystem, str(place)


@contextmanager
def _storing(address: str, expected: str = "an address that can be written") -> Iterator[None]:
    """Turn a failure of a store into one sentence; each store has exceptions of its own."""
    try:
        yield
    except CalibrantError:
        raise
    except Exception as error:
        detail = " ".join(str(error).split())[:160] or type(error).__name__
        raise InputError(f"{address}: expected {expected}, got an error: {detail}") from error


def _check_is_a_place_for_a_file(target: Path) -> None:
    if not target.parent.is_dir():
        raise InputError(
            f"{target.name}: expected an existing directory, got {target.parent}; create it first"
        )
    if target.is_dir():
        raise InputError(
            f"{target.name}: expected the name of a file, got a directory; name a file inside it"
        )
    if target.exists() and not target.is_file():
        raise InputError(
            f"{target}: expected the name of a file, got a device or a pipe, which a file cannot replace; "
            "name another one"
        )


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files that killed processes of this machine left in a folder, once for each folder.

    Files of processes that still run, and of other machines that share the folder, are kept.
    """
    place = os.path.realpath(folder)
    if place in _TIDY or os.name != "posix":
        return
    _TIDY.add(place)
    prefix = _temporary_prefix()
    for file in folder.glob(f"{prefix}*"):
        pid = file.name.removeprefix(prefix).partition("-")[0]
        if pid.isdecimal() and not _is_running(int(pid)):
            file.unlink(missing_ok=True)


@functools.cache
def _temporary_prefix() -> str:
    """Return how names of temporary files of this machine begin; containers have processes of their own."""
    processes = Path("/proc/self/ns/pid")
    names = platform.node() + (str(processes.readlink()) if processes.is_symlink() else "")
    return f".calibrant-{hashlib.sha256(names.encode()).hexdigest()[:8]}-"


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


_TIDY: set[str] = set()


def write_file(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file, or the object of an address, whole or not at all; wait until it is on the disk."""
    data = content.encode() if isinstance(content, str) else content
    room = f"room for {len(data):,} bytes"
    # Programs that watch a folder for a suffix read hidden files too.
    with atomic_path(path, room, suffix=".part") as temporary, temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def is_packed(path: Path) -> bool:
    """Return whether a file is compressed, by its name."""
    return path.suffix.lower() == ".gz"


def suffix_of(path: str | os.PathLike[str]) -> str:
    """Return the suffix that decides the format of a file, in lower case; text may be compressed.

    Example:
        >>> suffix_of("answers.CSV"), suffix_of("answers.csv.gz"), suffix_of("answers.npz.gz")
        ('.csv', '.csv', '.gz')
    """
    name = Path(path)
    inner = Path(name.stem).suffix.lower()
    return inner if is_packed(name) and inner in _TEXTS else name.suffix.lower()


# Formats that are read and written compressed, as ``.csv.gz``.
_TEXTS = (".csv", ".tsv", ".jsonl")


@contextmanager
def unpacked(path: Path, mode: Literal["rb", "wb"] = "rb") -> Iterator[IO[bytes]]:
    """Open a file of bytes, which are compressed if its name ends in ``.gz``, always in the same way."""
    with path.open(mode) as file:
        if not is_packed(path):
            yield file
            return
        # Without name and time in its header, equal content gives equal files.
        with gzip.GzipFile("", mode, fileobj=file, mtime=0) as packed:
            yield cast("IO[bytes]", packed)


def make_folder(folder: Path, name: str = "out") -> None:
    """Create a folder and those above it, unless it exists; ``name`` is the argument in error messages.

    The folder of an address comes with its first file.
    """
    if address_of(folder) is not None:
        return
    folder = local_path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise InputError(f"{name}: expected a folder, got the file {folder}; name another one") from None
    except OSError as error:
        raise InputError(
            f"{name}: expected a folder to write to, got {folder}: {error.strerror}; name another one"
        ) from None


@contextmanager
def writing(path: str | os.PathLike[str], expected: str = "a file that can be written") -> Iterator[None]:
    """Turn a failure to write, such as a full disk, into one sentence that names the file."""
    try:
        yield
    except Exception as error:
        # Safetensors, which is not imported here, has an exception of its own for full disks.
        if not isinstance(error, OSError) and type(error).__name__ != "SafetensorError":
            raise
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InputError(f"{os.fspath(path)}: expected {expected}, got an error: {reason}") from error


@contextmanager
def reading(name: str, expected: str) -> Iterator[None]:
    """Turn what proves a bad file into one sentence that names it; errors of Calibrant get the name too.

    Too little memory, a disk or a network that fails, and mistakes in the code remain what they are.

    Args:
        name: What the file is called in messages.
        expected: What the file should be, such as ``"a Parquet file"``.
    """
    try:
        yield
    except (InputError, FormatError) as error:
        raise type(error)(f"{name}: {error}") from None
    except Exception as error:
        if not _proves_a_bad_file(error):
            if isinstance(error, OSError) and error.filename is None:
                error.filename = name
            raise
        detail = " ".join(str(error).split())[:160] or type(error).__name__
        raise FormatError(
            f"{name}: expected {expected}, got a file that cannot be read as such ({detail}); "
            "it may be truncated or have the wrong name"
        ) from error


# Modules whose own exceptions are about the content of a file.
_PARSERS = frozenset(
    [
        "_csv",
        "gzip",
        "json",
        "pyarrow",
        "safetensors",
        "safetensors_rust",
        "struct",
        "tarfile",
        "tokenize",
        "tomllib",
        "zipfile",
        "zlib",
    ]
)
_PARSING = (ValueError, LookupError, ArithmeticError, EOFError, SyntaxError, RuntimeError)
# PyTorch has no exception of its own for them.
_NO_ROOM = ("allocate memory", "not enough memory", "start new thread")


def _proves_a_bad_file(error: Exception) -> bool:
    """Return whether an exception is about what a file contains, not about the machine or the code."""
    if isinstance(error, MemoryError):
        return False
    if isinstance(error, FileNotFoundError):  # gone since it was listed
        return True
    if type(error) is OSError:  # of Arrow without a number; a damaged archive names places before its start
        return error.errno in (None, errno.EINVAL)
    module = type(error).__module__.partition(".")[0]
    if module != "builtins":
        return module in _PARSERS
    return isinstance(error, _PARSING) and not any(words in str(error) for words in _NO_ROOM)


def digest(*parts: "str | Tensor") -> str:
    """Return the SHA-256 digest of texts and tensors: equal for equal ones, on every machine.

    Example:
        >>> digest("a", "bc") == digest("ab", "c")
        False
    """
    import torch

    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            data, kind = memoryview(part.encode("utf-8", "surrogatepass")), "text"
        else:
            # A tensor of one number may count as contiguous and still have steps between numbers.
            plain = part.detach().cpu().reshape(-1).clone(memory_format=torch.contiguous_format)
            data = plain.view(torch.uint8).numpy().data
            kind = f"{part.dtype} {tuple(part.shape)}"
        found.update(f"{kind} {len(data)}:".encode())
        found.update(data)
    return found.hexdigest()


def parse_json(text: str) -> Any:  # noqa: ANN401  # any JSON value
    """Return the value of JSON text; what is nested too deeply is no JSON, a ``json.JSONDecodeError``.

    Example:
        >>> parse_json('{"ece": [0.1, null]}')
        {'ece': [0.1, None]}
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise json.JSONDecodeError(_TOO_DEEP, "", 0) from None
    if text.count("[") + text.count("{") > _DEEPEST and isinstance(value, (dict, list)) and _is_deep(value):
        raise json.JSONDecodeError(_TOO_DEEP, "", 0)
    return value


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of TOML text; all that is wrong with it is a ``tomllib.TOMLDecodeError``."""
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise _bad_toml(_TOO_DEEP) from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # a number with thousands of digits
        raise _bad_toml(str(error)) from None
    if _is_deep(table):
        raise _bad_toml(_TOO_DEEP)
    return table


def _bad_toml(reason: str) -> tomllib.TOMLDecodeError:
    """Return the error of a text as a whole; from Python 3.14 on it has a text and a place in it."""
    if sys.version_info >= (3, 14):
        return tomllib.TOMLDecodeError(reason, "", 0)
    return tomllib.TOMLDecodeError(reason)


def _is_deep(value: dict[str, Any] | list[Any]) -> bool:
    level, depth = [value], 1
    while level and depth <= _DEEPEST:
        below = (each.values() if isinstance(each, dict) else each for each in level)
        level = [part for parts in below for part in parts if isinstance(part, (dict, list))]
        depth += 1
    return bool(level)


# What we write is nested less than twenty deep; everything that walks through a value can go this deep.
_DEEPEST = 100
_TOO_DEEP = f"nested more than {_DEEPEST} deep"


def read_text(path: Path) -> str:
    """Return the text of a file; a device or a pipe, which may never end, is an ``OSError``."""
    if (address := address_of(path)) is not None:
        with _storing(address, "an address that can be read"):
            filesystem, place = _file_system(address)
            return bytes(filesystem.cat_file(place)).decode()
    path = local_path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "it is no regular file")
    return path.read_text(encoding="utf-8")


def read_json(path: Path, expected: str, kind: Any = Any) -> Any:  # noqa: ANN401  # any JSON value
    """Return the value in a JSON file.

    Args:
        path: The file.
        expected: What the file should be, for error messages.
        kind: The type of the value, as :func:`read_value` takes it.
    """
    try:
        value = parse_json(read_text(path))
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: expected {expected}, got a file that is not JSON ({error})") from error
    with reading(str(path), expected):
        return read_value(kind, value)


def without_nan(value: Any) -> Any:  # noqa: ANN401  # any JSON value
    """Return the value with None, JSON's null, in place of NaN and infinity.

    Example:
        >>> without_nan({"ece": float("nan"), "bins": (0.5, float("inf"))})
        {'ece': None, 'bins': [0.5, None]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: without_nan(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(entry) for entry in value]
    return value


@dataclass(frozen=True)
class Allowed:
    """What a value of a file must be beyond its type, as in ``Annotated[int, at_least(1)]``.

    Attributes:
        expected: The rule in words, for error messages.
        allows: Whether a value of the type is allowed.
    """

    expected: str
    allows: Callable[[Any], bool]


def at_least(low: int) -> Allowed:
    """Return the rule of numbers that are not below a bound."""
    return Allowed(f"a number of at least {low}", lambda value: value >= low)


def between(low: float, high: float) -> Allowed:
    """Return the rule of numbers within bounds that are themselves allowed."""
    return Allowed(f"a number from {low} to {high}", lambda value: low <= value <= high)


def matching(pattern: str, expected: str) -> Allowed:
    """Return the rule of texts that match a regular expression as a whole."""
    return Allowed(expected, lambda value: re.fullmatch(pattern, value, re.ASCII) is not None)


Count: TypeAlias = Annotated[int, at_least(0)]
Share: TypeAlias = Annotated[float, between(0, 1)]


def read_value(
    kind: Any,  # noqa: ANN401  # any type, such as dict[str, int]
    value: object,
    name: str = "",
    *,
    error: type[CalibrantError] = FormatError,
) -> Any:  # noqa: ANN401  # a value of the type
    """Return a plain value of a JSON or TOML file as the type that it must have, or refuse it.

    Args:
        kind: A dataclass, a number, text, tuple, mapping, literal or union of them; ``Annotated`` with a
            :class:`Allowed` bounds it.
        value: The value of the file.
        name: Where the value is, for error messages.
        error: What to raise for a value that does not fit.

    Example:
        >>> read_value(dict[str, Count], {"rows": -1}, "files")
        Traceback (most recent call last):
        calibrant.errors.FormatError: files.rows: expected a number of at least 0, got -1
    """
    return _Reader(error, ignore_unknown=False).value(kind, value, name)


def read_dataclass(
    kind: type[T],
    table: object,
    name: str = "",
    *,
    error: type[CalibrantError] = FormatError,
    ignore_unknown: bool = False,
) -> T:
    """Build a dataclass, and those in its fields, from the tables and lists of a JSON or TOML file.

    Args:
        kind: The dataclass; the types of its fields decide what is accepted, as in :func:`read_value`.
        table: The values by the names of the fields; fields with a default may be missing.
        name: Where the table is, for error messages.
        error: What to raise for a value that does not fit.
        ignore_unknown: Whether keys that are no fields are ignored instead of refused.

    Example:
        >>> @dataclass
        ... class Point:
        ...     x: float
        ...     labels: tuple[str, ...] = ()
        >>> read_dataclass(Point, {"x": 1, "labels": ["a"]})
        Point(x=1.0, labels=('a',))
    """
    built: T = _Reader(error, ignore_unknown).table(kind, table, name)
    return built


@dataclass(frozen=True)
class _Reader:
    """Converts plain values to annotated types; each method handles one kind of annotation."""

    error: type[CalibrantError]
    ignore_unknown: bool

    def table(self, kind: Any, table: object, where: str) -> Any:  # noqa: ANN401  # a dataclass
        hints = get_type_hints(kind, include_extras=True)
        known = {field.name: hints[field.name] for field in fields(kind)}
        values = {}
        for key, value in self.expect(Mapping, table, where).items():
            path = f"{where}.{key}" if where else key
            if key in known:
                values[key] = self.value(known[key], value, path)
            elif not self.ignore_unknown:
                place = f"a key of [{where}]" if where else "a table or a key"
                raise self.unfit(path, f"{place} ({', '.join(known)})", key, did_you_mean(key, known))
        for field in fields(kind):
            if field.name not in values and field.default is field.default_factory is MISSING:
                raise self.error(f"{where or kind.__name__}: expected {field.name!r}, got none")
        try:
            return kind(**values)
        except (InputError, FormatError) as error:
            raise self.error(f"{where}.{error}" if where else str(error)) from None

    def value(self, kind: Any, value: object, where: str) -> Any:  # noqa: ANN401  # a type and a value of it
        origin, parts = get_origin(kind), get_args(kind)
        if is_dataclass(kind):
            return self.table(kind, value, where)
        if origin is Annotated:
            return self.ruled(parts, value, where)
        if origin in (Union, types.UnionType):
            return self.union(parts, value, where)
        if origin is Literal:
            return self.literal(parts, value, where)
        if origin is tuple:
            return self.row(parts, value, where)
        if origin is not None:
            entries = self.expect(Mapping, value, where).items()
            return {key: self.value(parts[1], entry, f"{where}.{key}") for key, entry in entries}
        return value if kind is Any else self.plain(kind, value, where)

    def ruled(self, parts: tuple[Any, ...], value: object, where: str) -> Any:  # noqa: ANN401  # of the type
        kind, *rules = parts
        checked = self.value(kind, value, where)
        for rule in rules:
            if not rule.allows(checked):
                raise self.unfit(where, rule.expected, value)
        return checked

    def union(self, kinds: tuple[Any, ...], value: object, where: str) -> Any:  # noqa: ANN401  # of one of the kinds
        wanted = [kind for kind in kinds if kind is not types.NoneType]
        if value is None and len(wanted) < len(kinds):
            return None
        if len(wanted) == 1:
            return self.value(wanted[0], value, where)
        if isinstance(value, bool) or not isinstance(value, tuple(wanted)):
            raise self.unfit(where, " or ".join(_WORDS[kind] for kind in wanted), value)
        return self.plain(type(value), value, where)

    def literal(self, choices: tuple[Any, ...], value: object, where: str) -> object:
        if value not in choices:
            raise self.unfit(where, " or ".join(map(repr, choices)), value, did_you_mean(str(value), choices))
        return value

    def row(self, kinds: tuple[Any, ...], value: object, where: str) -> tuple[Any, ...]:
        """Read a list: of any length if the type ends in an ellipsis, else of the length of the type."""
        entries = self.expect(list, list(value) if isinstance(value, tuple) else value, where)
        if kinds[-1] is Ellipsis:
            if kinds[0] is float and all(type(each) is float and math.isfinite(each) for each in entries):
                return tuple(entries)  # the same as below, in less time
            kinds = (kinds[0],) * len(entries)
        elif len(entries) != len(kinds):
            raise self.unfit(where, f"a list of {len(kinds)}", value)
        return tuple(self.value(kind, entry, where) for kind, entry in zip(kinds, entries, strict=True))

    def plain(self, kind: type, value: object, where: str) -> object:
        if kind in (int, float) and isinstance(value, int) and not -_LARGEST <= value <= _LARGEST:
            raise self.unfit(where, "a number of at most 64 bits", value)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, float) and kind is float and not math.isfinite(value):
            raise self.unfit(where, "a finite number", value)
        return self.expect(kind, value, where)

    def expect(self, kind: type, value: Any, where: str) -> Any:  # noqa: ANN401  # a value of the type
        # To Python, true is a whole number.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.unfit(where, _WORDS[kind], value, _HINTS.get(kind, ""))
        return value

    def unfit(self, where: str, expected: str, value: object, hint: str = "") -> CalibrantError:
        shown = _SHORT.repr(value)
        shown = shown if len(shown) <= 120 else f"{shown[:120]}..."
        return self.error(f"{where}: expected {expected}, got {shown}{hint}".removeprefix(": "))


_LARGEST = 2**63 - 1
# Values in messages are cut before they become text, which for a whole file would take long.
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxdict, _SHORT.maxstring, _SHORT.maxlong = 3, 20, 20, 200, 200
_WORDS: Mapping[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    Mapping: "a table",
}
_HINTS: Mapping[type, str] = {list: '; write it as [1, 2] or ["a", "b"]'}
