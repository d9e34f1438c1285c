"""What was measured after each epoch, as files: CSV and JSON lines, and TensorBoard's if it is there."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from calibrant.errors import FormatError, InputError
from calibrant.training.checkpoint import Checkpoint, write_bytes

METRICS, TABLE, DYNAMICS, TENSORBOARD = "metrics.jsonl", "metrics.csv", "dynamics.jsonl", "tensorboard"

Row = dict[str, Any]


class Records:
    """The rows of a run, one per epoch, kept in step with its checkpoints.

    Args:
        folder: Where the files are.
        stages: Names of the stages in their order.
        tensorboard: Whether TensorBoard's files are written too, if it is installed.
    """

    def __init__(self, folder: Path, stages: Sequence[str], *, tensorboard: bool = False) -> None:
        self.folder = folder
        self.stages = tuple(stages)
        self.metrics: list[Row] = []
        self.dynamics: list[Row] = []
        self._tensorboard = tensorboard
        self._board: Any = None

    def resume(self, checkpoint: Checkpoint) -> Self:
        """Take up the rows of a run until its checkpoint; later ones are measured again."""
        last = (self.stages.index(checkpoint.stage), checkpoint.epoch)
        for rows, name in ((self.metrics, METRICS), (self.dynamics, DYNAMICS)):
            path = self.folder / name
            known = read_rows(path) if path.exists() else []
            rows[:] = [row for row in known if (self.stages.index(row["stage"]), row["epoch"]) <= last]
        return self

    def add(self, row: Row, dynamics: Row | None) -> None:
        """Add an epoch and write all files anew, each whole."""
        self.metrics.append(row)
        write_rows(self.folder / METRICS, self.metrics)
        write_bytes(self.folder / TABLE, _csv(self.metrics).encode())
        if dynamics is not None:
            self.dynamics.append(dynamics)
            write_rows(self.folder / DYNAMICS, self.dynamics)
        if self._tensorboard:
            try:
                self._tell_board(row)
            except OSError as error:
                raise InputError(
                    f"{self.folder / TENSORBOARD}: expected room for TensorBoard's files, got: "
                    f"{error.strerror or type(error).__name__}; do without them by output.tensorboard=false"
                ) from error

    def _tell_board(self, row: Row) -> None:
        if self._board is None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                self._tensorboard = False
                return
            # Points of a killed run after this one are hidden.
            self._board = SummaryWriter(str(self.folder / TENSORBOARD), purge_step=len(self.metrics))
        for name, value in row.items():
            if isinstance(value, (int, float)) and name != "epoch":
                self._board.add_scalar(f"{row['stage']}/{name}", value, len(self.metrics))
        self._board.flush()

    def close(self) -> None:
        """Let go of TensorBoard's files."""
        if self._board is not None:
            self._board.close()


def read_rows(path: Path) -> list[Row]:
    """Read JSON lines."""
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: expected one JSON object per line, got: {error}") from error


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write JSON lines; what is not a finite number is written as null."""
    lines = [json.dumps(finite(row), allow_nan=False) for row in rows]
    write_bytes(path, "".join(f"{line}\n" for line in lines).encode())


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(finite(row) for row in rows)
    return text.getvalue()


def finite(value: Any) -> Any:  # noqa: ANN401  # any part of a row
    """Return a value as JSON can hold it: what is not a finite number becomes none."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return value
