"""Things that can be asked for by name: measures, methods, losses, plots, experiments."""

from collections.abc import Mapping
from typing import TypeVar

from calibrant.errors import InputError, did_you_mean

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
