"""The public names of Calibrant, read from its source without importing it."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import griffe
from scripts.website.docstrings import MarkdownDocstrings

ROOT = Path(__file__).resolve().parents[2]

# Packages for users, in the order of the reference. Modules without __all__ are those of other libraries.
PACKAGES = (
    "calibrant",
    "calibrant.data",
    "calibrant.signals",
    "calibrant.evaluation",
    "calibrant.metrics",
    "calibrant.inference",
    "calibrant.posthoc",
    "calibrant.losses",
    "calibrant.decisions",
    "calibrant.boxes",
    "calibrant.plots",
    "calibrant.report",
    "calibrant.streams",
    "calibrant.monitoring",
    "calibrant.progress",
    "calibrant.training",
    "calibrant.training.config",
    "calibrant.training.datasets",
    "calibrant.training.models",
    "calibrant.integrations.lightning",
    "calibrant.integrations.onnx",
    "calibrant.integrations.sklearn",
    "calibrant.integrations.torchmetrics",
    "calibrant.integrations.transformers",
)


@dataclass(frozen=True)
class PublicName:
    """A public name: where users import it from, where it is defined, and its docstring."""

    package: str
    name: str
    defined: str
    docstring: str

    @property
    def path(self) -> str:
        """The full name, which is also its anchor on the site."""
        return f"{self.package}.{self.name}"

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return self.docstring.partition("\n")[0]


@cache
def source() -> griffe.Object:
    """Return the package as Griffe reads it."""
    extensions = griffe.load_extensions(MarkdownDocstrings())
    found = griffe.load(
        "calibrant", search_paths=[str(ROOT / "src")], resolve_aliases=True, extensions=extensions
    )
    assert isinstance(found, griffe.Object)
    return found


def lookup(path: str) -> griffe.Object | griffe.Alias:
    """Return the object of a full name."""
    if path == "calibrant":
        return source()
    found = source()[path.removeprefix("calibrant.")]
    target = found.final_target if isinstance(found, griffe.Alias) else found
    name = path.rpartition(".")[2]
    # A function may have the name of the module that defines it, and that module is what Griffe finds.
    return target[name] if target.is_module and name in target.members else target


@cache
def public_names(package: str) -> list[PublicName]:
    """Return the public names of one package, sorted."""
    module = lookup(package)
    listed = module.exports
    names = listed if listed is not None else [name for name in module.members if _is_own(module, name)]
    return [_describe(package, str(name)) for name in sorted(map(str, names), key=str.lower)]


def _is_own(module: griffe.Object | griffe.Alias, name: str) -> bool:
    member = module.members[name]
    return not name.startswith("_") and not member.is_alias and (member.is_class or member.is_function)


def _describe(package: str, name: str) -> PublicName:
    found = lookup(f"{package}.{name}")
    text = found.docstring.value if found.docstring else ""
    return PublicName(package, name, found.path, text)


@cache
def homes() -> dict[str, str]:
    """Return the public path under which each object is described, by the path where it is defined."""
    found: dict[str, str] = {}
    # What the top level offers is described where it belongs, and only errors and the version belong there.
    for package in (*PACKAGES[1:], PACKAGES[0]):
        for each in public_names(package):
            found.setdefault(each.defined, each.path)
    return found
