"""Finished rows of an experiment: one JSON line per job, so that a killed run loses no finished job."""

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from calibrant.errors import FormatError, InputError
from calibrant.files import (
    make_folder,
    parse_json,
    read_dataclass,
    read_json,
    read_text,
    reading,
    without_nan,
    write_file,
    writing,
)
from calibrant.papers.draws import PackedDraws
from calibrant.papers.experiment import Experiment, Job, parse_experiment, read_experiment_text

ROWS = "rows.jsonl"
LEFT_OUT = "left_out.json"


@dataclass(frozen=True)
class Record:
    """The numbers of a job for one combination of labels.

    Attributes:
        labels: Labels beyond the key of the job, such as a post-hoc method or a shifted set.
        values: The numbers by name.
        draws: Numbers on draws of the test samples, by name, packed by :mod:`calibrant.papers.draws`.
    """

    labels: Mapping[str, Any]
    values: Mapping[str, float | None]
    draws: Mapping[str, PackedDraws] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A finished job.

    Attributes:
        experiment: Name of the experiment.
        preset: Name of the preset.
        key: The point of the grid.
        seed: Its seed.
        records: The results.
        seconds: Duration; the only part that differs between two runs with the same seeds.
        versions: Versions of the packages that computed it.
        inputs: Digest of its settings and of the files that it read; empty in rows of earlier versions.
    """

    experiment: str
    preset: str
    key: Mapping[str, Any]
    seed: int
    records: tuple[Record, ...]
    seconds: float
    versions: Mapping[str, str]
    inputs: str = ""


def identity(job: Job | Row, *, seed: int | None = None) -> str:
    """Return a string that is unique to a job and its row, or to the same job with another seed."""
    key = dict(sorted(job.key.items()))
    return json.dumps([job.experiment, job.preset, key, job.seed if seed is None else seed])


def finished_rows(folder: Path) -> list[Row]:
    """Read the finished rows of a folder; there may be none yet.

    A job that was run again, because its settings or files had changed, has its latest row.
    """
    path = folder / ROWS
    rows = read_rows(path) if path.exists() else []
    return list({identity(row): row for row in rows}.values())


def read_rows(path: Path) -> list[Row]:
    """Read all rows of a file, of one or of several people; skip a last line that a kill has cut off."""
    rows = []
    with reading(str(path), "finished rows"):
        *lines, last = read_text(path).split("\n")
    for number, line in enumerate(lines, 1):
        try:
            rows += [_row(line)] if line else []
        except ValueError as error:
            raise FormatError(
                f"{path}: expected finished rows, got another line {number} ({error})"
            ) from None
    with suppress(ValueError):  # no line end: the writer was killed
        rows.append(_row(last))
    return rows


def _row(line: str) -> Row:
    return read_dataclass(Row, without_nan(parse_json(line)))


def save_experiment(experiment: Experiment, folder: Path) -> None:
    """Write the file of the experiment beside its rows; refuse a folder of another experiment."""
    path = folder / f"{experiment.name}.toml"
    others = [each for each in folder.glob("*.toml") if each != path]
    if others:
        raise InputError(
            f"out: expected a folder for {experiment.name}, got {folder}, which holds {others[0].stem}; "
            "name another one"
        )
    write_file(path, experiment.text)


def saved_experiment(folder: Path) -> Experiment:
    """Read the experiment of a folder."""
    files = list(folder.glob("*.toml")) if folder.is_dir() else []
    if len(files) != 1:
        raise InputError(f"DIR: expected a folder that calibrant bench run wrote, got {folder}")
    return parse_experiment(files[0].stem, read_experiment_text(files[0]))


def save_left_out(reasons: Mapping[str, str], folder: Path) -> None:
    """Write why files of the data were left out, by their names; write nothing if none was."""
    if reasons or (folder / LEFT_OUT).exists():
        write_file(folder / LEFT_OUT, json.dumps(dict(reasons), indent=1) + "\n")


def files_left_out(folder: Path) -> dict[str, str]:
    """Read why files of the data were left out, by their names."""
    path = folder / LEFT_OUT
    return read_json(path, "reasons by name of file", dict[str, str]) if path.exists() else {}


class RowFile:
    """Appends rows to the file of a folder, each in one write."""

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self.path = folder / ROWS
        if self.path.exists():
            whole = self.path.read_bytes()
            kept = whole[: whole.rfind(b"\n") + 1]
            if len(kept) < len(whole):
                os.truncate(self.path, len(kept))

    def add(self, row: Row) -> None:
        """Write a row to the disk, as a line of JSON."""
        line = json.dumps(without_nan(asdict(row) | {"seconds": round(row.seconds, 3)}), allow_nan=False)
        data = line.encode() + b"\n"
        # A line that is cut off by a full disk is not read, and removed by the next run.
        with writing(self.path, f"room for {len(data):,} bytes"), self.path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def flat(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return one flat mapping per record: labels, seed, and the numbers and draws under their names."""
    return [
        {
            "seed": row.seed,
            **row.key,
            **record.labels,
            "values": dict(record.values),
            "draws": dict(record.draws),
        }
        for row in rows
        for record in row.records
    ]
