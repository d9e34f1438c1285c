"""Experiments: small declarative files that say what is varied, what is measured, and what a paper found."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeAlias

from calibrant.errors import InputError

Preset: TypeAlias = Literal["quick", "full"]
PRESETS: tuple[Preset, ...] = ("quick", "full")

_KEYS = {"title", "claim", "worker", "table", "tables", "paper", "shared", "quick", "full"}


@dataclass(frozen=True)
class PaperColumn:
    """A column with a paper's own figures, found by the labels of each line.

    Attributes:
        title: Heading of the column: which table, which setting.
        where: Fields of :class:`~calibrant.bench.papers.PaperFigure` that are fixed.
        match: From a label of our lines to the field of the paper that must be equal.
    """

    title: str
    where: Mapping[str, str]
    match: Mapping[str, str]


@dataclass(frozen=True)
class Layout:
    """How results become a table.

    Attributes:
        title: What the table shows; empty if the experiment has only one.
        rows: Labels that make a line.
        columns: Labels that make a group of columns.
        measures: What is shown in each group; a percentage where the measure is a share.
        only: Labels that a result must have to be shown, each one value or a list of them.
        papers: Columns with the papers' figures.
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    measures: tuple[str, ...]
    only: Mapping[str, Any]
    papers: tuple[PaperColumn, ...]


@dataclass(frozen=True)
class Job:
    """One independent piece of work: a point of the grid, and a seed.

    Attributes:
        experiment: Name of the experiment.
        preset: Which version of it.
        worker: What does it.
        key: The point of the grid.
        seed: Where its random numbers start.
        settings: What all points share.
    """

    experiment: str
    preset: Preset
    worker: str
    key: Mapping[str, Any]
    seed: int
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Experiment:
    """What a file says.

    Attributes:
        name: Its file's name.
        title: What it is about.
        claim: What the paper claims, in one sentence.
        worker: What does the jobs.
        layouts: How results become tables.
        presets: Seeds, grid and settings of each preset.
        shared: Settings of both presets.
        text: The file as it is, which is kept with the rows.
    """

    name: str
    title: str
    claim: str
    worker: str
    layouts: tuple[Layout, ...]
    presets: Mapping[str, Mapping[str, Any]]
    shared: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""

    def seeds(self, preset: Preset) -> int:
        """Return how many seeds a preset has."""
        return int(self._preset(preset).get("seeds", 3))

    def needs(self, preset: Preset) -> tuple[str, ...]:
        """Return the data sets that a preset needs and that are not bundled."""
        return tuple(self._preset(preset).get("needs", ()))

    def jobs(self, preset: Preset, *, seeds: int | None = None) -> Iterator[Job]:
        """Yield the points of the grid, seed by seed."""
        chosen = self._preset(preset)
        grid = chosen["grid"]
        settings = {**self.shared, **chosen.get("settings", {})}
        for seed in range(self.seeds(preset) if seeds is None else seeds):
            for values in product(*grid.values()):
                key = dict(zip(grid, values, strict=True))
                yield Job(self.name, preset, self.worker, key, seed, settings)

    def preset_named(self, text: str) -> Preset:
        """Return the preset of this name; one that the experiment does not have is refused."""
        for preset in PRESETS:
            if preset == text and preset in self.presets:
                return preset
        known = ", ".join(self.presets)
        raise InputError(f"--preset: expected one of {known} for {self.name}, got {text!r}")

    def _preset(self, preset: str) -> Mapping[str, Any]:
        return self.presets[self.preset_named(preset)]


def experiment_names() -> list[str]:
    """Return the names of the experiments that come with the package."""
    folder = files("calibrant.bench") / "experiments"
    return sorted(each.name.removesuffix(".toml") for each in folder.iterdir() if each.name.endswith(".toml"))


def load_experiment(name: str) -> Experiment:
    """Read an experiment by its name, or from a TOML file of the user's own.

    Example:
        >>> load_experiment("posthoc").worker
        'posthoc'
    """
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise InputError(f"NAME: expected an experiment file, got {name}, which does not exist")
        return parse_experiment(path.stem, path.read_text(encoding="utf-8"))
    if name not in experiment_names():
        near = get_close_matches(name, experiment_names(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(experiment_names())}"
        raise InputError(f"NAME: expected an experiment, got {name!r}; {hint}")
    source = files("calibrant.bench") / "experiments" / f"{name}.toml"
    return parse_experiment(name, source.read_text(encoding="utf-8"))


def parse_experiment(name: str, text: str) -> Experiment:
    """Make an experiment of the text of its file."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name}: expected TOML, got: {error}") from None
    for key in table.keys() - _KEYS:
        raise InputError(f"{name}: expected the keys {', '.join(sorted(_KEYS))}, got {key!r}")
    try:
        tables = (
            table["tables"] if "tables" in table else [{**table["table"], "paper": table.get("paper", ())}]
        )
        return Experiment(
            name=name,
            title=table["title"],
            claim=table.get("claim", ""),
            worker=table["worker"],
            layouts=tuple(_layout(each) for each in tables),
            presets={preset: table[preset] for preset in PRESETS if preset in table},
            shared=table.get("shared", {}),
            text=text,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{name}: expected an experiment, got one that lacks {error}") from None


def _layout(table: Mapping[str, Any]) -> Layout:
    papers = table.get("paper", ())
    return Layout(
        table.get("title", ""),
        tuple(table["rows"]),
        tuple(table.get("columns", ())),
        tuple(table["measures"]),
        table.get("only", {}),
        tuple(PaperColumn(each["title"], each["where"], each.get("match", {})) for each in papers),
    )
