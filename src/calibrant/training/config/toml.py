"""Configurations from TOML files and from ``key=value`` on the command line, and back to TOML."""

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from calibrant.errors import InputError
from calibrant.extras import optional
from calibrant.files import parse_toml, read_dataclass, read_text
from calibrant.training.config.settings import Config

_Table: TypeAlias = dict[str, Any]

_FIRST_RUN = Path(__file__).with_name("first_run.toml")


def load_config(path: str | os.PathLike[str] | None = None, changes: Sequence[str] = ()) -> Config:
    """Read a configuration; without a file it is the default one, which trains on digits.

    A file with ``extends = "other.toml"`` contains only what differs from that file, whose path is relative
    to its own folder.

    Args:
        path: The TOML file.
        changes: Changes to it, each as ``"training.epochs=5"``; the value is read as TOML, or as plain text
            if it is not TOML.

    Example:
        >>> load_config(changes=["training.loss=focal(gamma=3)", "training.optimizer.lr=0.05"]).training.loss
        'focal(gamma=3)'
    """
    # Changes are merged with each other first: an option may come before the name that it belongs to.
    changed: _Table = {}
    for change in changes:
        changed = merge_tables(changed, _parsed(change))
    return config_from_table(merge_tables({} if path is None else _read(Path(path), ()), changed))


def load_first_run(changes: Sequence[str] = ()) -> Config:
    """Return what ``calibrant train`` trains without a configuration: noisy digits, learned by heart.

    With changes that name another data set, only those count: nothing spoils that set in silence.

    Example:
        >>> load_first_run().data.label_noise, load_first_run(["data.name=svhn"]).data.label_noise
        (0.3, 0.0)
    """
    plain = load_config(changes=changes)
    return load_config(_FIRST_RUN, changes) if plain.data.name == Config().data.name else plain


def config_from_table(table: Mapping[str, Any]) -> Config:
    """Return the configuration of a parsed TOML file; unknown keys are refused with the nearest known one."""
    return read_dataclass(Config, table, error=InputError)


def config_to_table(config: Config) -> _Table:
    """Return all settings as a TOML file holds them, without those that are None."""
    table: _Table = _plain(asdict(config))
    return table


def config_to_toml(config: Config) -> str:
    """Return all settings, including defaults, as TOML that reads back as the same configuration."""
    with optional("configuration"):
        import tomli_w
    return tomli_w.dumps(config_to_table(config))


def differences(first: Config, second: Config) -> list[str]:
    """Return the keys in which two configurations differ, such as ``"training.epochs"``."""
    left, right = _flat(config_to_table(first)), _flat(config_to_table(second))
    return [key for key in {**left, **right} if left.get(key) != right.get(key)]


def _read(path: Path, seen: tuple[Path, ...]) -> _Table:
    if path.resolve() in seen:
        raise InputError(f"extends: expected no cycle of files, got {path.name} twice")
    try:
        table = parse_toml(read_text(path))
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
    return merge_tables(_read(path.parent / base, (*seen, path.resolve())), table)


def merge_tables(base: Mapping[str, Any], change: Mapping[str, Any]) -> _Table:
    """Return the base with the change on top, table by table.

    Options belong to the name beside them, and milestones to their schedule: a change of the name drops the
    old ones.
    """
    renamed = "name" in change and "name" in base and change["name"] != base["name"]
    result = {key: value for key, value in base.items() if not (renamed and key in ("options", "milestones"))}
    for key, value in change.items():
        old = result.get(key)
        result[key] = merge_tables(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def _parsed(change: str) -> _Table:
    """Read ``a.b=value`` as the table ``{"a": {"b": value}}``."""
    keys, equals, text = change.partition("=")
    names = [name.strip() for name in keys.split(".")]
    if not equals or not all(names):
        raise InputError(f"changes: expected key=value, as in training.epochs=5, got {change!r}")
    try:
        value = parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    for name in reversed(names):
        value = {name: value}
    table: _Table = value
    return table


def _plain(value: Any) -> Any:  # noqa: ANN401  # any part of a configuration
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items() if each is not None}
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    return value


def _flat(table: _Table, prefix: str = "") -> _Table:
    flat: _Table = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
