"""What a run of ``calibrant monitor`` shows: a table that may grow while it reads, or one JSON object."""

import json
from collections.abc import Sequence
from tempfile import SpooledTemporaryFile
from typing import Any, Self

import typer
from rich.console import Console

from calibrant.cli.terminal import monitor_tables
from calibrant.monitoring.monitor import Monitoring
from calibrant.monitoring.window import Window

# Windows as JSON, in bytes, that wait in memory; more of them wait on disk.
_IN_MEMORY = 1 << 24


class TableReport:
    """A table for people, shown in parts if it is long.

    Args:
        kept: Whether a state keeps the rows that do not fill a window.
    """

    def __init__(self, *, kept: bool) -> None:
        self._console = Console()
        self._kept = kept
        self._waiting: list[Window] = []
        self._is_first = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Hold nothing."""

    def add(self, windows: Sequence[Window]) -> None:
        """Take windows."""
        self._waiting += windows

    def show(self) -> None:
        """Print the windows that came since the last time."""
        if self._waiting:
            self._console.print(monitor_tables.windows(self._waiting, header=self._is_first))
            self._console.file.flush()
            self._waiting, self._is_first = [], False

    def finish(self, monitoring: Monitoring, _raised: dict[str, Any] | None) -> None:
        """Print what is left, and the conclusion."""
        self.show()
        if waiting := monitoring.n % monitoring.window:
            what = "wait in the state for the next run" if self._kept else "are tested but not measured"
            note = f"[dim]{waiting:,} rows do not fill a window; they {what}[/dim]"
            self._console.print(note, highlight=False)
        self._console.print(monitor_tables.conclusion(monitoring), highlight=False, soft_wrap=True)


class JsonReport:
    """One JSON object for programs, written at the end, in memory that does not grow with the windows."""

    def __init__(self) -> None:
        self._windows = SpooledTemporaryFile(_IN_MEMORY, mode="w+", encoding="utf-8")  # noqa: SIM115  # closed by __exit__
        self._n = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._windows.close()

    def add(self, windows: Sequence[Window]) -> None:
        """Take windows."""
        for window in windows:
            self._windows.write(", " if self._n else "")
            self._windows.write(json.dumps(monitor_tables.window_json(window), allow_nan=False))
            self._n += 1

    def show(self) -> None:
        """Show nothing: an object is shown as a whole."""

    def finish(self, monitoring: Monitoring, raised: dict[str, Any] | None) -> None:
        """Print the object."""
        alarm = monitoring.alarm
        first = {"n": monitoring.n, "waiting": monitoring.n % monitoring.window}
        rest = {
            "log_e_value": monitoring.monitor.log_e_value,
            "threshold": monitoring.monitor.threshold,
            "alarm": alarm is not None,
            "alarm_at": None if alarm is None else alarm.row,
            "since": None if alarm is None else alarm.since,
            "conclusion": monitor_tables.conclusion(monitoring),
            "events": [] if raised is None else [raised],
        }
        typer.echo(json.dumps(first)[:-1] + ', "windows": [', nl=False)
        self._windows.seek(0)
        while part := self._windows.read(1 << 20):
            typer.echo(part, nl=False)
        typer.echo("], " + json.dumps(rest, allow_nan=False)[1:])
