"""Rows that wait for their labels, and labels that wait for their rows, in a compact form of bounded size.

Each id takes 17 bytes as long as it is remembered, and a row that waits 36 more. A row is tested once its
label is known. The order is fixed by the order of files: labels that are new first, in the order in which
their rows were read; then new rows that have their label already.
"""

import glob
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from calibrant.data.joined import UNKNOWN, LabelFile, PartlyLabelled
from calibrant.data.predictions import Predictions
from calibrant.errors import FormatError, InputError
from calibrant.files import Count, between, matching
from calibrant.inputs import Integers
from calibrant.monitoring.windows import COLUMNS, ReadRows

#: The most ids that are remembered, 530 MB if all their rows wait.
MOST_IDS = 10_000_000
#: How long rows wait for their labels, in seconds: 30 days.
PATIENCE = 30 * 86_400.0

_ID = np.dtype([("id", "<i8"), ("seen", "<u4"), ("truth", "<i4"), ("read", "?")])
_ROW = np.dtype(
    [
        ("id", "<i8"),
        ("confidence", "<f8"),
        ("unit", "<i8"),
        ("predicted", "<i4"),
        ("group", "<i4"),
        ("seen", "<u4"),
    ]
)

_Table: TypeAlias = npt.NDArray[np.void]


@dataclass(frozen=True)
class WaitingState:
    """What :class:`Waiting` needs to continue later; the tables are in a file of their own.

    Attributes:
        k: Number of classes; None for confidences.
        class_names: Names of the classes, if they have some.
        has_units: Whether rows have units.
        last_unit: The unit of the row that was read last, which may have more rows.
        never: Number of rows whose label never came.
        strange: Number of labels whose row never came.
        repeated: Number of rows with an id that was read before.
        ids: Number of ids that are remembered.
        rows: Number of rows that wait.
        digest: SHA-256 of the tables.
    """

    k: Annotated[int, between(2, 10**6)] | None
    class_names: tuple[str, ...] | None
    has_units: bool
    last_unit: Annotated[int, between(-(2**63), 2**63 - 1)] | None
    never: Count
    strange: Count
    repeated: Count
    ids: Count
    rows: Count
    digest: Annotated[str, matching("[0-9a-f]{64}", "a SHA-256 of 64 hexadecimal digits")]


