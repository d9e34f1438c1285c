"""An alarm: when and where calibration was found to be not what it was."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from calibrant.monitoring.drift import DriftMonitor, GroupDrift


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

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Return the alarm that was written as a dictionary."""
        changes = (
            GroupDrift(**{**change, "region": tuple(change["region"])}) for change in stored["changes"]
        )
        return cls(stored["row"], stored["since"], tuple(changes))


def strongest_changes(monitor: DriftMonitor) -> tuple[GroupDrift, ...]:
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
