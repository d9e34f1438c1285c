"""The file of a monitoring: what every value in it must be, and a digest that notices any change."""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np

from calibrant.errors import FormatError, InputError
from calibrant.files import Count, at_least, between, matching, parse_json, read_dataclass, read_text, reading
from calibrant.inputs import Floats, Integers
from calibrant.monitoring.alarm import Alarm
from calibrant.monitoring.by_group import GroupState
from calibrant.monitoring.reference import MOST_BINS
from calibrant.monitoring.waiting import WaitingState
from calibrant.monitoring.windows import COLUMNS, Window

_FORMAT: Literal["calibrant-monitor"] = "calibrant-monitor"
_VERSION: Literal[5] = 5
# States of earlier versions have no digest.
_WITH_DIGEST = 3
_UNITS = "units"
# The highest value of each column; probabilities of a row may add up to slightly more than 1.
_HIGHEST = {"confidence": 1.0, "correct": 1.0, "nll": math.inf, "brier": 2.01}
# JSON has no numbers for what is infinite or unknown.
_NO_NUMBERS = {"inf": math.inf, "nan": math.nan}

_Hash: TypeAlias = Annotated[str, matching("[0-9a-f]{64}", "a SHA-256 of 64 hexadecimal digits")]


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

    stream: Annotated[str, matching("[0-9a-f]{16}", "16 hexadecimal digits")]
    rows: Count
    total: Count
    check: Annotated[int, between(0, 2**32 - 1)]
    mark: str

    def __post_init__(self) -> None:
        if self.rows > self.total:
            raise InputError(f"rows: expected at most the total of {self.total}, got {self.rows}")


@dataclass(frozen=True)
class MonitoringState:
    """All that a monitoring needs to continue later.

    Attributes:
        reference: Digest of the reference.
        window: Number of rows of a window.
        n_bins: Number of bins of the reference and of the ECE.
        tested_from: Number of rows before the current test.
        units_before: Number of their units, if they have some.
        weakest: Row at the end of a window at which the evidence was weakest, and that evidence.
        alarm: The alarm, if there is one.
        pending: The rows of an incomplete window, by column; with their units, if rows have some.
        files: How many rows of each file were read.
        monitor: The state of the :class:`~calibrant.monitoring.drift.DriftMonitor`.
        latest: The last complete window, if there is one.
        by: What the groups of rows are, if these are tested.
        groups: The tests of groups of rows.
        others: Number of rows of groups that the reference does not have.
        unlabelled: Number of rows that were left out because they have no label.
        late: Rows that wait for their labels, if labels come in files of their own.
    """

    reference: _Hash
    window: Annotated[int, at_least(2)]
    n_bins: Annotated[int, between(1, MOST_BINS)]
    tested_from: Count
    weakest: tuple[Count, float]
    alarm: Alarm | None
    pending: Mapping[str, tuple[Any, ...]]
    files: dict[str, SeenFile]
    monitor: Mapping[str, Any]
    latest: Window | None = None
    units_before: Count = 0
    by: str | None = None
    groups: tuple[GroupState, ...] = ()
    others: Count = 0
    unlabelled: Count = 0
    late: WaitingState | None = None
    format: Literal["calibrant-monitor"] = _FORMAT
    version: Literal[1, 2, 3, 4, 5] = _VERSION


def pack_rows(rows: Floats, units: Integers | None) -> dict[str, tuple[Any, ...]]:
    """Return rows in the form that ``columns_of`` returns, and units, as values of JSON, by column."""
    columns = {
        name: tuple(term if math.isfinite(term) else str(term) for term in terms.tolist())
        for name, terms in zip(COLUMNS, rows, strict=True)
    }
    return columns if units is None else {**columns, _UNITS: tuple(units.tolist())}


def unpack_rows(
    packed: Mapping[str, tuple[Any, ...]], *, n: int, with_units: bool
) -> tuple[Floats, Integers]:
    """Return the ``n`` rows of :func:`pack_rows` and their units; values that no row has are refused."""
    expected = [*COLUMNS, _UNITS] if with_units else COLUMNS
    if set(packed) != set(expected):
        raise FormatError(f"pending: expected {', '.join(expected)}, got {', '.join(packed) or 'nothing'}")
    rows = np.stack([_terms(packed[name], name, n) for name in COLUMNS])
    _, correct, nll, brier = rows
    if ((correct != 0) & (correct != 1)).any():
        raise FormatError("pending.correct: expected 0 and 1, got other numbers")
    if (np.isnan(nll) != np.isnan(brier)).any():
        raise FormatError("pending.nll: expected a number where brier has one, got another row without")
    units = packed[_UNITS] if with_units else ()
    if (
        not all(type(unit) is int and -(2**63) <= unit < 2**63 for unit in units)
        or len(units) != n * with_units
    ):
        raise FormatError(f"pending.{_UNITS}: expected an integer for each of {n:,} rows, got others")
    return rows, np.array(units, dtype=np.int64)


def _terms(terms: tuple[Any, ...], name: str, n: int) -> Floats:
    where = f"pending.{name}"
    if len(terms) != n:
        raise FormatError(f"{where}: expected the {n:,} rows of an incomplete window, got {len(terms):,}")
    values = [_NO_NUMBERS.get(term) if isinstance(term, str) else term for term in terms]
    if not all(type(value) in (float, int) for value in values):
        raise FormatError(f"{where}: expected numbers, got something else")
    column = np.array(values, dtype=np.float64)
    unknown = np.isnan(column) if name in ("nll", "brier") else np.zeros(n, dtype=bool)
    if not (unknown | ((column >= 0) & (column <= _HIGHEST[name]))).all():
        raise FormatError(f"{where}: expected numbers from 0 to {_HIGHEST[name]:g}, got others")
    return column


def state_text(state: Mapping[str, Any]) -> str:
    """Return a state as JSON with its digest at the end."""
    text = json.dumps(state, allow_nan=False, sort_keys=True)
    return f'{text[:-1]}, "digest": "{_digest(text)}"}}'


def read_state(path: str | os.PathLike[str]) -> tuple[MonitoringState, bool]:
    """Read a state of this version or of an earlier one, and whether it is unchanged since it was written.

    States of version 1 have no files, and those of version 2 no digest: they count as unchanged. Those of
    version 3 have no units, and those of version 4 neither groups nor rows that wait.
    """
    path = Path(path)
    try:
        stored = parse_json(read_text(path))
    except (OSError, ValueError) as error:
        raise FormatError(f"{path.name}: expected the state of a monitor, got no JSON ({error})") from error
    if not isinstance(stored, dict) or stored.get("format") != _FORMAT:
        raise FormatError(f"{path.name}: expected the state of a monitor, got other JSON; name another file")
    version = stored.get("version")
    if version not in (1, 2, 3, 4, _VERSION) or isinstance(version, (bool, float)):
        raise FormatError(
            f"{path.name}: expected a state of version 1 to {_VERSION}, got {version!r}; begin a new one"
        )
    digest = stored.pop("digest", None) if version >= _WITH_DIGEST else None
    with reading(path.name, "the state of a monitor"):
        earlier: dict[str, Any] = {"files": {}} if version == 1 else {}
        state = read_dataclass(MonitoringState, {**earlier, **stored})
    whole = json.dumps(stored, sort_keys=True)
    return state, version < _WITH_DIGEST or digest == _digest(whole)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
