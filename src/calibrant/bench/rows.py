"""Finished rows of an experiment: one JSON line each, so that a killed run loses nothing that was done."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant.bench.experiment import Experiment, Job, parse_experiment
from calibrant.errors import FormatError, InputError
from calibrant.files import atomic_path

ROWS = "rows.jsonl"


@dataclass(frozen=True)
class Record:
    """Numbers that a job found for one combination of labels.

    Attributes:
        labels: What the numbers belong to, beyond the key of the job: a post-hoc method, a shifted set.
        values: The numbers by name.
    """

    labels: Mapping[str, Any]
    values: Mapping[str, float | None]


@dataclass(frozen=True)
class Row:
    """A finished job.

    Attributes:
        experiment: Name of the experiment.
        preset: Which version of it.
        key: The point of the grid.
        seed: Its seed.
        records: What was found.
        seconds: How long it took; the only part that differs between two runs with the same seeds.
        versions: Of the packages that made it.
    """

    experiment: str
    preset: str
    key: Mapping[str, Any]
    seed: int
    records: tuple[Record, ...]
    seconds: float
    versions: Mapping[str, str]

    @property
    def identity(self) -> str:
        """What tells this row from others."""
        return self.of_seed(self.seed)

    def of_seed(self, seed: int) -> str:
        """What the same job with another seed is known by."""
        return identity(self.experiment, self.preset, self.key, seed)

    def as_line(self) -> str:
        """Return the row as a line of JSON."""
        return json.dumps(
            {
                "experiment": self.experiment,
                "preset": self.preset,
                "key": dict(self.key),
                "seed": self.seed,
                "records": [{"labels": dict(r.labels), "values": dict(r.values)} for r in self.records],
                "seconds": round(self.seconds, 3),
                "versions": dict(self.versions),
            }
        )


def identity(experiment: str, preset: str, key: Mapping[str, Any], seed: int) -> str:
    """Return what a job is known by."""
    return json.dumps([experiment, preset, dict(sorted(key.items())), seed])


def identity_of(job: Job) -> str:
    """Return what a job is known by."""
    return identity(job.experiment, job.preset, job.key, job.seed)


def read_rows(folder: Path) -> list[Row]:
    """Read the finished rows of a folder; a last line that was cut off by a kill is passed over."""
    path = folder / ROWS
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            rows.append(_row(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):  # no line end: the writer was killed
                continue
            raise FormatError(
                f"{path}: expected finished rows, got another line {number} ({error})"
            ) from None
    return rows


def save_experiment(experiment: Experiment, folder: Path) -> None:
    """Keep the experiment's own file with its rows; a folder holds the rows of one experiment."""
    path = folder / f"{experiment.name}.toml"
    others = [each for each in folder.glob("*.toml") if each != path]
    if others:
        raise InputError(
            f"--out: expected a folder for {experiment.name}, got {folder}, which holds {others[0].stem}; "
            "name another one"
        )
    with atomic_path(path) as temporary:
        temporary.write_text(experiment.text, encoding="utf-8")


def saved_experiment(folder: Path) -> Experiment:
    """Read the experiment of a folder."""
    files = list(folder.glob("*.toml")) if folder.is_dir() else []
    if len(files) != 1:
        raise InputError(f"DIR: expected a folder that calibrant bench run wrote, got {folder}")
    return parse_experiment(files[0].stem, files[0].read_text(encoding="utf-8"))


class RowFile:
    """Appends rows to the file of a folder, each in one write."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / ROWS
        if self.path.exists():
            whole = self.path.read_bytes()
            kept = whole[: whole.rfind(b"\n") + 1]
            if len(kept) < len(whole):
                os.truncate(self.path, len(kept))

    def add(self, row: Row) -> None:
        """Write a row to the disk."""
        with self.path.open("ab") as file:
            file.write(row.as_line().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _row(table: Mapping[str, Any]) -> Row:
    return Row(
        table["experiment"],
        table["preset"],
        table["key"],
        table["seed"],
        tuple(Record(each["labels"], each["values"]) for each in table["records"]),
        table["seconds"],
        table["versions"],
    )


def flat(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return one flat mapping per record: labels, seed, and the numbers under their names."""
    return [
        {"seed": row.seed, **row.key, **record.labels, "values": dict(record.values)}
        for row in rows
        for record in row.records
    ]
