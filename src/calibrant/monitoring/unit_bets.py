"""Units of a monitored stream: rows that depend on each other and follow each other make one bet.

A unit is complete when a row of another unit comes, and is bet on then. As long as no unit has had a second
row, rows are bet on at once, so units of one row each are treated like rows without units. The first unit
with a second row has then been bet on by its first row, and its other rows make no bet; later units wait.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from calibrant.errors import InputError
from calibrant.files import Count, between
from calibrant.inputs import ArrayLike, Floats, Integers, check_units

#: A unit that returns after fewer other units than this is refused.
MOST_RECENT = 1000
# Sums of the same numbers may differ in their last digits between machines.
_SLACK = 1e-6

_Number: TypeAlias = Annotated[int, between(-(2**63), 2**63 - 1)]


@dataclass(frozen=True)
class UnitState:
    """What :class:`UnitBets` need to continue later.

    Attributes:
        recent: The numbers of the last units, that of the last row at the end.
        waits: Whether a unit had a second row, so that units are bet on when they are complete.
        bets: Number of units that were bet on.
        count: Rows in each bin of the unit that is not complete; 0 if it was bet on by its first row.
        gap_sum: Their sums of ``correct - confidence``.
    """

    recent: tuple[_Number, ...]
    waits: bool
    bets: Count
    count: tuple[Count, ...]
    gap_sum: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class CompleteUnits:
    """Units that are complete, in their order.

    Attributes:
        count: Number of rows of each unit in each bin, shape ``(units, bins)``.
        gap_sum: Their sums of ``correct - confidence``.
        ends: Number of rows of the block up to the end of each unit.
    """

    count: Integers
    gap_sum: Floats
    ends: Integers


class UnitBets:
    """Collects the rows of each unit of a stream; the result does not depend on how the rows are cut.

    Args:
        n_bins: Number of bins of confidence.

    Attributes:
        recent: The numbers of the last units, that of the last row at the end.
        waits: Whether a unit had a second row.
        count: Rows in each bin of the unit that is not complete.
        gap_sum: Their sums of ``correct - confidence``.
    """

    def __init__(self, n_bins: int) -> None:
        self.recent: Integers = np.empty(0, dtype=np.int64)
        self.waits = False
        self.count: Integers = np.zeros(n_bins, dtype=np.int64)
        self.gap_sum: Floats = np.zeros(n_bins)

    def state(self, *, bets: int) -> dict[str, Any]:
        """Return all that is needed to continue later, as a :class:`UnitState` of plain values."""
        arrays = {name: getattr(self, name).tolist() for name in ("recent", "count", "gap_sum")}
        return {**arrays, "waits": self.waits, "bets": bets}

    @classmethod
    def from_state(cls, stored: UnitState, *, of_all: Integers) -> Self:
        """Continue from a state, unless it contradicts the number of rows of all units in each bin."""
        new = cls(len(of_all))
        new.recent, new.waits = np.array(stored.recent, dtype=np.int64), stored.waits
        for name, values in (("count", stored.count), ("gap_sum", stored.gap_sum)):
            if len(values) != len(of_all):
                raise InputError(f"units.{name}: expected {len(of_all)} bins, got {len(values)}")
            setattr(new, name, np.array(values, dtype=getattr(new, name).dtype))
        if (new.count > of_all * stored.waits).any():
            raise InputError("units.count: expected rows of a unit that waits, got more")
        if not (abs(new.gap_sum) <= new.count * (1 + _SLACK)).all():
            raise InputError("units.gap_sum: expected sums of numbers from -1 to 1, got others")
        n, done = int(of_all.sum()), int(of_all.sum()) - new.n_waiting
        if (stored.bets != n and not stored.waits) or stored.bets > done or (stored.bets == 0) != (n == 0):
            raise InputError(f"units.bets: expected the number of units of {n} rows, got {stored.bets}")
        n_recent = min(stored.bets + (new.n_waiting > 0), MOST_RECENT)
        if len(set(stored.recent)) != n_recent or len(stored.recent) != n_recent:
            raise InputError(f"units.recent: expected {n_recent} different units, got others")
        return new

    @property
    def n_waiting(self) -> int:
        """Number of rows that have not been bet on because their unit is not complete."""
        return int(self.count.sum())

    def check(self, units: ArrayLike, n: int) -> Integers:
        """Return the unit of each of ``n`` rows; refuse a unit that returns after others."""
        numbers: Integers = check_units(units, n=n).cpu().numpy()
        rows = np.flatnonzero(self.begins(numbers))
        sequence = np.concatenate([self.recent, numbers[rows]])
        order = np.argsort(sequence, kind="stable")
        same = (np.diff(sequence[order]) == 0) & (np.diff(order) <= MOST_RECENT)
        if same.any():
            row = rows[order[1:][same].min() - len(self.recent)]
            raise InputError(
                "units: expected the rows of a unit to follow each other, got one that returns in row "
                f"{row}; sort the rows of each file by unit"
            )
        return numbers

    def read(self, numbers: Integers, x: Floats, bins: Integers) -> CompleteUnits:
        """Read a block of at least one row, and return the units that are complete now.

        Args:
            numbers: The unit of each row, checked.
            x: ``correct - confidence`` of each row.
            bins: The bin of each row.
        """
        begins = self.begins(numbers)
        of, starts = np.cumsum(begins), np.flatnonzero(begins)
        # Unit 0 is that of the row before the block, the last one that of its last row.
        last, used, at_once = int(of[-1]), np.ones(len(x), dtype=bool), -1
        if self.waits:
            used[of == 0] = self.n_waiting > 0
        else:
            self.waits = not begins.all()
            second = int(np.argmin(begins)) if self.waits else len(begins)
            # Up to this unit, the first row of a unit is a bet, and other rows are none.
            at_once = int(of[second]) if self.waits else last
            used[second:] = of[second:] > at_once
        count = np.zeros((last + 1, len(self.count)), dtype=np.int64)
        gap_sum = np.zeros(count.shape)
        count[0], gap_sum[0] = self.count, self.gap_sum
        np.add.at(count, (of[used], bins[used]), 1)
        # Added one by one, so that the sums do not depend on where blocks end.
        np.add.at(gap_sum, (of[used], bins[used]), x[used])
        ends = np.append(starts, len(x))
        ends[1 : at_once + 1] = starts[: max(at_once, 0)] + 1
        done = (np.arange(last + 1) < max(last, at_once + 1)) & (count.sum(axis=1) > 0)
        is_open = last > at_once
        self.count, self.gap_sum = (each[last] * is_open for each in (count, gap_sum))
        self.recent = np.append(self.recent, numbers[starts])[-MOST_RECENT:]
        return CompleteUnits(count[done], gap_sum[done], ends[done])

    def begins(self, numbers: Integers) -> npt.NDArray[np.bool_]:
        """Return whether each row is the first one of its unit."""
        before = np.append(self.recent[-1:], numbers[:-1])
        if len(self.recent) == 0:
            return np.append(True, numbers[1:] != before)
        return np.asarray(numbers != before)
