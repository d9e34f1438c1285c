"""Print the versions of what Calibrant depends on, as constraints for pip.

    python scripts/versions.py lock      # those installed here: what the checks ran with
    python scripts/versions.py lowest    # the lower bounds in pyproject.toml

`make lock` writes the first for the Python of .venv; `make lowest` installs the second.
"""

import argparse
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

PROJECT = Path(__file__).parents[1] / "pyproject.toml"

# In neither list: constraints.txt pins it for every install.
PINNED = "torch"
# The extras for users; the tools of dev have lower bounds too, which nobody has to meet.
EXTRAS = ("tables", "plots", "report", "sklearn", "train", "scale", "export", "mlflow", "bench")


def main() -> None:
    """Print the list that the command line names."""
    parser = argparse.ArgumentParser(description="Print versions as constraints for pip.")
    parser.add_argument("kind", choices=("lock", "lowest"))
    kind = parser.parse_args().kind
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    if kind == "lock":
        print("# Versions that the checks ran with on Python {}.{}.".format(*sys.version_info))
        print("# Made by `make lock`; torch is pinned in constraints.txt.")
    print(*(locked(project) if kind == "lock" else lowest(project)), sep="\n")


def locked(project: dict[str, Any]) -> list[str]:
    """Return ``name==version`` of all that a project needs with all its extras, as installed here."""
    versions: dict[str, str] = {}
    queue = list(needed(ranges(project, project["optional-dependencies"])))
    seen = {(project["name"], extra) for extra in ("", *project["optional-dependencies"])}
    while queue:
        name, extra = queue.pop()
        if (name, extra) not in seen:
            seen.add((name, extra))
            # A local version, such as 2.13.0+cpu, is that of one build; constraints name the public one.
            versions[name] = Version(distribution(name).version).public
            queue.extend(needed(distribution(name).requires or [], extra))
    return [f"{name}=={version}" for name, version in sorted(versions.items()) if name != PINNED]


def needed(lines: Iterable[str], extra: str = "") -> Iterator[tuple[str, str]]:
    """Yield each package, once with each extra, that lines of requirements with an extra ask for here."""
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            for asked in ("", *sorted(requirement.extras)):
                yield canonicalize_name(requirement.name), asked


def lowest(project: dict[str, Any]) -> list[str]:
    """Return ``name==version`` with the lower bound of each range of a project and its extras for users."""
    pins = []
    for requirement in map(Requirement, ranges(project, EXTRAS)):
        if requirement.name == project["name"]:  # one extra that contains others
            continue
        (bound,) = (part.version for part in requirement.specifier if part.operator == ">=")
        if requirement.name != PINNED:
            pins.append(f"{requirement.name}=={bound}")
    return sorted(pins)


def ranges(project: dict[str, Any], extras: Iterable[str]) -> list[str]:
    """Return the requirements of a project and some of its extras."""
    return [*project["dependencies"], *(line for e in extras for line in project["optional-dependencies"][e])]


if __name__ == "__main__":
    main()
