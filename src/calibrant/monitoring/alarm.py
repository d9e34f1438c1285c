"""Alarms: when and where calibration changed, and the words that describe the change."""

import math
from dataclasses import dataclass

import numpy as np

from calibrant.errors import FormatError
from calibrant.monitoring.drift import DriftMonitor, GroupDrift
from calibrant.monitoring.reference import DriftReference


@dataclass(frozen=True)
class Alarm:
    """When and where calibration changed, as known when the alarm was raised.

    Attributes:
        row: Number of the row after which the evidence reached the threshold; the guarantee holds for this.
        since: First row after the window at whose end the evidence was weakest; an estimate of when the
            change began.
        changes: For each direction, the group of confidences with the most evidence, the strongest first.
        group: The group of rows whose evidence raised it; None if it is that of all rows.
    """

    row: int
    since: int
    changes: tuple[GroupDrift, ...]
    group: str | None = None


def strongest_changes(monitor: DriftMonitor) -> tuple[GroupDrift, ...]:
    """Return, for each direction, the group with the most evidence among those that alone raise an alarm.

    If only all groups together raise it, this is the group that contributes most.
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


def check_changes(alarm: Alarm, reference: DriftReference) -> None:
    """Refuse an alarm of a state whose groups of confidences are not those of the reference."""
    known = {(group.low, group.high) for group in reference.groups}
    if not alarm.changes or any((change.low, change.high) not in known for change in alarm.changes):
        raise FormatError("alarm.changes: expected groups of the reference, got none or others")


def where(change: GroupDrift, reference: DriftReference) -> str:
    """Describe the group of a change: all confidences, a half of them, or a range."""
    group = next(g for g in reference.groups if (g.low, g.high) == (change.low, change.high))
    if group.level == 0:
        return "over all confidences"
    low, high = (_edge(edge, change.high - change.low) for edge in (change.low, change.high))
    if reference.n_bins >= 4 and group.level == 1:
        if group.first == 0:
            return f"in the lower half (confidences up to {high})"
        return f"in the upper half (confidences above {low})"
    return f"for confidences from {low} to {high}"


def evidence(log_e_value: float) -> str:
    """Format an e-value in few characters."""
    if log_e_value > math.log(1e5):
        return f"1e{log_e_value / math.log(10):.0f}"
    return f"{math.exp(log_e_value):,.0f}" if log_e_value > math.log(100) else f"{math.exp(log_e_value):.2f}"


def _edge(confidence: float, width: float) -> str:
    """Format the edge of a group with enough digits to distinguish it from the other edge and from 1."""
    if confidence in (0.0, 1.0):
        return f"{confidence:.0f}"
    least = min(confidence, 1 - confidence, width)
    return f"{confidence:.{max(2, 1 - math.floor(math.log10(least)))}f}"
