"""Watching a classifier: windows and evidence of the rows as they come, and a state to go on from."""

import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Self

import numpy as np

from calibrant.data.predictions import Predictions
from calibrant.errors import FormatError, InputError
from calibrant.inputs import Floats, check_count
from calibrant.monitoring.alarm import Alarm, strongest_changes
from calibrant.monitoring.drift import DriftMonitor
from calibrant.monitoring.reference import DriftReference
from calibrant.monitoring.rows import COLUMNS, columns_of, digest
from calibrant.monitoring.seen import SeenFile
from calibrant.monitoring.state import read_state, write_state
from calibrant.monitoring.window import Window, measured


class Monitoring:
    """A classifier watched over time: is it still as calibrated as on the reference?

    Rows are tested as they come, and measured whenever a window is full. What is left over waits for the next
    update. Neither windows nor evidence depend on how the stream is cut into updates, nor on saving and
    loading in between. After an alarm it stays in alarm until :meth:`reset`. Of streams, which
    :func:`~calibrant.monitoring.follow` reads, it remembers in ``files`` how far it has come.

    Args:
        reference: Labelled predictions of the time when all was well.
        window: Number of rows of a window.
        alpha: Chance of a false alarm over the whole stream, however long, at most; half is spent on the
            reference, which is a sample itself.
        tolerance: Change of ``accuracy - confidence`` that shall not count.
        n_bins: Number of bins of the reference and of the ECE.

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
        self._alarm: Alarm | None = None

    @property
    def n(self) -> int:
        """Number of rows so far, those of an incomplete window included."""
        return self._tested_from + self.monitor.n

    @property
    def alarm(self) -> Alarm | None:
        """The alarm, if one was raised since the test began."""
        return self._alarm

    def reset(self) -> None:
        """Forget the alarm and begin the test anew, with another ``alpha``; rows are counted on."""
        self._start(DriftMonitor(self.monitor.reference, alpha=self.monitor.alpha), self.n)

    def update(self, predictions: Predictions) -> list[Window]:
        """Read labelled rows in the order of time; return the windows that are full now."""
        return self.read(columns_of(predictions))

    def read(self, rows: Floats) -> list[Window]:
        """Read rows as ``rows.columns_of`` tells of them; return the windows that are full now."""
        windows, start = [], 0
        while start < rows.shape[1]:
            part = rows[:, start : start + self.window - self._pending.shape[1]]
            start += part.shape[1]
            self.monitor.update(part[0], part[1] == 1)
            self._pending = np.concatenate([self._pending, part], axis=1)
            if self.monitor.alarm_at is not None and self._alarm is None:
                row = self._tested_from + self.monitor.alarm_at
                self._alarm = Alarm(row, self._weakest[0] + 1, strongest_changes(self.monitor))
            if self._pending.shape[1] == self.window:
                windows.append(self._close())
        return windows

    def _close(self) -> Window:
        log_e = self.monitor.log_e_value
        if self._alarm is None and log_e <= self._weakest[1]:
            self._weakest = (self.n, log_e)
        rows, self._pending = self._pending, self._pending[:, :0]
        return measured(
            rows, last=self.n, n_bins=self.n_bins, log_e_value=log_e, alarm=self._alarm is not None
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state as JSON, all of it or nothing."""
        state = {
            "reference": self.reference_digest,
            "window": self.window,
            "n_bins": self.n_bins,
            "tested_from": self._tested_from,
            "weakest": self._weakest,
            "alarm": None if self._alarm is None else asdict(self._alarm),
            # JSON has no word for a term that is infinite or, without class probabilities, unknown.
            "pending": {
                name: [term if math.isfinite(term) else str(term) for term in terms.tolist()]
                for name, terms in zip(COLUMNS, self._pending, strict=True)
            },
            "files": {name: asdict(seen) for name, seen in self.files.items()},
            "monitor": self.monitor.state(),
        }
        write_state(path, state)

    @classmethod
    def load(cls, path: str | os.PathLike[str], reference: Predictions) -> Self:
        """Return the monitoring whose state was saved; it goes on as if it had never stopped.

        Raises:
            FormatError: The file is not such a state, or one of another version.
            InputError: The state was begun with another reference.
        """
        path = Path(path)
        state = read_state(path)
        try:
            new = cls.__new__(cls)
            new.window, new.n_bins = check_count(state["window"], "window"), state["n_bins"]
            new.reference_digest = state["reference"]
            new._start(DriftMonitor.from_state(state["monitor"]), state["tested_from"])
            new._weakest = (state["weakest"][0], state["weakest"][1])
            new._pending = np.array([[float(t) for t in state["pending"][name]] for name in COLUMNS])
            if (alarm := state["alarm"]) is not None:
                new._alarm = Alarm.from_json(alarm)
            new.files = {name: SeenFile(**seen) for name, seen in state["files"].items()}
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise FormatError(f"{path.name}: expected a monitor's state, got a fault: {error}") from error
        if (given := digest(columns_of(reference))) != new.reference_digest:
            raise InputError(
                f"{path.name}: expected the reference that this state was begun with, whose digest is "
                f"{new.reference_digest[:12]}, got one of {given[:12]}; name that one, or begin a new state"
            )
        return new
