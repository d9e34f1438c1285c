"""Experiments: TOML files that declare a grid, the measures, tables with a paper's numbers, and figures."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeAlias

from calibrant.catalogue import Catalogue
from calibrant.errors import InputError
from calibrant.files import parse_toml, read_dataclass, read_text

Preset: TypeAlias = Literal["quick", "full"]
PRESETS: tuple[Preset, ...] = ("quick", "full")

_KEYS = {"title", "claim", "worker", "table", "tables", "paper", "figures", "shared", "quick", "full"}


@dataclass(frozen=True)
class PaperColumn:
    """A column with a paper's own figures, looked up by the labels of each line.

    Attributes:
        title: Heading of the column: the table and the setting.
        where: Fixed fields of :class:`~calibrant.papers.printed.PaperFigure`.
        match: Maps a label of our lines to the field of the paper that must be equal.
        names: Maps values of our labels to those of the paper where they differ: a variant that has the
            paper's settings takes the place of the one whose name the paper uses.
    """

    title: str
    where: Mapping[str, str]
    match: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    def theirs(self, value: object) -> object:
        """Return the paper's name of a label's value; None if another value has that name."""
        return self.names.get(str(value), None if value in self.names.values() else value)


@dataclass(frozen=True)
class TableLayout:
    """The layout of a table.

    Attributes:
        rows: Labels that identify a line.
        measures: Measures in each group; shares are shown in percent.
        title: Title of the table; empty if the experiment has only one.
        columns: Labels that identify a group of columns.
        only: Labels that a result must have, each with one value or a list of values; ``*`` in a value
            stands for any text.
        paper: Columns with the papers' figures.
    """

    rows: tuple[str, ...]
    measures: tuple[str, ...]
    title: str = ""
    columns: tuple[str, ...] = ()
    only: Mapping[str, Any] = field(default_factory=dict)
    paper: tuple[PaperColumn, ...] = ()


@dataclass(frozen=True)
class FigureLayout:
    """A figure of finished rows: one panel for each measure and each value of ``panel``.

    Attributes:
        name: Name of its file, without a suffix.
        redraws: The papers' figures that it redraws, such as ``"smart figure 5"``.
        kind: ``lines`` along a numeric label, or ``dots``, one row of them for each value of a label.
        x: That label.
        y: Measures.
        group: Labels that identify a line, or the dots of one colour.
        panel: Labels that identify a panel.
        only: Labels that a result must have, as in :class:`TableLayout`.
        log: Whether the numbers of ``x`` stand on a logarithmic axis.
        title: Text above the figure.
    """

    name: str
    redraws: tuple[str, ...]
    kind: Literal["lines", "dots"]
    x: str
    y: tuple[str, ...]
    group: tuple[str, ...] = ()
    panel: tuple[str, ...] = ()
    only: Mapping[str, Any] = field(default_factory=dict)
    log: bool = False
    title: str = ""


@dataclass(frozen=True)
class Job:
    """One independent job: a point of the grid and a seed.

    Attributes:
        experiment: Name of the experiment.
        preset: Name of the preset.
        worker: Name of the worker that runs it.
        key: The point of the grid.
        seed: Its random seed.
        settings: Settings that all points share.
    """

    experiment: str
    preset: Preset
    worker: str
    key: Mapping[str, Any]
    seed: int
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Experiment:
    """An experiment as its file defines it.

    Attributes:
        name: Name of its file.
        title: Its subject.
        claim: The claim of the paper, in one sentence.
        worker: Name of the worker that runs the jobs.
        layouts: Layouts of the tables.
        presets: Seeds, grid and settings of each preset.
        shared: Settings of both presets.
        text: Text of the file, which is saved with the rows.
        figures: Layouts of the figures.
    """

    name: str
    title: str
    claim: str
    worker: str
    layouts: tuple[TableLayout, ...]
    presets: Mapping[str, Mapping[str, Any]]
    shared: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    figures: tuple[FigureLayout, ...] = ()

    def seeds(self, preset: Preset) -> int:
        """Return the number of seeds of a preset."""
        return int(self._preset(preset).get("seeds", 3))

    def needs(self, preset: Preset) -> tuple[str, ...]:
        """Return the data sets that a preset needs beyond the bundled ones."""
        return tuple(self._preset(preset).get("needs", ()))

    def jobs(
        self, preset: Preset, *, seeds: int | None = None, only: Mapping[str, Sequence[str]] | None = None
    ) -> Iterator[Job]:
        """Yield the points of the grid, or of several grids one after another, seed by seed.

        Args:
            preset: Name of the preset.
            seeds: Number of seeds; by default that of the preset, or the grid's own ``seeds`` if fewer.
            only: For each name, and for ``seed``, the values that a job must have; ``*`` in a value stands
                for any text. A loss of your own, ``module:Class(option=1)``, becomes a further method of an
                experiment that trains.
        """
        chosen = self._preset(preset)
        grids = chosen["grid"] if isinstance(chosen["grid"], list) else [chosen["grid"]]
        settings = {**self.shared, **chosen.get("settings", {})}
        for seed in range(self.seeds(preset) if seeds is None else seeds):
            for grid in grids:
                if seeds is None and seed >= grid.get("seeds", seed + 1):
                    continue
                axes = self._with_own_losses(
                    {name: each for name, each in grid.items() if name != "seeds"}, only or {}
                )
                for values in product(*axes.values()):
                    key = dict(zip(axes, values, strict=True))
                    if is_wanted({**key, "seed": seed}, only or {}):
                        yield Job(self.name, preset, self.worker, key, seed, settings)

    def _with_own_losses(
        self, grid: Mapping[str, Sequence[Any]], only: Mapping[str, Sequence[str]]
    ) -> Mapping[str, Sequence[Any]]:
        """Return the grid with the losses that are code of the user's own as further methods."""
        if self.worker != "training" or "method" not in grid:
            return grid
        own = [each for each in only.get("method", ()) if ":" in each and each not in grid["method"]]
        return {**grid, "method": [*grid["method"], *own]}

    def preset_named(self, text: str) -> Preset:
        """Return the preset of this name; refuse one that the experiment does not have."""
        for preset in PRESETS:
            if preset == text and preset in self.presets:
                return preset
        known = ", ".join(self.presets)
        raise InputError(f"preset: expected one of {known} for {self.name}, got {text!r}")

    def _preset(self, preset: str) -> Mapping[str, Any]:
        return self.presets[self.preset_named(preset)]


