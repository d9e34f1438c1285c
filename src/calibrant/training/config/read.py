"""From a TOML file, and from ``key=value`` on the command line, to a configuration."""

import os
import tomllib
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from calibrant.errors import InputError
from calibrant.training.config.settings import Config

_T = TypeVar("_T")
_Table = dict[str, Any]


def load_config(path: str | os.PathLike[str] | None = None, changes: Sequence[str] = ()) -> Config:
    """Read a configuration; without a file it is the default one, which trains on digits.

    A file that says ``extends = "other.toml"`` holds only what differs from that file, which is looked for
    beside it.

    Args:
        path: The TOML file.
        changes: What to change in it, each as ``"training.epochs=5"``; the value is read as TOML, or as plain
            text if it is none.

    Example:
        >>> load_config(changes=["training.loss=focal(gamma=3)", "training.optimizer.lr=0.05"]).training.loss
        'focal(gamma=3)'
    """
    # Changes come together first: an option may be given before the name that it belongs to.
    changed: _Table = {}
    for change in changes:
        changed = _merged(changed, _parsed(change))
    return config_from_table(_merged({} if path is None else _read(Path(path), ()), changed))


def config_from_table(table: Mapping[str, Any]) -> Config:
    """Make a configuration of what a TOML file holds; unknown keys name the nearest known one."""
    return _build(Config, table, "")


def _read(path: Path, seen: tuple[Path, ...]) -> _Table:
    if path.resolve() in seen:
        raise InputError(f"extends: expected a chain of files with an end, got {path.name} again")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"CONFIG: expected a TOML file, got {path}, which does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise InputError(f"CONFIG: expected a TOML file, got {path}: {reason}") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"CONFIG: expected TOML, got {path} with: {error}") from None
    base = table.pop("extends", None)
    if base is None:
        return table
    if not isinstance(base, str):
        raise InputError(f"extends: expected the name of a file, got {base!r}")
    return _merged(_read(path.parent / base, (*seen, path.resolve())), table)


def _merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> _Table:
    """Return the base with the change on top, table by table.

    Options belong to the thing that is named beside them, and so do milestones to a schedule: another name
    leaves the old ones behind.
    """
    renamed = "name" in change and "name" in base and change["name"] != base["name"]
    result = {key: value for key, value in base.items() if not (renamed and key in ("options", "milestones"))}
    for key, value in change.items():
        old = result.get(key)
        result[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def _parsed(change: str) -> _Table:
    """Read ``a.b=value`` as the table ``{"a": {"b": value}}``."""
    keys, equals, text = change.partition("=")
    names = [name.strip() for name in keys.split(".")]
    if not equals or not all(names):
        raise InputError(f"--set: expected key=value, as in training.epochs=5, got {change!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    for name in reversed(names):
        value = {name: value}
    table: _Table = value
    return table


def _build(kind: type[_T], table: object, where: str) -> _T:
    """Make a settings value of a table, whose keys must be its fields."""
    if not isinstance(table, Mapping):
        raise InputError(f"{where}: expected a table of settings, got {table!r}")
    hints = get_type_hints(kind)
    known = {each.name: hints[each.name] for each in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    values = {}
    for key, value in table.items():
        path = f"{where}.{key}" if where else key
        if key not in known:
            raise InputError(f"{path}: expected {_keys(where, known)}, got {key!r}{_near(key, known)}")
        values[key] = _value(known[key], value, path)
    try:
        return kind(**values)
    except InputError as error:
        raise InputError(f"{where}.{error}" if where else str(error)) from None


def _keys(where: str, known: Mapping[str, Any]) -> str:
    place = f"a key of [{where}]" if where else "a table or a key"
    return f"{place} ({', '.join(known)})"


def _near(word: str, known: Mapping[str, Any]) -> str:
    close = get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _value(kind: Any, value: object, where: str) -> Any:  # noqa: ANN401, C901  # a type, and a value of it
    origin, parts = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        return _build(kind, value, where)
    if origin in (Union, types.UnionType):
        return _one_of(parts, value, where)
    if origin is Literal:
        if value not in parts:
            near = get_close_matches(str(value), [str(part) for part in parts], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise _unfit(where, " or ".join(repr(part) for part in parts), value, hint)
        return value
    if origin is tuple:
        return _row(parts, value, where)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise _unfit(where, "a table", value)
        return {key: _value(parts[1], each, f"{where}.{key}") for key, each in value.items()}
    if kind is Any:
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _unfit(where, _WORDS[kind], value)
    return value


_WORDS: Mapping[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def _one_of(kinds: tuple[Any, ...], value: object, where: str) -> Any:  # noqa: ANN401  # a value of one of the types
    wanted = [kind for kind in kinds if kind is not type(None)]
    if len(wanted) == 1:
        return _value(wanted[0], value, where)
    for kind in wanted:
        if isinstance(value, kind) and not isinstance(value, bool):
            return value
    raise _unfit(where, " or ".join(_WORDS[kind] for kind in wanted), value)


def _row(parts: tuple[Any, ...], value: object, where: str) -> tuple[Any, ...]:
    """Read a list: of any length where the type ends in an ellipsis, else of the length of the type."""
    if not isinstance(value, (list, tuple)):
        raise _unfit(where, "a list", value, '; write it as [1, 2] or ["a", "b"]')
    open_ended = len(parts) == 2 and parts[1] is Ellipsis
    if not open_ended and len(value) != len(parts):
        raise _unfit(where, f"a list of {len(parts)}", value)
    kinds = [parts[0]] * len(value) if open_ended else parts
    return tuple(_value(kind, each, where) for kind, each in zip(kinds, value, strict=True))


def _unfit(where: str, expected: str, value: object, hint: str = "") -> InputError:
    return InputError(f"{where}: expected {expected}, got {value!r}{hint}")
