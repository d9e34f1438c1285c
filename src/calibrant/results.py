"""What results have in common: they cannot be changed, can be pickled, printed, and written as JSON."""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

import numpy as np
from torch import Tensor

from calibrant.files import without_nan
from calibrant.show.numbers import plain
from calibrant.show.table import Table

if TYPE_CHECKING:
    import pandas as pd

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
    """A dataclass that is printed as a table and written as JSON: its fields but for some, and properties."""

    not_in_json: ClassVar[tuple[str, ...]] = ()
    also_in_json: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; undefined and infinite numbers are None."""
        values: dict[str, Any] = without_nan(_plain_fields(self))
        return values

    def to_json(self, *, indent: int | None = None) -> str:
        """Return one JSON object; undefined and infinite numbers are null."""
        return json.dumps(self.to_dict(), allow_nan=False, indent=indent)

    def to_table(self) -> Table:
        """Return the table that is printed: by default the result's sentence and its single numbers."""
        sentence = getattr(self, "sentence", None)
        numbers = {name: plain(value) for name, value in self.to_dict().items() if name != "sentence"}
        rows = [(name.replace("_", " "), cell) for name, cell in numbers.items() if cell.text]
        notes = () if sentence is None else (f"{sentence}.",)
        return Table.of(["", "value"], rows, title=type(self).__name__, notes=notes)

    def to_frame(self) -> "pd.DataFrame":
        """Return the table as a data frame of pandas, with numbers as they are."""
        return self.to_table().to_frame()

    def to_markdown(self) -> str:
        """Return the table as Markdown."""
        return self.to_table().to_markdown()

    def to_latex(self) -> str:
        """Return the table as LaTeX, with booktabs."""
        return self.to_table().to_latex()

    def __str__(self) -> str:
        """Return the table as plain text."""
        return str(self.to_table())

    def _repr_html_(self) -> str:
        """Return what notebooks show: the table."""
        return self.to_table()._repr_html_()


def _plain_fields(result: Any) -> dict[str, Any]:  # noqa: ANN401  # a dataclass
    names = [field.name for field in fields(result) if field.name not in getattr(result, "not_in_json", ())]
    names += getattr(result, "also_in_json", ())
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
