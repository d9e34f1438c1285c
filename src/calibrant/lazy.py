"""Packages that import their public names when they are first used, so that a program loads what it uses."""

import dis
import sys
from importlib import import_module
from itertools import pairwise
from types import ModuleType
from typing import Any

from calibrant.errors import MissingPackageError


def import_when_used(package: str) -> None:
    """Make a package import its public names when they are first used.

    The names, and the modules that define them, are those that the package imports below ``if
    TYPE_CHECKING``, where type checkers and editors find them, too.
    """
    module = sys.modules[package]
    homes: dict[str, str] = {}
    # Read from the code and not from its text, which an application may be shipped without.
    loader: Any = module.__spec__ and module.__spec__.loader
    for step, following in pairwise(dis.get_instructions(loader.get_code(package))):
        if step.opname == "IMPORT_NAME":
            home = step.argval
        elif step.opname == "IMPORT_FROM" and not following.argval.startswith("_"):
            homes[following.argval] = home
    vars(module)["_homes"] = homes
    module.__class__ = _Package


def import_all(package: str) -> None:
    """Import all public names of a package, so that those that a file names are known."""
    module = import_module(package)
    for name in dir(module):
        getattr(module, name)


class _Package(ModuleType):
    _homes: dict[str, str]
    __all__: list[str]

    def __getattr__(self, name: str) -> object:
        home = self._homes.get(name)
        if home is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        try:
            found = import_module(f"{home}.{name}" if home == self.__name__ else home)
        except MissingPackageError as error:  # so that help() and hasattr() work without the extra
            raise AttributeError(str(error)) from error
        found = found if home == self.__name__ else getattr(found, name)
        setattr(self, name, found)
        return found

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute, but let no module hide the function that it is named after."""
        if not (isinstance(value, ModuleType) and name in self.__all__):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self._homes, *(name for name in vars(self) if name.startswith("__"))})
