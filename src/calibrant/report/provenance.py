"""How a report was made: command, versions, seeds and data."""

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from calibrant._version import __version__
from calibrant.data.predictions import Predictions
from calibrant.report.page import Fact


@dataclass(frozen=True)
class Origin:
    """Where the numbers come from.

    Attributes:
        command: The line that was typed, or none.
        files: The files of predictions by their role, where there were files.
        seed: Of folds, fits and resamples.
    """

    command: str | None = None
    files: Mapping[str, Path] = field(default_factory=dict)
    seed: int = 0


def facts(origin: Origin, data: Mapping[str, Predictions], choices: Mapping[str, str]) -> tuple[Fact, ...]:
    """Lay out how a page was made.

    Args:
        origin: Command, files and seed.
        data: Predictions by their role.
        choices: Further lines, label to text.
    """
    told = [] if origin.command is None else [Fact("Command", (origin.command,), is_code=True)]
    told.append(
        Fact("Data", tuple(_describe(role, each, origin.files.get(role)) for role, each in data.items()))
    )
    told += [Fact(label, (text,)) for label, text in choices.items()]
    told.append(Fact("Seed", (str(origin.seed),)))
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "scipy", "scikit-learn"))
    told.append(
        Fact("Versions", (f"Calibrant {__version__}, Python {platform.python_version()}, {packages}",))
    )
    told.append(Fact("Date", (datetime.now(UTC).strftime("%Y-%m-%d"),)))
    return tuple(told)


def _describe(role: str, predictions: Predictions, path: Path | None) -> str:
    classes = "" if predictions.k is None else f", {predictions.k:,} classes"
    if path is None:
        return f"{role}: {predictions.n:,} predictions{classes}"
    named = role if role == path.name else f"{role}: {path.name}"
    return f"{named}, {predictions.n:,} predictions{classes}, SHA-256 {_digest(path)}…"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
