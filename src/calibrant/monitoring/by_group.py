"""One test for each group of rows, such as each region or customer, at one rate of false alarms for all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from calibrant.data.predictions import Predictions
from calibrant.errors import FormatError, InputError
from calibrant.files import Count
from calibrant.inputs import Floats, Integers
from calibrant.monitoring.alarm import Alarm, check_changes, strongest_changes
from calibrant.monitoring.drift import DriftMonitor
from calibrant.monitoring.reference import DriftReference

#: The most groups that are tested: each has a monitor of its own in the state.
MOST_GROUPS = 100
#: The number of a group that is not tested.
OTHER = -1


@dataclass(frozen=True)
class GroupState:
    """What a :class:`GroupTest` needs to continue later.

    Attributes:
        name: The group.
        last_row: Number of its last row among all rows.
        weakest: Row at the end of a window at which its evidence was weakest, and that evidence.
        alarm: Its alarm, if there is one.
        monitor: The state of its monitor.
    """

    name: str
    last_row: Count
    weakest: tuple[Count, float]
    alarm: Alarm | None
    monitor: Mapping[str, Any]


class GroupTest:
    """The test of one group.

    Args:
        name: The group.
        monitor: The evidence of its rows.
        row: Number of rows before the test.

    Attributes:
        alarm: The alarm, if its own evidence raised one.
    """

    def __init__(self, name: str, monitor: DriftMonitor, row: int) -> None:
        self.name, self.monitor = name, monitor
        self.last_row = row
        self.weakest = (row, 0.0)
        self.alarm: Alarm | None = None

    def read(
        self, confidence: Floats, correct: npt.NDArray[np.bool_], units: Integers | None, rows: Integers
    ) -> None:
        """Read rows of the group; ``rows`` are their numbers among all rows, counted from 1."""
        before = self.monitor.n
        self.monitor.update(confidence, correct, units)
        at = self.monitor.alarm_at
        if self.alarm is None and at is not None:
            row = int(rows[at - before - 1]) if at > before else self.last_row
            changes = strongest_changes(self.monitor)
            self.alarm = Alarm(row, min(self.weakest[0] + 1, row), changes, self.name)
        self.last_row = int(rows[-1])

    def close(self, row: int) -> None:
        """Note the evidence at the end of a window."""
        log_e = self.monitor.log_e_value
        if self.alarm is None and log_e <= self.weakest[1]:
            self.weakest = (row, log_e)

    def state(self) -> GroupState:
        """Return all that is needed to continue later."""
        return GroupState(self.name, self.last_row, self.weakest, self.alarm, self.monitor.state())

    @classmethod
    def from_state(cls, stored: GroupState) -> Self:
        """Continue from a state, unless its values contradict each other."""
        new = cls(stored.name, DriftMonitor.from_state(stored.monitor, name="groups.monitor"), 0)
        new.last_row, new.weakest, new.alarm = stored.last_row, stored.weakest, stored.alarm
        if (new.alarm is None) != (new.monitor.alarm_at is None):
            raise FormatError("groups.alarm: expected one exactly if the monitor has alarm_at, got only one")
        if new.alarm is not None:
            check_changes(new.alarm, new.monitor.reference)
        return new


def group_tests(
    reference: Predictions,
    columns: Floats,
    units: Integers | None,
    *,
    n_bins: int,
    alpha: float,
    tolerance: float,
) -> list[GroupTest]:
    """Return a test for each group of the reference that has at least two rows, or two units.

    Args:
        reference: Predictions with groups.
        columns: Their confidence and correctness.
        units: Their units, if they have some.
        n_bins: Number of bins of confidence.
        alpha: Upper bound on the probability that any of the tests raises a false alarm.
        tolerance: Change of the mean gap that does not count as drift.
    """
    groups = reference.groups
    if groups is None:
        raise InputError("reference: expected a group for each row, got none")
    codes = groups.codes.numpy()
    rows = [np.flatnonzero(codes == code) for code in range(len(groups.names))]
    drawn = np.arange(len(codes)) if units is None else units
    tested = [place for place, own in enumerate(rows) if len(np.unique(drawn[own])) > 1]
    if not 0 < len(tested) <= MOST_GROUPS:
        raise InputError(
            f"by: expected 1 to {MOST_GROUPS} groups of at least two rows in the reference, got "
            f"{len(tested):,}; name a column with fewer values"
        )
    share = alpha / len(tested)
    tests = []
    for place in tested:
        own = rows[place]
        regions = DriftReference.from_outcomes(
            columns[0][own],
            columns[1][own] == 1,
            units=None if units is None else units[own],
            n_bins=n_bins,
            alpha=share / 2,
            tolerance=tolerance,
        )
        tests.append(GroupTest(groups.names[place], DriftMonitor(regions, alpha=share), 0))
    return tests


def codes_of(names: npt.NDArray[np.object_], tests: Sequence[GroupTest]) -> Integers:
    """Return the number of each row's test, -1 for groups that have none."""
    found, place = np.unique(names.astype(str), return_inverse=True)
    known = {test.name: number for number, test in enumerate(tests)}
    return np.array([known.get(name, OTHER) for name in found], dtype=np.int64)[place]
