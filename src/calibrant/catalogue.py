"""Things that can be asked for by name: measures, methods, losses, plots, experiments."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from calibrant.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from _collections_abc import dict_items, dict_keys, dict_values

E = TypeVar("E")


class Catalogue(dict[str, E]):
    """Entries by name, in the order in which they are listed.

    Args:
        argument: The argument that names an entry, for error messages.
        expected: What such a name is, for error messages.
        entries: The entries.

    Example:
        >>> fruit = Catalogue("fruit", "the name of a fruit", {"apple": 1, "pear": 2})
        >>> fruit["pear"], list(fruit)
        (2, ['apple', 'pear'])
        >>> fruit.named("aple")
        Traceback (most recent call last):
            ...
        calibrant.errors.InputError: fruit: expected the name of a fruit, got 'aple'; did you mean 'apple'?
    """

    def __init__(self, argument: str, expected: str, entries: Mapping[str, E] | None = None) -> None:
        super().__init__(entries or {})
        self._argument, self._expected = argument, expected

    def named(self, name: str) -> E:
        """Return an entry, or refuse an unknown name with the nearest one."""
        if name not in self:
            raise self.refusal(name)
        return self[name]

    def refusal(self, name: object, *, expected: str | None = None) -> InputError:
        """Return the error to raise for an unknown name."""
        hint = did_you_mean(str(name), self) or f"; known are {', '.join(self)}"
        return InputError(f"{self._argument}: expected {expected or self._expected}, got {name!r}{hint}")


class LateCatalogue(Catalogue[E]):
    """A catalogue whose entries another module adds: it is imported when the catalogue is first read.

    Args:
        argument: The argument that names an entry, for error messages.
        expected: What such a name is, for error messages.
        home: The module that adds the entries.
    """

    def __init__(self, argument: str, expected: str, *, home: str) -> None:
        super().__init__(argument, expected)
        self._home = home

    def __getitem__(self, name: str) -> E:
        import_module(self._home)
        return super().__getitem__(name)

    def __setitem__(self, name: str, entry: E) -> None:
        # An entry of somebody else comes after those of the home, and may take the place of one.
        import_module(self._home)
        super().__setitem__(name, entry)

    def __contains__(self, name: object) -> bool:
        import_module(self._home)
        return super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        import_module(self._home)
        return super().__iter__()

    def __len__(self) -> int:
        import_module(self._home)
        return super().__len__()

    def __reversed__(self) -> Iterator[str]:
        import_module(self._home)
        return super().__reversed__()

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401  # as of a dict
        """Return an entry, or the default for an unknown name."""
        import_module(self._home)
        return super().get(name, default)

    def keys(self) -> "dict_keys[str, E]":
        """Return the names."""
        import_module(self._home)
        return super().keys()

    def values(self) -> "dict_values[str, E]":
        """Return the entries."""
        import_module(self._home)
        return super().values()

    def items(self) -> "dict_items[str, E]":
        """Return the names with their entries."""
        import_module(self._home)
        return super().items()
