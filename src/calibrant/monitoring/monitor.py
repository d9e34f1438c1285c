"""Monitoring of a classifier: windows and evidence of rows as they arrive, and a state to continue from."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from calibrant.data.joined import PartlyLabelled
from calibrant.data.predictions import Predictions
from calibrant.errors import FormatError, InputError
from calibrant.files import reading, write_file
from calibrant.inputs import Floats, Integers, check_count
from calibrant.monitoring.alarm import Alarm, check_changes, evidence, strongest_changes, where
from calibrant.monitoring.by_group import OTHER, GroupTest, codes_of, group_tests
from calibrant.monitoring.drift import DriftMonitor
from calibrant.monitoring.reference import MOST_BINS, DriftReference
from calibrant.monitoring.state import (
    MonitoringState,
    SeenFile,
    pack_rows,
    read_state,
    state_text,
    unpack_rows,
)
from calibrant.monitoring.waiting import Waiting, read_tables, remove_tables, tables_path
from calibrant.monitoring.windows import (
    COLUMNS,
    ReadRows,
    Window,
    columns_of,
    digest_of,
    group_names,
    measure_window,
    read_rows,
    units_of,
)


class Monitoring:
    """Test over time whether a classifier is still as calibrated as on the reference.

    Rows are tested as they arrive, and measured when a window is full; the rows of an incomplete window wait
    for the next update. Neither windows nor evidence depend on how the stream is cut into updates, nor on
    saving and loading in between. After an alarm it stays in alarm until :meth:`reset`. For streams that
    :func:`~calibrant.monitoring.follow` reads, ``files`` stores how many rows of each file were read.

    If rows depend on each other, the reference and the stream have ``units``: windows are then measured, and
    bets made, by unit, as :class:`~calibrant.monitoring.DriftMonitor` describes.

    Args:
        reference: Labelled predictions of the time before deployment.
        window: Number of rows of a window, at most 10 to the 8.
        alpha: Upper bound on the probability of a false alarm over the whole stream, however long; half of it
            is spent on the reference, which is a sample itself.
        tolerance: Change of ``accuracy - confidence`` that does not count as drift.
        n_bins: Number of bins of the reference and of the ECE, at most 1,000.
        by: What the groups of the predictions are, such as the name of a column, to test each of them as
            well: half of ``alpha`` is then for all rows, and groups of the reference share the other half.

    Attributes:
        latest: The last complete window, if there is one.
        groups: The tests of the groups.
        others: Number of rows of groups that the reference does not have; they count in the test of all rows.
        unlabelled: Number of rows that were left out because they have no label.
        late: Rows that wait for labels, which come in files of their own, if they do.

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
        by: str | None = None,
    ) -> None:
        if not 0 < alpha < 1:
            raise InputError(f"alpha: expected a number between 0 and 1, got {alpha}; 5 % is 0.05")
        self.window = check_count(window, "window", at_least=2)
        self.n_bins = check_count(n_bins, "n_bins", at_most=MOST_BINS)
        columns, units = columns_of(reference), units_of(reference)
        own = alpha if by is None else alpha / 2
        shape: dict[str, Any] = {"n_bins": n_bins, "tolerance": tolerance}
        regions = DriftReference.from_outcomes(
            columns[0], columns[1] == 1, units=units, alpha=own / 2, **shape
        )
        self.by, self.others, self.unlabelled = by, 0, 0
        self.groups = [] if by is None else group_tests(reference, columns, units, alpha=own, **shape)
        self.reference_digest = digest_of(reference, by_group=by is not None)
        self.late: Waiting | None = None
        self._start(DriftMonitor(regions, alpha=own), 0)
        self._pending: Floats = np.empty((len(COLUMNS), 0))
        self._pending_units: Integers = np.empty(0, dtype=np.int64)
        self.latest: Window | None = None
        self.files: dict[str, SeenFile] = {}

    def _start(self, monitor: DriftMonitor, row: int, units: int = 0) -> None:
        self.monitor = monitor
        self._tested_from, self._units_before = row, units
        self._weakest = (row, 0.0)
        self._alarm: Alarm | None = None

    @property
    def alpha(self) -> float:
        """Upper bound on the probability of a false alarm of any test."""
        return self.monitor.alpha * (1 if self.by is None else 2)

    @property
    def alarm(self) -> Alarm | None:
        """The first alarm of all rows or of a group, if one was raised since the test began."""
        found = [each for each in (self._alarm, *(test.alarm for test in self.groups)) if each is not None]
        return min(found, key=lambda alarm: alarm.row, default=None)

    @property
    def n(self) -> int:
        """Number of rows so far, including those of an incomplete window."""
        return self._tested_from + self.monitor.n

    @property
    def waiting(self) -> int:
        """Number of rows of an incomplete window."""
        return self.n % self.window

    @property
    def n_units(self) -> int | None:
        """Number of units so far; None if rows have none."""
        if self.monitor.reference.n_units is None:
            return None
        return self._units_before + (self.monitor.n_units or 0)

    def conclusion(self) -> str:
        """Say in plain words whether calibration has changed, and how."""
        alarm = self.alarm
        if alarm is None:
            units = "" if self.n_units is None else f" of {self.n_units:,} units"
            return (
                f"Still as calibrated as on the reference, as far as {self.n:,} rows{units} can tell: "
                f"the e-value is {evidence(self.monitor.log_e_value)}, "
                f"an alarm needs {self.monitor.threshold:,.3g}."
            )
        reference = self._monitor_of(alarm).reference
        found = [
            f"{change.change} than on the reference {where(change, reference)}" for change in alarm.changes
        ]
        group = "" if alarm.group is None else f" in {self.by} {alarm.group}"
        return f"Alarm at row {alarm.row:,}{group}: {' and '.join(found)}, since about row {alarm.since:,}."

    def _monitor_of(self, alarm: Alarm) -> DriftMonitor:
        """Return the monitor that raised an alarm."""
        return next((test.monitor for test in self.groups if test.name == alarm.group), self.monitor)

    def event(self, *, time: str, file: str) -> dict[str, Any] | None:
        """Return the alarm as an entry of a log, with fractions and rows counted from 1; none without one.

        Args:
            time: When the alarm was raised.
            file: The file whose rows raised it.
        """
        alarm = self.alarm
        if alarm is None:
            return None
        monitor = self._monitor_of(alarm)
        return {
            "event": "calibration-drift",
            "time": time,
            "reference": self.reference_digest,
            "file": file,
            **({} if self.by is None else {"by": self.by, "group": alarm.group}),
            "row": alarm.row,
            "since": alarm.since,
            "direction": alarm.changes[0].direction,
            "changes": [
                asdict(change) | {"change": change.change, "where": where(change, monitor.reference)}
                for change in alarm.changes
            ],
            "alpha": self.alpha,
            "threshold": monitor.threshold,
            "conclusion": self.conclusion(),
        }

    def reset(self) -> None:
        """Forget the alarm and begin a new test with a new ``alpha``; the count of rows continues."""
        again = DriftMonitor(self.monitor.reference, alpha=self.monitor.alpha)
        self.groups = [
            GroupTest(test.name, DriftMonitor(test.monitor.reference, alpha=test.monitor.alpha), self.n)
            for test in self.groups
        ]
        self._start(again, self.n, self.n_units or 0)

    def update(self, predictions: Predictions) -> list[Window]:
        """Read labelled rows in the order of time; return the windows that are complete now."""
        return self.take(self.prepared(predictions, group_names(predictions)))

    def wait_for_labels(self, form: Predictions) -> None:
        """Let rows without a label wait for it from now on; labels are those of predictions like ``form``."""
        self.late = Waiting(form, has_units=self.monitor.reference.n_units is not None)

    def prepared(
        self, rows: PartlyLabelled | Predictions, groups: npt.NDArray[np.object_] | None = None
    ) -> ReadRows:
        """Return what is needed to know of rows, of which some may have no label; ``groups`` are names."""
        if self.by is not None and groups is None:
            raise InputError(f"groups: expected {self.by} of each row, as in the reference, got none")
        waits = self.late is not None
        if self.late is not None:
            self.late.check_form(rows)
        return read_rows(rows, groups, waits=waits, units_before=self.n_units or 0)

    def take(self, rows: ReadRows, *, now: float = 0.0) -> list[Window]:
        """Read rows in the order of time; return the windows that are complete now.

        Rows without a label wait for it if labels come in files of their own, and are left out otherwise.
        ``now`` is when they begin to wait, in seconds since 1970.
        """
        codes = np.full(len(rows), OTHER) if rows.groups is None else codes_of(rows.groups, self.groups)
        if self.late is not None:
            self._check_units(rows.units, len(rows))
            self.late.add_rows(rows, codes, now)
            return self.take_labelled()
        known = rows.columns[1] >= 0
        if not known.all():
            self.unlabelled += int((~known).sum())
            rows, codes = rows.take(known), codes[known]
        return self.read(rows.columns, rows.units, codes)

    def take_labelled(self) -> list[Window]:
        """Read the rows that waited and have their labels; return the windows that are complete now."""
        assert self.late is not None
        rows, codes = self.late.release()
        self.late.check_size()
        return self.read(rows.columns, rows.units, codes)

    def read(
        self, rows: Floats, units: Integers | None = None, groups: Integers | None = None
    ) -> list[Window]:
        """Read rows in the form that ``columns_of`` returns, the unit of each, and the number of its test.

        Return the windows that are complete now.
        """
        windows: list[Window] = []
        if not rows.shape[1]:
            return windows
        self._check_units(units, rows.shape[1])
        self.monitor.check_units(units, rows.shape[1])
        start = 0
        while start < rows.shape[1]:
            taken = slice(start, start + self.window - self._pending.shape[1])
            part, own = rows[:, taken], None if units is None else units[taken]
            start += part.shape[1]
            if groups is not None and self.groups:
                self._read_groups(part, own, groups[taken])
            self.monitor.update(part[0], part[1] == 1, own)
            self._pending = np.concatenate([self._pending, part], axis=1)
            if own is not None:
                self._pending_units = np.concatenate([self._pending_units, own])
            if self.monitor.alarm_at is not None and self._alarm is None:
                row = self._tested_from + self.monitor.alarm_at
                self._alarm = Alarm(row, self._weakest[0] + 1, strongest_changes(self.monitor))
            if self._pending.shape[1] == self.window:
                windows.append(self._close())
        return windows

    def _read_groups(self, rows: Floats, units: Integers | None, groups: Integers) -> None:
        """Read rows in the tests of their groups, before they are counted."""
        self.others += int((groups == OTHER).sum())
        units = None if units is None else self.monitor.unit_places(units)
        for code in np.unique(groups[groups != OTHER]).tolist():
            place = np.flatnonzero(groups == code)
            own = None if units is None else units[place]
            self.groups[code].read(rows[0, place], rows[1, place] == 1, own, self.n + 1 + place)

    def _check_units(self, units: Integers | None, n: int) -> None:
        """Refuse rows without units if the reference has them, and rows with them if not."""
        expected = self.monitor.reference.n_units is not None
        if n and expected != (units is not None):
            what, got = ("units", "none") if expected else ("no units", "some")
            raise InputError(
                f"units: expected {what}, as in the reference, got {got}; name the same columns for both"
            )

    def _close(self) -> Window:
        log_e = self.monitor.log_e_value
        for test in self.groups:
            test.close(self.n)
        if self._alarm is None and log_e <= self._weakest[1]:
            self._weakest = (self._tested_from + self.monitor.n_tested, log_e)
        rows, self._pending = self._pending, self._pending[:, :0]
        units, self._pending_units = self._pending_units, self._pending_units[:0]
        self.latest = measure_window(
            rows,
            None if self.n_units is None else units,
            last=self.n,
            n_bins=self.n_bins,
            log_e_value=log_e,
            alarm=self.alarm is not None,
        )
        return self.latest

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state as JSON, completely or not at all.

        Rows that wait for labels are in a file beside it, whose name the state contains.
        """
        late, tables = None, b""
        if self.late is not None:
            tables = self.late.tables()
            late = self.late.state(tables)
        state = MonitoringState(
            reference=self.reference_digest,
            window=self.window,
            n_bins=self.n_bins,
            tested_from=self._tested_from,
            units_before=self._units_before,
            weakest=self._weakest,
            alarm=self._alarm,
            by=self.by,
            groups=tuple(test.state() for test in self.groups),
            others=self.others,
            unlabelled=self.unlabelled,
            late=late,
            pending=pack_rows(self._pending, None if self.n_units is None else self._pending_units),
            files=self.files,
            monitor=self.monitor.state(),
            latest=self.latest,
        )
        # The old file is there until the new state is, so that there are always two that belong together.
        if late is not None and not tables_path(path, late).exists():
            write_file(tables_path(path, late), tables)
        write_file(path, state_text(asdict(state)))
        remove_tables(path, late)

    @classmethod
    def load(cls, path: str | os.PathLike[str], reference: Predictions) -> Self:
        """Return the monitoring of a saved state; it continues as if it had never stopped.

        Raises:
            FormatError: The file is not a state, has another version, or was changed.
            InputError: The state belongs to another reference.
        """
        name = Path(path).name
        state, unchanged = read_state(path)
        with reading(name, "the state of a monitor"):
            new = cls._from_state(state)
            if state.late is not None:
                new.late = Waiting.from_state(state.late, read_tables(path, state.late))
        if not unchanged:
            raise FormatError(
                f"{name}: expected the state as it was written, got one whose digest is that of another; "
                "take a copy of it that nobody edited, or begin a new state"
            )
        if new.by is not None and reference.groups is None:
            raise InputError(f"by: expected {new.by}, as in {name}, got none; begin a new state")
        if (given := digest_of(reference, by_group=new.by is not None)) != new.reference_digest:
            raise InputError(
                f"{name}: expected the reference that this state was begun with, whose digest is "
                f"{new.reference_digest[:12]}, got one with the digest {given[:12]}; name the "
                "other one, or begin a new state"
            )
        return new

    @classmethod
    def _from_state(cls, state: MonitoringState) -> Self:
        """Continue from a state, unless its values contradict each other."""
        new = cls.__new__(cls)
        new.window, new.n_bins, new.reference_digest = state.window, state.n_bins, state.reference
        monitor = DriftMonitor.from_state(state.monitor, name="monitor")
        new._start(monitor, state.tested_from, state.units_before)
        if state.units_before > state.tested_from * (monitor.reference.n_units is not None):
            raise FormatError(
                f"units_before: expected at most one unit for each row before, got {state.units_before}"
            )
        if monitor.n and (monitor.n_units is None) != (monitor.reference.n_units is None):
            raise FormatError("monitor.units: expected some exactly if the reference has them, got only one")
        new._weakest, new._alarm, new.files = state.weakest, state.alarm, state.files
        new.by, new.others, new.unlabelled, new.late = state.by, state.others, state.unlabelled, None
        new.groups = [GroupTest.from_state(each) for each in state.groups]
        if bool(new.groups) != (new.by is not None):
            raise FormatError("groups: expected some exactly if by names them, got only one")
        with_units = new.n_units is not None
        new._pending, new._pending_units = unpack_rows(state.pending, n=new.waiting, with_units=with_units)
        new.latest = state.latest
        if new.n_bins < new.monitor.reference.n_bins:
            raise FormatError(
                f"n_bins: expected at least the {new.monitor.reference.n_bins} bins of the reference, "
                f"got {new.n_bins}"
            )
        row, log_e_value = state.weakest
        if not new._tested_from <= row <= new.n or log_e_value > 0:
            raise FormatError(
                f"weakest: expected a row from {new._tested_from} to {new.n} and evidence of at most 0, "
                f"got {row} and {log_e_value}"
            )
        most = new.n + new.unlabelled
        if state.late is None and (rows := sum(seen.rows for seen in state.files.values())) > most:
            raise FormatError(f"files: expected at most the {most} rows that were read, got {rows}")
        new._check_alarm()
        new._check_latest()
        return new

    def _check_latest(self) -> None:
        """Refuse a window that is not the last complete one."""
        expected = {"n": self.window, "last": self.n - self.waiting}
        for name, number in expected.items():
            if self.latest is not None and (got := getattr(self.latest, name)) != number:
                raise FormatError(f"latest.{name}: expected {number}, got {got}")

    def _check_alarm(self) -> None:
        """Refuse an alarm that is not the monitor's own."""
        alarm, at = self._alarm, self.monitor.alarm_at
        if alarm is None or at is None:
            if (alarm is None) != (at is None):
                raise FormatError("alarm: expected one exactly if the monitor has alarm_at, got only one")
            return
        if alarm.row != self._tested_from + at:
            raise FormatError(f"alarm.row: expected {self._tested_from + at}, got {alarm.row}")
        if not self._tested_from < alarm.since <= alarm.row:
            raise FormatError(
                f"alarm.since: expected a row from {self._tested_from + 1} to {alarm.row}, got {alarm.since}"
            )
        check_changes(alarm, self.monitor.reference)
