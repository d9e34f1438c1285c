"""The navigation of the site; pages that do not exist yet are left out until they do."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from scripts.website.names import PACKAGES
from scripts.website.reference import api_address, commands

Item: TypeAlias = "str | Mapping[str, str | list[Item]]"

#: The pages of each room. A pattern such as "results/*" stands for all others below a folder.
ROOMS: Mapping[str, tuple[str, ...]] = {
    "Start here": ("index.md", "why-confidence-lies.md", "install.md", "comparison.md"),
    "Tutorials": (
        "tutorials/index.md",
        "tutorials/repair-a-network.md",
        "tutorials/scikit-learn.md",
        "tutorials/language-model.md",
        "tutorials/train-for-confidence.md",
        "tutorials/when-to-abstain.md",
        "tutorials/watch-a-model.md",
        "tutorials/compare-two-models.md",
        "tutorials/*",
    ),
    "How-to": (
        "howto/calibrate.md",
        "howto/report.md",
        "black_boxes.md",
        "howto/scores.md",
        "howto/rare-classes.md",
        "howto/serve.md",
        "training.md",
        "integrations.md",
        "decisions.md",
        "monitoring.md",
        "scale.md",
        "howto/*",
        "Examples",
    ),
    "Concepts": ("concepts.md", "measures.md", "posthoc.md", "losses.md"),
    "Reference": (
        "reference/index.md",
        "Commands",
        "Python",
        "formats.md",
        "reference/configuration.md",
        "Bundled",
    ),
    "Gallery": ("gallery.md",),
    "Results": (
        "results/index.md",
        "results/arena.md",
        "results/posthoc.md",
        "results/losses.md",
        "results/*",
    ),
    "Papers": ("papers.md", "benchmark.md", "configs/README.md"),
    "For contributors": (
        "contributing.md",
        "architecture.md",
        "add-a-method.md",
        "releases.md",
        "changelog.md",
        "security.md",
        "code-of-conduct.md",
    ),
}


def navigation(known: Iterable[str]) -> list[Item]:
    """Return MkDocs' list of pages.

    Args:
        known: Addresses of all pages, also of those that are made by the build.
    """
    pages = sorted(known)
    listed = {page for room in ROOMS.values() for page in room}
    groups: dict[str, Item] = {
        "Examples": {"Examples": ["examples/index.md", *sorted(p for p in pages if _is_example(p))]},
        "Bundled": {"Bundled predictions": "bundled.md"},
        "Commands": {"Commands": ["reference/commands/index.md", *map(_command, commands())]},
        "Python": {"Python": ["reference/api/index.md", *({name: api_address(name)} for name in PACKAGES)]},
    }

    def items(entry: str) -> list[Item]:
        if entry in groups:
            return [groups[entry]]
        folder = entry.removesuffix("*")
        if folder != entry:
            return [page for page in pages if page.startswith(folder) and page not in listed]
        return [entry] if entry in pages else []

    rooms = {title: [item for entry in entries for item in items(entry)] for title, entries in ROOMS.items()}
    return [{title: found} for title, found in rooms.items() if found]


def _is_example(page: str) -> bool:
    return page.startswith("examples/") and page != "examples/index.md"


def _command(name: str) -> Item:
    return {f"calibrant {name}": f"reference/commands/{name}.md"}
