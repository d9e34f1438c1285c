"""Monitoring: a stream of labelled predictions in windows, each measured, all of them one sequential test."""

import hashlib
import json
import math
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from calibrant.atomic import atomic_path
from calibrant.data import Predictions
from calibrant.errors import FormatError, InputError
from calibrant.inputs import check_count
from calibrant.metrics.binned import expected_calibration_error
from calibrant.metrics.bootstrap import Floats, generator
from calibrant.metrics.bootstrap_terms import TermResampler
from calibrant.metrics.drift import DriftMonitor, DriftReference, GroupDrift
from calibrant.metrics.intervals import Interval, with_interval
from calibrant.metrics.proper import log_losses, squared_errors

_FORMAT = "calibrant-monitor"
_VERSION = 1
_LEVEL = 0.95
_RESAMPLES = 200
_COLUMNS = ("confidence", "correct", "nll", "brier")


@dataclass(frozen=True)
class Window:
    """What a number of rows in a row say, with 95 % intervals, and the evidence after them.

    Attributes:
        first: Number of the first row, counted from 1 since monitoring began.
        last: Number of the last row.
        n: Number of rows.
        accuracy: Share of correct predictions.
        mean_confidence: Mean stated confidence.
        ece: Expected calibration error; where resampling, which adds noise, only gave larger ones, its
            interval is widened to the value.
        brier: Brier score; None unless class probabilities were known for every row.
        nll: Negative log-likelihood; None where the Brier score is, or if infinite.
        log_e_value: Logarithm of the evidence, after the last row, that calibration is not what it was.
        alarm: Whether the evidence has sufficed for an alarm at this row or before.
    """

    first: int
    last: int
    n: int
    accuracy: Interval
    mean_confidence: Interval
    ece: Interval
    brier: Interval | None
    nll: Interval | None
    log_e_value: float
    alarm: bool


@dataclass(frozen=True)
class Alarm:
    """When and where calibration was found to be not what it was; stays as it was when it was raised.

    Attributes:
        row: Number of the row after which the evidence sufficed; the guarantee is about this one.
        since: First row after the window at whose end the evidence was weakest; a guess where it began.
        changes: For each direction, the group of confidences with the most evidence, the strongest first.
    """

    row: int
    since: int
    changes: tuple[GroupDrift, ...]


class Monitoring:
    """A classifier watched over time: is it still as calibrated as on the reference?

    Rows are tested as they come, and measured whenever a window is full. What is left over waits for the next
    update. Neither windows nor evidence depend on how the stream is cut into updates, nor on saving and
    loading in between. After an alarm it stays in alarm until :meth:`reset`.

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
        columns = _columns(reference)
        regions = DriftReference.from_outcomes(
            columns[0], columns[1] == 1, n_bins=n_bins, alpha=alpha / 2, tolerance=tolerance
        )
        self.reference_digest = _digest(columns)
        self._start(DriftMonitor(regions, alpha=alpha), 0)
        self._pending: Floats = np.empty((len(_COLUMNS), 0))

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
        rows = _columns(predictions)
        windows, start = [], 0
        while start < rows.shape[1]:
            part = rows[:, start : start + self.window - self._pending.shape[1]]
            start += part.shape[1]
            self.monitor.update(part[0], part[1] == 1)
            self._pending = np.concatenate([self._pending, part], axis=1)
            if self.monitor.alarm_at is not None and self._alarm is None:
                row = self._tested_from + self.monitor.alarm_at
                self._alarm = Alarm(row, self._weakest[0] + 1, _strongest_changes(self.monitor))
            if self._pending.shape[1] == self.window:
                windows.append(self._close())
        return windows

    def _close(self) -> Window:
        log_e = self.monitor.log_e_value
        if self._alarm is None and log_e <= self._weakest[1]:
            self._weakest = (self.n, log_e)
        confidence, correct, nll, brier = self._pending
        # Each window has resamples of its own, which are the same however the stream was cut.
        seed = self.n // self.window
        self._pending = self._pending[:, :0]
        return Window(
            first=self.n - self.window + 1,
            last=self.n,
            n=self.window,
            accuracy=_mean(correct, seed),
            mean_confidence=_mean(confidence, seed),
            ece=_ece(confidence, correct == 1, self.n_bins, seed),
            brier=_mean(brier, seed) if np.isfinite(brier).all() else None,
            nll=_mean(nll, seed) if np.isfinite(nll).all() else None,
            log_e_value=log_e,
            alarm=self._alarm is not None,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state as JSON, all of it or nothing."""
        state = {
            "format": _FORMAT,
            "version": _VERSION,
            "reference": self.reference_digest,
            "window": self.window,
            "n_bins": self.n_bins,
            "tested_from": self._tested_from,
            "weakest": self._weakest,
            "alarm": None if self._alarm is None else asdict(self._alarm),
            # JSON has no word for a term that is infinite or, without class probabilities, unknown.
            "pending": {
                name: [term if math.isfinite(term) else str(term) for term in terms.tolist()]
                for name, terms in zip(_COLUMNS, self._pending, strict=True)
            },
            "monitor": self.monitor.state(),
        }
        with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            file.write(json.dumps(state, allow_nan=False))
            file.flush()
            os.fsync(file.fileno())

    @classmethod
    def load(cls, path: str | os.PathLike[str], reference: Predictions) -> Self:
        """Return the monitoring whose state was saved; it goes on as if it had never stopped.

        Raises:
            FormatError: The file is not such a state, or one of another version.
            InputError: The state was begun with another reference.
        """
        path = Path(path)
        state = _read(path)
        try:
            new = cls.__new__(cls)
            new.window, new.n_bins = check_count(state["window"], "window"), state["n_bins"]
            new.reference_digest = state["reference"]
            new._start(DriftMonitor.from_state(state["monitor"]), state["tested_from"])
            new._weakest = (state["weakest"][0], state["weakest"][1])
            new._pending = np.array([[float(t) for t in state["pending"][name]] for name in _COLUMNS])
            if (alarm := state["alarm"]) is not None:
                changes = (GroupDrift(**{**c, "region": tuple(c["region"])}) for c in alarm["changes"])
                new._alarm = Alarm(alarm["row"], alarm["since"], tuple(changes))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise FormatError(f"{path.name}: expected a monitor's state, got a fault: {error}") from error
        if (given := _digest(_columns(reference))) != new.reference_digest:
            raise InputError(
                f"{path.name}: expected the reference that this state was begun with, whose digest is "
                f"{new.reference_digest[:12]}, got one of {given[:12]}; name that one, or begin a new state"
            )
        return new


