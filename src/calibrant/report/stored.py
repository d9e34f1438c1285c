"""Pages as JSON: what was shown once can be shown again without the predictions."""

import dataclasses
import math
import types
import typing
from typing import Any

from calibrant.errors import FormatError
from calibrant.report.page import Page


def page_to_json(page: Page) -> dict[str, Any]:
    """Return the page as plain values for :mod:`json`."""
    return dataclasses.asdict(page)


def page_from_json(value: object) -> Page:
    """Build the page again; anything that :func:`page_to_json` does not write is refused."""
    return typing.cast("Page", _read(Page, value, "page"))


def _read(kind: Any, value: Any, where: str) -> Any:  # noqa: ANN401 - any annotation, any JSON value
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _read(inner[0], value, where)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _read_fields(kind, _expect(dict, value, where), where)
    if origin is tuple:
        return tuple(
            _read(inner[0], each, f"{where}[{i}]") for i, each in enumerate(_expect(list, value, where))
        )
    if origin is dict:
        return {str(name): _read(inner[1], each, where) for name, each in _expect(dict, value, where).items()}
    if kind is float:
        number = float(_expect((int, float), value, where))
        if not math.isfinite(number):
            raise FormatError(f"{where}: expected a finite number, got {number}")
        return number
    return _expect(kind, value, where)


def _read_fields(kind: type, values: dict[str, Any], where: str) -> object:
    hints = typing.get_type_hints(kind)
    missing = [name for name in hints if name not in values]
    if missing:
        raise FormatError(f"{where}: expected {missing[0]!r}, got none; write the folder again")
    return kind(**{name: _read(hint, values[name], f"{where}.{name}") for name, hint in hints.items()})


def _expect(kind: Any, value: Any, where: str) -> Any:  # noqa: ANN401 - types are values here
    # JSON's true is a number to Python.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        wanted = kind.__name__ if isinstance(kind, type) else "number"
        raise FormatError(f"{where}: expected a {wanted}, got {type(value).__name__}; write the folder again")
    return value
