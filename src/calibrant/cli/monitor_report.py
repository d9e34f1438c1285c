"""What ``calibrant monitor`` prints: a table that may grow while it reads, or one JSON object."""

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from tempfile import SpooledTemporaryFile
from typing import Any

import typer
from rich.table import Table

from calibrant.inference.intervals import Interval
from calibrant.monitoring.alarm import evidence
from calibrant.monitoring.monitor import Monitoring
from calibrant.monitoring.waiting import Waiting
from calibrant.monitoring.windows import Window
from calibrant.show import table as show_table
from calibrant.show.numbers import Cell, points, span
from calibrant.show.terminal import Console, line

# Bytes of windows as JSON that are buffered in memory; more are buffered on disk.
_IN_MEMORY = 1 << 24
# Minimum widths, so that the columns of a table that is printed in parts line up.
_COLUMNS = {
    "rows": 14,
    "n": 5,
    "accuracy\n%": 8,
    "confidence\n%": 10,
    "ECE\n% (95 % interval)": 22,
    "e-value": 7,
}


class TableReport(AbstractContextManager["TableReport"]):
    """A table for people, printed in parts if it is long.

    Args:
        kept: Whether a state saves the rows of an incomplete window.
    """

    def __init__(self, *, kept: bool) -> None:
        self._console = Console()
        self._kept = kept
        self._waiting: list[Window] = []
        self._is_first = True

    def __exit__(self, *_: object) -> None:
        """Do nothing: there is nothing to close."""

    def add(self, windows: Sequence[Window]) -> None:
        """Add windows."""
        self._waiting += windows

    def show(self) -> None:
        """Print the windows that were added since the last time."""
        if self._waiting:
            self._console.print(_window_table(self._waiting, header=self._is_first))
            self._console.file.flush()
            self._waiting, self._is_first = [], False

    def finish(self, monitoring: Monitoring, _raised: dict[str, Any] | None) -> None:
        """Print the rest of the table, and the conclusion."""
        self.show()
        if waiting := monitoring.waiting:
            what = "wait in the state for the next run" if self._kept else "are tested but not measured"
            note = f"[dim]{waiting:,} rows do not fill a window; they {what}[/dim]"
            self._console.print(note, highlight=False)
        for sentence in _notes(monitoring):
            self._console.say(sentence, style="dim")
        if monitoring.groups:
            self._console.show(_group_table(monitoring))
        self._console.print(line(monitoring.conclusion()), soft_wrap=True)


class JsonReport(AbstractContextManager["JsonReport"]):
    """One JSON object for programs, printed at the end, in memory that does not grow with the windows."""

    def __init__(self) -> None:
        self._windows = SpooledTemporaryFile(_IN_MEMORY, mode="w+", encoding="utf-8")  # noqa: SIM115  # closed by __exit__
        self._n = 0

    def __exit__(self, *_: object) -> None:
        self._windows.close()

    def add(self, windows: Sequence[Window]) -> None:
        """Add windows."""
        for window in windows:
            self._windows.write(", " if self._n else "")
            self._windows.write(json.dumps(_window_json(window), allow_nan=False))
            self._n += 1

    def show(self) -> None:
        """Print nothing: an object is printed as a whole."""

    def finish(self, monitoring: Monitoring, raised: dict[str, Any] | None) -> None:
        """Print the object."""
        alarm = monitoring.alarm
        first: dict[str, Any] = {"n": monitoring.n, "waiting": monitoring.waiting}
        first |= {} if monitoring.n_units is None else {"n_units": monitoring.n_units}
        rest = {
            "log_e_value": monitoring.monitor.log_e_value,
            "threshold": monitoring.monitor.threshold,
            "alarm": alarm is not None,
            "alarm_at": None if alarm is None else alarm.row,
            "since": None if alarm is None else alarm.since,
            "conclusion": monitoring.conclusion(),
            "events": [] if raised is None else [raised],
        }
        first |= {"unlabelled": monitoring.unlabelled} if monitoring.unlabelled else {}
        first |= {} if monitoring.late is None else {"labels": _late_json(monitoring.late)}
        rest |= {} if monitoring.by is None else {"by": monitoring.by, "groups": _groups_json(monitoring)}
        typer.echo(json.dumps(first)[:-1] + ', "windows": [', nl=False)
        self._windows.seek(0)
        while part := self._windows.read(1 << 20):
            typer.echo(part, nl=False)
        typer.echo("], " + json.dumps(rest, allow_nan=False)[1:])


