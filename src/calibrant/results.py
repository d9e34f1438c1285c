"""What results have in common: they cannot be changed, can be pickled, and can be written as JSON."""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, NoReturn, TypeVar

import numpy as np
from torch import Tensor

from calibrant.files import without_nan
from calibrant.html import card, notes, table

K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """A dict that cannot be changed; unlike a mapping proxy it can be pickled and written as JSON.

    Example:
        >>> FrozenDict({"ece": 0.1})["ece"]
        0.1
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)


def _refuse(*_: object, **__: object) -> NoReturn:
    raise TypeError("a result cannot be changed; make a copy with dict(...)")


for _name in ("__setitem__", "__delitem__", "__ior__", "clear", "pop", "popitem", "setdefault", "update"):
    setattr(FrozenDict, _name, _refuse)


class Result:
    """A dataclass whose values can be written as JSON, but for the fields that are left out of it."""

    not_in_json: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; undefined and infinite numbers are None."""
        values: dict[str, Any] = without_nan(_plain_fields(self))
        return values

    def to_json(self, *, indent: int | None = None) -> str:
        """Return one JSON object; undefined and infinite numbers are null."""
        return json.dumps(self.to_dict(), allow_nan=False, indent=indent)

    def _repr_html_(self) -> str | None:
        """Return what notebooks show: the sentence of the result and its numbers, None without a sentence."""
        sentence = getattr(self, "sentence", None)
        if sentence is None:
            return None
        numbers = ((name, _number(value)) for name, value in self.to_dict().items() if name != "sentence")
        rows = [(name.replace("_", " "), number) for name, number in numbers if number]
        return card(type(self).__name__, notes([sentence]), table(("", "value"), rows))


def _number(value: object) -> str:
    """Return a number, a truth or a short text for a table; nothing for other values."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return value if isinstance(value, str) else ""


def _plain_fields(result: Any) -> dict[str, Any]:  # noqa: ANN401  # a dataclass
    names = (field.name for field in fields(result) if field.name not in getattr(result, "not_in_json", ()))
    return {name: _plain(getattr(result, name)) for name in names}


def _plain(value: Any) -> Any:  # noqa: ANN401  # anything that a result holds
    if isinstance(value, Result):
        return value.to_dict()
    if is_dataclass(value):
        return _plain_fields(value)
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value
