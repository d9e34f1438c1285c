"""The one door for files: written whole or not at all, errors that name the file, JSON without NaN."""

import json
import math
import os
import secrets
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from calibrant.errors import CalibrantError, FormatError, InputError, did_you_mean

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path next to the target, and move it to the target at the end.

    If the block fails, the temporary file is removed and an existing target is untouched. The temporary
    name has the target's suffix, and the result has the permissions of any other new file.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     with atomic_path(Path(folder, "notes.txt")) as temporary:
        ...         _ = temporary.write_text("all of it")
        ...     Path(folder, "notes.txt").read_text()
        'all of it'
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise InputError(
            f"{target.name}: expected an existing directory, got {target.parent}; create it first"
        )
    if target.is_dir():
        raise InputError(
            f"{target.name}: expected the name of a file, got a directory; name a file inside it"
        )
    temporary = target.with_name(f".calibrant-{secrets.token_hex(8)}{target.suffix}")
    try:
        temporary.touch(exist_ok=False)
        permissions = temporary.stat().st_mode
        yield temporary
        temporary.chmod(permissions)  # safetensors replaces the file by a private one
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def write_file(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file whole or not at all, and wait until it is on the disk."""
    data = content.encode() if isinstance(content, str) else content
    with (
        writing(path, f"room for {len(data):,} bytes"),
        atomic_path(path) as temporary,
        temporary.open("wb") as file,
    ):
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def writing(path: str | os.PathLike[str], expected: str = "a file that can be written") -> Iterator[None]:
    """Turn a failure to write, such as a full disk, into one sentence that names the file."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise InputError(f"{os.fspath(path)}: expected {expected}, got an error: {reason}") from error


@contextmanager
def reading(name: str, expected: str) -> Iterator[None]:
    """Turn a failure to read into one sentence that names the file.

    Args:
        name: What the file is called in messages; errors of Calibrant get it in front.
        expected: What the file should be, such as ``"a Parquet file"``.
    """
    try:
        yield
    except (InputError, FormatError) as error:
        raise type(error)(f"{name}: {error}") from None
    except Exception as error:
        # Parsers of damaged files raise almost any exception; the cause stays attached.
        detail = " ".join(str(error).split())[:160] or type(error).__name__
        raise FormatError(
            f"{name}: expected {expected}, got a file that cannot be read as such ({detail}); "
            "it may be truncated or have the wrong name"
        ) from error


def read_json(path: Path, expected: str) -> Any:  # noqa: ANN401  # any JSON value
    """Return the value in a JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: expected {expected}, got a file that is not JSON ({error})") from error


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
        kind: The dataclass; the types of its fields decide what is accepted.
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
        hints = get_type_hints(kind)
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
        except self.error as error:
            raise self.error(f"{where}.{error}" if where else str(error)) from None

    def value(self, kind: Any, value: object, where: str) -> Any:  # noqa: ANN401  # a type and a value of it
        origin, parts = get_origin(kind), get_args(kind)
        if is_dataclass(kind):
            return self.table(kind, value, where)
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

    def union(self, kinds: tuple[Any, ...], value: object, where: str) -> Any:  # noqa: ANN401  # of one of the kinds
        wanted = [kind for kind in kinds if kind is not types.NoneType]
        if value is None and len(wanted) < len(kinds):
            return None
        if len(wanted) == 1:
            return self.value(wanted[0], value, where)
        if isinstance(value, bool) or not isinstance(value, tuple(wanted)):
            raise self.unfit(where, " or ".join(_WORDS[kind] for kind in wanted), value)
        return value

    def literal(self, choices: tuple[Any, ...], value: object, where: str) -> object:
        if value not in choices:
            raise self.unfit(where, " or ".join(map(repr, choices)), value, did_you_mean(str(value), choices))
        return value

    def row(self, kinds: tuple[Any, ...], value: object, where: str) -> tuple[Any, ...]:
        """Read a list: of any length if the type ends in an ellipsis, else of the length of the type."""
        entries = self.expect(list, list(value) if isinstance(value, tuple) else value, where)
        if kinds[-1] is Ellipsis:
            kinds = (kinds[0],) * len(entries)
        elif len(entries) != len(kinds):
            raise self.unfit(where, f"a list of {len(kinds)}", value)
        return tuple(self.value(kind, entry, where) for kind, entry in zip(kinds, entries, strict=True))

    def plain(self, kind: type, value: object, where: str) -> object:
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
        shown = repr(value)
        shown = shown if len(shown) <= 120 else f"{shown[:120]}..."
        return self.error(f"{where}: expected {expected}, got {shown}{hint}")


_WORDS: Mapping[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    Mapping: "a table",
}
_HINTS: Mapping[type, str] = {list: '; write it as [1, 2] or ["a", "b"]'}