def _notes(monitoring: Monitoring) -> Iterator[str]:
    """Yield what to know about rows that are not tested."""
    if monitoring.unlabelled:
        yield f"{monitoring.unlabelled:,} rows without a label are left out"
    if (late := monitoring.late) is not None:
        if late.oldest is not None:
            since = datetime.fromtimestamp(late.oldest, UTC).strftime("%Y-%m-%d %H:%M UTC")
            yield f"{len(late):,} rows wait for their labels, the first of them since {since}"
        counts = {
            "rows never got a label and are left out": late.never,
            "rows have an id that was read before and are left out": late.repeated,
            "labels wait for their rows": late.n_early,
            "labels never got a row": late.strange,
        }
        yield from (f"{n:,} {what}" for what, n in counts.items() if n)
    if monitoring.others:
        yield f"{monitoring.others:,} rows are of groups that the reference does not have"


def _late_json(late: Waiting) -> dict[str, Any]:
    return {
        "waiting_rows": len(late),
        "oldest": late.oldest,
        "never": late.never,
        "repeated": late.repeated,
        "waiting_labels": late.n_early,
        "without_row": late.strange,
    }


def _group_table(monitoring: Monitoring) -> show_table.Table:
    """Return a table of the groups of rows, those that had the most evidence first."""
    column = show_table.Column
    columns = [
        column(monitoring.by or "", align="left"),
        column("rows"),
        column("gap now", "%"),
        column("reference", "%"),
        column("e-value"),
        column("needed"),
        column("verdict", align="left"),
    ]
    rows = []
    for test in sorted(monitoring.groups, key=lambda test: -test.monitor.log_peak):
        first = test.monitor.diagnosis()[0]  # of all confidences
        rows.append(
            (
                test.name,
                first.n,
                points(first.gap) if first.n else "",
                points(first.reference_gap),
                evidence(test.monitor.log_e_value),
                f"{test.monitor.threshold:,.0f}",
                Cell(True, "alarm", "bad") if test.alarm is not None else "stable",
            )
        )
    return show_table.Table.of(columns, rows, dense=True)


def _groups_json(monitoring: Monitoring) -> list[dict[str, Any]]:
    """Return the groups of rows as plain values."""
    found = []
    for test in monitoring.groups:
        first, alarm = test.monitor.diagnosis()[0], test.alarm
        found.append(
            {
                "group": test.name,
                "n": first.n,
                "gap": first.gap if first.n else None,
                "reference_gap": first.reference_gap,
                "log_e_value": test.monitor.log_e_value,
                "threshold": test.monitor.threshold,
                "alarm": alarm is not None,
                "alarm_at": None if alarm is None else alarm.row,
                "since": None if alarm is None else alarm.since,
            }
        )
    return found


def _window_table(rows: Sequence[Window], *, header: bool) -> Table:
    """Return a table of windows; only its first part has a header."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1, 0, 0), show_header=header)
    for column, width in _COLUMNS.items():
        table.add_column(column, justify="right", no_wrap=True, min_width=width)
        if column == "n" and rows[0].n_units is not None:
            table.add_column("units", justify="right", no_wrap=True, min_width=5)
    table.add_column("verdict", no_wrap=True)
    for row in rows:
        units = () if row.n_units is None else (f"{row.n_units:,}",)
        table.add_row(
            f"{row.first:,} to {row.last:,}",
            f"{row.n:,}",
            *units,
            points(row.accuracy.value).text,
            points(row.mean_confidence.value).text,
            f"{points(row.ece.value)} ({span(row.ece.low, row.ece.high, points)})",
            evidence(row.log_e_value),
            "[bold red]alarm[/bold red]" if row.alarm else "stable",
        )
    return table


def _window_json(row: Window) -> dict[str, Any]:
    """Return a window as plain values; intervals have their own key, unknown values are null."""
    names = ("accuracy", "mean_confidence", "ece", "brier", "nll")
    measures: dict[str, Interval | None] = {name: getattr(row, name) for name in names}
    known = {name: value for name, value in measures.items() if value is not None}
    return {
        "first": row.first,
        "last": row.last,
        "n": row.n,
        **({} if row.n_units is None else {"n_units": row.n_units}),
        "metrics": {name: known[name].value if name in known else None for name in names},
        "intervals": {name: [value.low, value.high] for name, value in known.items()},
        "log_e_value": row.log_e_value,
        "alarm": row.alarm,
    }