class Waiting:
    """Rows that wait for their labels by id, within a time of patience.

    A unit waits until all its rows have their labels, or have waited in vain; the unit of the row that was
    read last may have more rows, and waits for another unit to begin.

    Args:
        form: Predictions of the kind that is read, for the meaning of labels.
        has_units: Whether rows have units.

    Attributes:
        never: Number of rows whose label never came.
        strange: Number of labels whose row never came.
        repeated: Number of rows with an id that was read before, which do not count again.
    """

    def __init__(self, form: Predictions, *, has_units: bool) -> None:
        self.k, self.class_names, self.has_units = form.k, form.class_names, has_units
        self.never = self.strange = self.repeated = 0
        self._ids: _Table = np.empty(0, dtype=_ID)
        self._rows: _Table = np.empty(0, dtype=_ROW)
        self._last_unit: int | None = None

    def __len__(self) -> int:
        """Return the number of rows that wait."""
        return len(self._rows)

    @property
    def n_early(self) -> int:
        """Number of labels that wait for their row."""
        return int((~self._ids["read"]).sum())

    @property
    def oldest(self) -> float | None:
        """When the row that has waited longest was read, in seconds since 1970; None if none waits."""
        return float(self._rows["seen"].min()) if len(self._rows) else None

    @property
    def form(self) -> Predictions:
        """Predictions of the kind that is read."""
        return prototype(self.k, self.class_names)

    def check_form(self, rows: PartlyLabelled | Predictions) -> None:
        """Refuse rows of another kind than those before, or without ids."""
        outputs = rows.outputs if isinstance(rows, PartlyLabelled) else rows
        if (outputs.k, outputs.class_names) != (self.k, self.class_names):
            raise InputError(
                f"predictions: expected {self.form.described} as before, got {outputs.described} or other "
                "names; monitor these apart"
            )
        if outputs.ids is None:
            raise InputError("ids: expected one for each row, as before, got none; name their column")

    def expire(self, now: float, patience: float) -> None:
        """Count and forget what has waited longer than ``patience``, and ids that old."""
        late = (self._rows["seen"] < now - patience) & (self._truth(self._rows["id"]) == UNKNOWN)
        self.never += int(late.sum())
        self._rows = self._rows[~late]
        old = (self._ids["seen"] < now - patience) & ~np.isin(self._ids["id"], self._rows["id"])
        self.strange += int((old & ~self._ids["read"]).sum())
        self._ids = self._ids[~old]

    def add_labels(self, labels: LabelFile, now: float) -> None:
        """Add the labels of a file; one that is there already must be the same."""
        truth = labels.truth(self.form)
        place, has = self._find(labels.numbers)
        before = np.where(has, np.append(self._ids["truth"], UNKNOWN)[place], UNKNOWN)
        other = np.flatnonzero(has & (before != UNKNOWN) & (before != truth))
        if len(other):
            labels.refuse(int(other[0]), self._shown(int(before[other[0]])))
        self._ids["truth"][place[has]] = truth[has]
        self._insert(labels.numbers[~has], truth[~has], read=False, now=now)

    def add_rows(self, rows: ReadRows, groups: Integers, now: float) -> None:
        """Add rows with ids; those whose id was read before are counted and left out."""
        assert rows.ids is not None
        assert rows.truth is not None
        first = np.zeros(len(rows), dtype=bool)
        first[np.unique(rows.ids, return_index=True)[1]] = True
        place, has = self._find(rows.ids)
        read = np.append(self._ids["read"], False)
        new = first & ~(has & read[place])
        self.repeated += int((~new).sum())
        if rows.units is not None and len(rows):
            self._last_unit = int(rows.units[-1])
        self._agree(rows.truth, place, has & new)
        own = has & new & (rows.truth != UNKNOWN)
        self._ids["truth"][place[own]] = rows.truth[own]
        self._ids["read"][place[has & new]] = True
        self._insert(rows.ids[new & ~has], rows.truth[new & ~has], read=True, now=now)
        self._append(rows.take(new), groups[new], now)

    def release(self) -> tuple[ReadRows, Integers]:
        """Return the rows whose labels are known, and their groups; forget them but for their ids."""
        truth = self._truth(self._rows["id"])
        ready = truth != UNKNOWN
        if self.has_units:
            units = self._rows["unit"]
            ready = ~np.isin(units, units[~ready])
            if self._last_unit is not None:
                ready &= units != self._last_unit
        order = np.flatnonzero(ready)
        if self.has_units:  # rows of a unit follow each other, and units have the order of their first rows
            _, start, place = np.unique(units[order], return_index=True, return_inverse=True)
            order = order[np.argsort(start[place], kind="stable")]
        rows, truth, self._rows = self._rows[order], truth[order], self._rows[~ready]
        columns = np.full((len(COLUMNS), len(rows)), np.nan)
        columns[0], columns[1] = rows["confidence"], truth == rows["predicted"]
        own = rows["unit"].astype(np.int64) if self.has_units else None
        return ReadRows(columns, own), rows["group"].astype(np.int64)

    def check_size(self) -> None:
        """Forget tested ids if there are too many, the oldest first; refuse too many that wait."""
        surplus = len(self._ids) - MOST_IDS
        if surplus <= 0:
            return
        tested = np.flatnonzero(
            self._ids["read"] & (self._ids["truth"] != UNKNOWN) & ~np.isin(self._ids["id"], self._rows["id"])
        )
        if len(tested) < surplus:
            raise InputError(
                f"labels: expected at most {MOST_IDS:,} rows and labels that wait for each other, got more; "
                "name fewer files at a time, or a shorter patience"
            )
        oldest = tested[np.argsort(self._ids["seen"][tested], kind="stable")[:surplus]]
        self._ids = np.delete(self._ids, oldest)

    def tables(self) -> bytes:
        """Return the tables as bytes, for a file of their own."""
        return self._ids.tobytes() + self._rows.tobytes()

    def state(self, tables: bytes) -> WaitingState:
        """Return all but the tables that is needed to continue later, and their digest."""
        return WaitingState(
            k=self.k,
            class_names=self.class_names,
            has_units=self.has_units,
            last_unit=self._last_unit,
            never=self.never,
            strange=self.strange,
            repeated=self.repeated,
            ids=len(self._ids),
            rows=len(self._rows),
            digest=hashlib.sha256(tables).hexdigest(),
        )

    @classmethod
    def from_state(cls, stored: WaitingState, tables: bytes) -> Self:
        """Continue from a state and its tables, unless these were changed."""
        if hashlib.sha256(tables).hexdigest() != stored.digest:
            raise FormatError(
                "late: expected the rows that wait as they were written, got others; take the file that was "
                "saved together with the state, or begin a new state"
            )
        end = stored.ids * _ID.itemsize
        if len(tables) != end + stored.rows * _ROW.itemsize:
            raise FormatError(f"late: expected {stored.ids:,} ids and {stored.rows:,} rows, got others")
        if stored.class_names is not None and len(stored.class_names) != stored.k:
            raise FormatError(f"late.class_names: expected {stored.k}, got {len(stored.class_names)}")
        new = cls(prototype(stored.k, stored.class_names), has_units=stored.has_units)
        new.never, new.strange, new.repeated = stored.never, stored.strange, stored.repeated
        new._last_unit = stored.last_unit
        new._ids = np.frombuffer(tables[:end], dtype=_ID).copy()
        new._rows = np.frombuffer(tables[end:], dtype=_ROW).copy()
        return new

    def _agree(self, truth: Integers, place: Integers, has: npt.NDArray[np.bool_]) -> None:
        """Refuse a label beside a prediction that differs from the one that came before."""
        theirs = np.append(self._ids["truth"], UNKNOWN)[place]
        other = np.flatnonzero(has & (truth != UNKNOWN) & (theirs != UNKNOWN) & (truth != theirs))
        if len(other):
            own, came = (self._shown(int(each[other[0]])) for each in (truth, theirs))
            raise InputError(
                f"labels: expected the label {came} that came before, got {own} in row {other[0]}; keep the "
                "one that is right"
            )

    def _shown(self, truth: int) -> str:
        return str(truth) if self.class_names is None else self.class_names[truth]

    def _append(self, rows: ReadRows, groups: Integers, now: float) -> None:
        added = np.empty(len(rows), dtype=_ROW)
        added["id"], added["group"], added["seen"] = rows.ids, groups, int(now)
        added["confidence"], added["predicted"] = rows.columns[0], rows.predicted
        added["unit"] = 0 if rows.units is None else rows.units
        self._rows = np.concatenate([self._rows, added])

    def _insert(self, ids: Integers, truth: Any, *, read: bool, now: float) -> None:  # noqa: ANN401  # integers
        added = np.empty(len(ids), dtype=_ID)
        added["id"], added["truth"], added["read"], added["seen"] = ids, truth, read, int(now)
        every = np.concatenate([self._ids, added])
        self._ids = every[np.argsort(every["id"], kind="stable")]

    def _find(self, ids: Integers) -> tuple[Integers, npt.NDArray[np.bool_]]:
        """Return the place of each id in the table, and whether it is there."""
        known = np.ascontiguousarray(self._ids["id"])
        if not len(known):
            return np.zeros(len(ids), dtype=np.int64), np.zeros(len(ids), dtype=bool)
        place = np.searchsorted(known, ids).clip(max=len(known) - 1)
        return place, known[place] == ids

    def _truth(self, ids: Integers) -> Integers:
        """Return the truth of each id of a row."""
        place, _ = self._find(ids)
        return self._ids["truth"][place].astype(np.int64) if len(ids) else np.empty(0, dtype=np.int64)


def tables_path(state: str | os.PathLike[str], late: WaitingState) -> Path:
    """Return the file of the tables that belong to a state."""
    return Path(f"{os.fspath(state)}.waiting-{late.digest[:16]}")


def read_tables(state: str | os.PathLike[str], late: WaitingState) -> bytes:
    """Read the tables that belong to a state."""
    path = tables_path(state, late)
    if not path.is_file():
        raise FormatError(
            f"late: expected the rows that wait in {path.name} beside the state, got no such file; put it "
            "back, or begin a new state"
        )
    return path.read_bytes()


def remove_tables(state: str | os.PathLike[str], late: WaitingState | None) -> None:
    """Remove the tables of earlier states."""
    path = Path(state)
    kept = None if late is None else tables_path(path, late).name
    for file in path.parent.glob(f"{glob.escape(path.name)}.waiting-*"):
        if file.name != kept:
            file.unlink(missing_ok=True)


def prototype(k: int | None, class_names: Sequence[str] | None) -> Predictions:
    """Return predictions of a kind: of ``k`` classes, or confidences."""
    if k is None:
        return Predictions(confidence=[0.5])
    return Predictions(probs=np.full((1, k), 1 / k), class_names=class_names)
