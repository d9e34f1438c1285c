"""The measures of all epochs as files: CSV, JSON lines and, if it is installed, TensorBoard's."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

from calibrant.errors import FormatError, InputError
from calibrant.files import (
    Count,
    parse_json,
    read_dataclass,
    read_text,
    read_value,
    without_nan,
    write_file,
)
from calibrant.training.checkpoint import Checkpoint, StageName

METRICS, TABLE, DYNAMICS, TENSORBOARD = "metrics.jsonl", "metrics.csv", "dynamics.jsonl", "tensorboard"

EpochRow: TypeAlias = dict[str, Any]


class Records:
    """The rows of a run, one per epoch.

    Args:
        folder: The folder of the run.
        stages: Names of the stages in their order.
        tensorboard: Whether to write TensorBoard's files too, if it is installed.
    """

    def __init__(self, folder: Path, stages: Sequence[str], *, tensorboard: bool = False) -> None:
        self.folder = folder
        self.stages = tuple(stages)
        self.metrics: list[EpochRow] = []
        self.dynamics: list[EpochRow] = []
        self._tensorboard = tensorboard
        self._board: Any = None

    def resume(self, checkpoint: Checkpoint) -> Self:
        """Read the rows up to a checkpoint; later epochs are measured again."""
        last = (self.stages.index(checkpoint.stage), checkpoint.epoch)
        for rows, name in ((self.metrics, METRICS), (self.dynamics, DYNAMICS)):
            path = self.folder / name
            stored = read_rows(path) if path.exists() else []
            rows[:] = [row for row in stored if (self.stages.index(row["stage"]), row["epoch"]) <= last]
        return self

    def add(self, row: EpochRow, dynamics: EpochRow | None) -> None:
        """Add an epoch and replace all files, each as a whole."""
        self.metrics.append(row)
        write_json_lines(self.folder / METRICS, self.metrics)
        write_file(self.folder / TABLE, _csv(self.metrics))
        if dynamics is not None:
            self.dynamics.append(dynamics)
            write_json_lines(self.folder / DYNAMICS, self.dynamics)
        if self._tensorboard:
            try:
                self._add_to_board(row)
            except OSError as error:
                raise InputError(
                    f"{self.folder / TENSORBOARD}: expected room for TensorBoard's files, got an error: "
                    f"{error.strerror or type(error).__name__}; set output.tensorboard=false to omit them"
                ) from error

    def _add_to_board(self, row: EpochRow) -> None:
        if self._board is None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                self._tensorboard = False
                return
            # TensorBoard hides the later points of a killed run.
            self._board = SummaryWriter(str(self.folder / TENSORBOARD), purge_step=len(self.metrics))
        for name, value in row.items():
            if isinstance(value, (int, float)) and name != "epoch":
                self._board.add_scalar(f"{row['stage']}/{name}", value, len(self.metrics))
        self._board.flush()

    def close(self) -> None:
        """Close TensorBoard's files."""
        if self._board is not None:
            self._board.close()


@dataclass(frozen=True)
class _Place:
    """What every row has."""

    stage: StageName
    epoch: Count


def read_rows(path: Path) -> list[EpochRow]:
    """Read the rows of epochs from JSON lines; those of ``METRICS`` hold numbers and texts only."""
    rows: list[EpochRow] = []
    try:
        for number, line in enumerate(read_text(path).splitlines(), 1):
            row = parse_json(line)
            read_dataclass(_Place, row, f"line {number}", ignore_unknown=True)
            if path.name == METRICS:
                read_value(dict[str, int | float | str | None], row, f"line {number}")
            rows.append(row)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: expected one JSON object per line, got: {error}") from error
    return rows


def write_json_lines(path: Path, rows: Sequence[EpochRow]) -> None:
    """Write JSON lines; NaN and infinity become null."""
    lines = [json.dumps(without_nan(row), allow_nan=False) for row in rows]
    write_file(path, "".join(f"{line}\n" for line in lines))


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(without_nan(row) for row in rows)
    return text.getvalue()