def is_wanted(key: Mapping[str, Any], only: Mapping[str, Sequence[str]]) -> bool:
    """Whether a point of the grid has for each name one of the values; ``*`` stands for any text."""
    return all(
        name in key
        and any(str(key[name]) == pattern or fnmatchcase(str(key[name]), pattern) for pattern in patterns)
        for name, patterns in only.items()
    )


def experiment_names() -> list[str]:
    """Return the names of the experiments that come with the package."""
    folder = files("calibrant.papers") / "experiments"
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
        return parse_experiment(path.stem, read_experiment_text(path))
    Catalogue("NAME", "an experiment", dict.fromkeys(experiment_names())).named(name)
    source = files("calibrant.papers") / "experiments" / f"{name}.toml"
    return parse_experiment(name, source.read_text(encoding="utf-8"))


def read_experiment_text(path: Path) -> str:
    """Return the text of a file that should be an experiment."""
    try:
        return read_text(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: expected an experiment, got a file that is no text ({error})") from None


def parse_experiment(name: str, text: str) -> Experiment:
    """Parse the text of an experiment file."""
    try:
        table = parse_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name}: expected TOML, got: {error}") from None
    for key in table.keys() - _KEYS:
        raise InputError(f"{name}: expected the keys {', '.join(sorted(_KEYS))}, got {key!r}")
    try:
        tables = table.get("tables") or [{**table["table"], "paper": table.get("paper", [])}]
        return Experiment(
            name=name,
            title=table["title"],
            claim=table.get("claim", ""),
            worker=table["worker"],
            layouts=tuple(
                read_dataclass(TableLayout, each, f"{name}.table", error=InputError, ignore_unknown=True)
                for each in tables
            ),
            presets={preset: table[preset] for preset in PRESETS if preset in table},
            shared=table.get("shared", {}),
            text=text,
            figures=tuple(
                read_dataclass(FigureLayout, each, f"{name}.figures", error=InputError)
                for each in table.get("figures", [])
            ),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{name}: expected an experiment, got one that lacks {error}") from None
