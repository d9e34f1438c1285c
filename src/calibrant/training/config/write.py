"""A configuration as text: every setting, also those that were left at their default."""

from dataclasses import asdict
from typing import Any

from calibrant.errors import MissingPackageError
from calibrant.training.config.settings import Config


def config_to_table(config: Config) -> dict[str, Any]:
    """Return all settings as a TOML file holds them; what is not given is left out."""
    table: dict[str, Any] = _plain(asdict(config))
    return table


def config_to_toml(config: Config) -> str:
    """Return all settings as a TOML file, which reads back as the same configuration."""
    try:
        import tomli_w
    except ImportError:
        raise MissingPackageError("configuration", "tomli-w", "train") from None
    return tomli_w.dumps(config_to_table(config))


def differences(first: Config, second: Config) -> list[str]:
    """Return the keys in which two configurations differ, such as ``"training.epochs"``."""
    left, right = _flat(config_to_table(first)), _flat(config_to_table(second))
    return [key for key in {**left, **right} if left.get(key) != right.get(key)]


def _plain(value: Any) -> Any:  # noqa: ANN401  # any part of a configuration
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items() if each is not None}
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    return value


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        inner = _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
        flat.update(inner)
    return flat
