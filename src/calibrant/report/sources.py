"""What a report is made of: predictions, and the command, files, seed and versions behind them."""

import hashlib
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO

from calibrant._version import __version__
from calibrant.data.predictions import Predictions
from calibrant.files import address_of, local_copy
from calibrant.outcomes import effective, weighted_like
from calibrant.report.page import Fact
from calibrant.show.numbers import rows_of_units

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Origin:
    """Where the numbers come from.

    Attributes:
        command: The command line, if there was one.
        files: The files of predictions by their role, where there were files.
        seed: Seed of folds, fits and resamples.
    """

    command: str | None = None
    files: Mapping[str, Path] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Sources:
    """Predictions that a report is made of.

    Attributes:
        title: What the page is about.
        validation: The set that methods were fitted on.
        test: The set that they are measured on; without it they are measured out of fold.
        shift: Labelled samples under distribution shift.
        foreign: Out-of-distribution samples; labels are not needed.
        names: What each set is called on the page, by role; by default the name of its file.
        origin: Command, files and seed.
    """

    title: str
    validation: Predictions | None = None
    test: Predictions | None = None
    shift: Predictions | None = None
    foreign: Predictions | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin)

    @property
    def by_role(self) -> dict[str, Predictions]:
        """The sets that were given, by role."""
        roles = ("validation", "test", "shift", "foreign")
        return {role: getattr(self, role) for role in roles if getattr(self, role) is not None}

    def name(self, role: str) -> str:
        """Return what a set is called on the page."""
        path = self.origin.files.get(role)
        return self.names.get(role, f"the {_title(role)} set" if path is None else path.name)

    def facts(self, data: Mapping[str, Predictions], choices: Mapping[str, str]) -> tuple[Fact, ...]:
        """Return how the page was made, line by line.

        Args:
            data: Predictions by their role or name.
            choices: Further lines, label to text.
        """
        origin = self.origin
        packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "scipy"))
        versions = f"Calibrant {__version__}, Python {platform.python_version()}, {packages}"
        return (
            *([] if origin.command is None else [Fact("Command", (origin.command,), is_code=True)]),
            Fact("Data", tuple(_describe(role, each, origin.files.get(role)) for role, each in data.items())),
            *(Fact(label, (text,)) for label, text in choices.items()),
            Fact("Seed", (str(origin.seed),)),
            Fact("Versions", (versions,)),
            Fact("Date", (datetime.now(UTC).strftime("%Y-%m-%d"),)),
        )


def count(predictions: Predictions) -> str:
    """Return the number of predictions and of classes, as text."""
    if predictions.n_rows < predictions.n:
        return f"{rows_of_units(predictions.n_rows, predictions.n_units, 'rows')}, {predictions.class_count}"
    classes = f", {predictions.class_count}" if predictions.class_count else ""
    w = predictions.weights
    weighted = "" if w is None else f", {weighted_like(float(effective(w).sum()))}"
    return f"{rows_of_units(predictions.n, predictions.n_units, 'predictions')}{classes}{weighted}"


def _describe(role: str, predictions: Predictions, path: Path | None) -> str:
    if path is None:
        return f"{_title(role)}: {count(predictions)}"
    named = role if role == path.name else f"{_title(role)}: {path.name}"
    return f"{named}, {count(predictions)}, SHA-256 {_digest(path)[:16]}…"


def _digest(source: Path) -> str:
    """Return the SHA-256 of a file, or of all files of a folder or pattern one after the other."""
    digest = hashlib.sha256()
    for file in _opened(source):
        for block in iter(partial(file.read, _BLOCK_BYTES), b""):
            digest.update(block)
    return digest.hexdigest()


def _opened(source: Path) -> Iterator[BinaryIO]:
    """Open each file of a source, on this machine or at an address, and close it before the next one."""
    if source.is_file():
        with source.open("rb") as file:
            yield file
        return
    from calibrant.boxes.folders import is_box_folder
    from calibrant.pixels.headers import holds_images
    from calibrant.streams.files import StreamFile, find_files, is_many

    if is_box_folder(source) or (source.is_dir() and holds_images(source)):
        found: Iterable[StreamFile] = [StreamFile(path.name, str(path)) for path in sorted(source.iterdir())]
    elif address_of(source) is None or is_many(str(source)):
        found = find_files(str(source))
    else:
        with local_copy(source) as copy:
            yield from _opened(copy)
        return
    for each in found:
        with each.content() as file:
            yield file


def _title(role: str) -> str:
    return "out-of-distribution" if role == "foreign" else role