def _strongest_changes(monitor: DriftMonitor) -> tuple[GroupDrift, ...]:
    """Return, for each direction, the group with the most evidence, of those that have enough of their own.

    If only all groups together have enough, it is the one that contributes most.
    """
    diagnosis = monitor.diagnosis()
    found = [drift for drift in diagnosis if drift.drifts]
    if not found:
        level = [group.level for group in monitor.reference.groups for _ in ("over", "under")]
        log_part = [d.log_e_value - math.log(level.count(of)) for d, of in zip(diagnosis, level, strict=True)]
        found = [diagnosis[int(np.argmax(log_part))]]
    best: dict[str, GroupDrift] = {}
    for drift in sorted(found, key=lambda drift: -drift.log_e_value):
        best.setdefault(drift.direction, drift)
    return tuple(best.values())


def _columns(predictions: Predictions) -> Floats:
    """Return confidence, hit, log loss and squared error of each row; what is not known is NaN."""
    outcomes = predictions.outcomes()
    columns = np.full((len(_COLUMNS), len(outcomes)), np.nan)
    columns[0], columns[1] = outcomes.confidence.cpu().numpy(), outcomes.correct.cpu().numpy()
    if predictions.labels is not None:
        said = {"probs": predictions.probs} if predictions.logits is None else {"logits": predictions.logits}
        columns[2] = log_losses(predictions.labels, **said).cpu().numpy()
        columns[3] = squared_errors(predictions.to_probs(), predictions.labels).cpu().numpy()
    return columns


def _digest(columns: Floats) -> str:
    """Return what tells references apart: a hash of confidences and hits."""
    return hashlib.sha256(np.ascontiguousarray(columns[:2], dtype="<f8").tobytes()).hexdigest()


def _mean(terms: Floats, seed: int) -> Interval:
    resampler = TermResampler(terms)
    drawn = resampler.replicates(_RESAMPLES, generator(seed))
    low, high = (float(end) for end in np.quantile(drawn, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2]))
    return Interval(resampler.value, low, high, _LEVEL, float(drawn.std(ddof=1)), _RESAMPLES, 0, "percentile")


def _ece(confidence: Floats, correct: npt.NDArray[np.bool_], n_bins: int, seed: int) -> Interval:
    found = with_interval(
        expected_calibration_error,
        confidence=confidence,
        correct=correct,
        n_bins=n_bins,
        n_resamples=_RESAMPLES,
        level=_LEVEL,
        seed=seed,
    )
    return replace(found, low=min(found.low, found.value), high=max(found.high, found.value))


def _read(path: Path) -> dict[str, Any]:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(f"{path.name}: expected the state of a monitor, got no JSON ({error})") from error
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        raise FormatError(f"{path.name}: expected the state of a monitor, got other JSON; name another file")
    if state.get("version") != _VERSION:
        got = state.get("version")
        raise FormatError(
            f"{path.name}: expected a state of version {_VERSION}, got {got!r}; begin a new one"
        )
    return state
