"""Monitoring of a classifier: windows and evidence of rows as they arrive, and a state to continue from."""

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from calibrant.data.predictions import Predictions
from calibrant.errors import FormatError, InputError
from calibrant.files import atomic_path, read_dataclass
from calibrant.inputs import Floats, check_count
from calibrant.monitoring.alarm import Alarm, evidence, strongest_changes, where
from calibrant.monitoring.drift import DriftMonitor
from calibrant.monitoring.reference import DriftReference
from calibrant.monitoring.windows import COLUMNS, Window, columns_of, digest, measure_window

_FORMAT = "calibrant-monitor"
_VERSION = 2


@dataclass(frozen=True)
class SeenFile:
    """How many rows of a file of a stream were read.

    Attributes:
        stream: Hash that identifies its stream.
        rows: Number of rows that were read, from the first one on.
        total: Number of rows that the file had.
        check: Checksum of the rows that were read.
        mark: Text that changes when the file is written again: its size and time.
    """

    stream: str
    rows: int
    total: int
    check: int
    mark: str


class Monitoring:
    """Test over time whether a classifier is still as calibrated as on the reference.

    Rows are tested as they arrive, and measured when a window is full; the rows of an incomplete window wait
    for the next update. Neither windows nor evidence depend on how the stream is cut into updates, nor on
    saving and loading in between. After an alarm it stays in alarm until :meth:`reset`. For streams that
    :func:`~calibrant.monitoring.follow` reads, ``files`` stores how many rows of each file were read.

    Args:
        reference: Labelled predictions of the time before deployment.
        window: Number of rows of a window.
        alpha: Upper bound on the probability of a false alarm over the whole stream, however long; half of it
            is spent on the reference, which is a sample itself.
        tolerance: Change of ``accuracy - confidence`` that does not count as drift.
        n_bins: Number of bins of the reference and of the ECE.

    Attributes:
        alarm: The alarm, if one was raised since the test began.

    Example:
        >>> reference = Predictions(confidence=[0.9] * 2000, correct=([True] * 9 + [False]) * 200)
        >>> monitoring = Monitoring(reference, window=250)
        >>> windows = monitoring.update(Predictions(confidence=[0.9] * 600, correct=[True, False] * 300))
        >>> [(window.first, window.last, window.alarm) for window in windows]
        [(1, 250, True), (251, 500, True)]
        >>> monitoring.alarm.row, monitoring.alarm.changes[0].direction
        (46, 'overconfident')
    """

    def __init__(
        self,
        reference: Predictions,
        *,
        window: int = 1000,
        alpha: float = 0.05,
        tolerance: float = 0.0,
        n_bins: int = 10,
    ) -> None:
        if not 0 < alpha < 1:
            raise InputError(f"alpha: expected a number between 0 and 1, got {alpha}; 5 % is 0.05")
        self.window = check_count(window, "window", at_least=2)
        self.n_bins = check_count(n_bins, "n_bins")
        columns = columns_of(reference)
        regions = DriftReference.from_outcomes(
            columns[0], columns[1] == 1, n_bins=n_bins, alpha=alpha / 2, tolerance=tolerance
        )
        self.reference_digest = digest(columns)
        self._start(DriftMonitor(regions, alpha=alpha), 0)
        self._pending: Floats = np.empty((len(COLUMNS), 0))
        self.files: dict[str, SeenFile] = {}

    def _start(self, monitor: DriftMonitor, row: int) -> None:
        self.monitor = monitor
        self._tested_from = row
        self._weakest = (row, 0.0)
        self.alarm: Alarm | None = None

    @property
    def n(self) -> int:
        """Number of rows so far, including those of an incomplete window."""
        return self._tested_from + self.monitor.n

    @property
    def waiting(self) -> int:
        """Number of rows of an incomplete window."""
        return self.n % self.window

    def conclusion(self) -> str:
        """Say in plain words whether calibration has changed, and how."""
        alarm = self.alarm
        if alarm is None:
            return (
                f"Still as calibrated as on the reference, as far as {self.n:,} rows can tell: the e-value "
                f"is {evidence(self.monitor.log_e_value)}, an alarm needs {self.monitor.threshold:,.3g}."
            )
        reference = self.monitor.reference
        found = [
            f"{change.change} than on the reference {where(change, reference)}" for change in alarm.changes
        ]
        return f"Alarm at row {alarm.row:,}: {' and '.join(found)}, since about row {alarm.since:,}."

    def event(self, *, time: str, file: str) -> dict[str, Any] | None:
        """Return the alarm as an entry of a log, with fractions and rows counted from 1; none without one.

        Args:
            time: When the alarm was raised.
            file: The file whose rows raised it.
        """
        alarm, monitor = self.alarm, self.monitor
        if alarm is None:
            return None
        return {
            "event": "calibration-drift",
            "time": time,
            "reference": self.reference_digest,
            "file": file,
            "row": alarm.row,
            "since": alarm.since,
            "direction": alarm.changes[0].direction,
            "changes": [
                asdict(change) | {"change": change.change, "where": where(change, monitor.reference)}
                for change in alarm.changes
            ],
            "alpha": monitor.alpha,
            "threshold": monitor.threshold,
            "conclusion": self.conclusion(),
        }

    def reset(self) -> None:
        """Forget the alarm and begin a new test with a new ``alpha``; the count of rows continues."""
        self._start(DriftMonitor(self.monitor.reference, alpha=self.monitor.alpha), self.n)

    def update(self, predictions: Predictions) -> list[Window]:
        """Read labelled rows in the order of time; return the windows that are complete now."""
        return self.read(columns_of(predictions))

    def read(self, rows: Floats) -> list[Window]:
        """Read rows in the form that ``columns_of`` returns; return the windows that are complete now."""
        windows, start = [], 0
        while start < rows.shape[1]:
            part = rows[:, start : start + self.window - self._pending.shape[1]]
            start += part.shape[1]
            self.monitor.update(part[0], part[1] == 1)
            self._pending = np.concatenate([self._pending, part], axis=1)
            if self.monitor.alarm_at is not None and self.alarm is None:
                row = self._tested_from + self.monitor.alarm_at
                self.alarm = Alarm(row, self._weakest[0] + 1, strongest_changes(self.monitor))
            if self._pending.shape[1] == self.window:
                windows.append(self._close())
        return windows

    def _close(self) -> Window:
        log_e = self.monitor.log_e_value
        if self.alarm is None and log_e <= self._weakest[1]:
            self._weakest = (self.n, log_e)
        rows, self._pending = self._pending, self._pending[:, :0]
        return measure_window(
            rows, last=self.n, n_bins=self.n_bins, log_e_value=log_e, alarm=self.alarm is not None
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state as JSON, completely or not at all."""
        state = {
            "format": _FORMAT,
            "version": _VERSION,
            "reference": self.reference_digest,
            "window": self.window,
            "n_bins": self.n_bins,
            "tested_from": self._tested_from,
            "weakest": self._weakest,
            "alarm": None if self.alarm is None else asdict(self.alarm),
            # JSON has no number for a term that is infinite or, without class probabilities, unknown.
            "pending": {
                name: [term if math.isfinite(term) else str(term) for term in terms.tolist()]
                for name, terms in zip(COLUMNS, self._pending, strict=True)
            },
            "files": {name: asdict(seen) for name, seen in self.files.items()},
            "monitor": self.monitor.state(),
        }
        with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            file.write(json.dumps(state, allow_nan=False))
            file.flush()
            os.fsync(file.fileno())

    @classmethod
    def load(cls, path: str | os.PathLike[str], reference: Predictions) -> Self:
        """Return the monitoring of a saved state; it continues as if it had never stopped.

        Raises:
            FormatError: The file is not a state, or has another version.
            InputError: The state belongs to another reference.
        """
        path = Path(path)
        state = _read_state(path)
        try:
            new = cls.__new__(cls)
            new.window, new.n_bins = check_count(state["window"], "window"), state["n_bins"]
            new.reference_digest = state["reference"]
            new._start(DriftMonitor.from_state(state["monitor"]), state["tested_from"])
            new._weakest = (state["weakest"][0], state["weakest"][1])
            new._pending = np.array([[float(t) for t in state["pending"][name]] for name in COLUMNS])
            if (alarm := state["alarm"]) is not None:
                new.alarm = read_dataclass(Alarm, alarm, "alarm")
            new.files = {name: SeenFile(**seen) for name, seen in state["files"].items()}
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise FormatError(
                f"{path.name}: expected a valid monitor state, got an error: {error}"
            ) from error
        if (given := digest(columns_of(reference))) != new.reference_digest:
            raise InputError(
                f"{path.name}: expected the reference that this state was begun with, whose digest is "
                f"{new.reference_digest[:12]}, got one with the digest {given[:12]}; name the "
                "other one, or begin a new state"
            )
        return new


def _read_state(path: Path) -> dict[str, Any]:
    """Read a state of this version or of version 1, which has no files."""
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(f"{path.name}: expected the state of a monitor, got no JSON ({error})") from error
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        raise FormatError(f"{path.name}: expected the state of a monitor, got other JSON; name another file")
    if state.get("version") == 1:
        state["files"] = {}
    elif state.get("version") != _VERSION:
        got = state.get("version")
        raise FormatError(
            f"{path.name}: expected a state of version {_VERSION} or 1, got {got!r}; begin a new one"
        )
    return state
