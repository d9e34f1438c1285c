"""The command ``calibrant monitor``."""

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from calibrant.cli import monitor_tables
from calibrant.cli.progress import progress_bar
from calibrant.data import Predictions, load_predictions
from calibrant.data.files import FORMATS
from calibrant.errors import FormatError, InputError
from calibrant.evaluation.monitoring import Monitoring, Window

_IN_ALARM = 3
_DEFAULTS: dict[str, Any] = {"window": 1000, "alpha": 0.05, "tolerance": 0.0, "bins": 10}


def monitor(
    reference: Annotated[
        Path, typer.Argument(metavar="REFERENCE", help="Labelled predictions of when all was well.")
    ],
    stream: Annotated[
        list[Path],
        typer.Argument(
            metavar="STREAM...",
            help="Labelled predictions since, in the order of time; a folder is read in the order of names.",
        ),
    ],
    window: Annotated[
        int | None,
        typer.Option("--window", help="Number of rows that are measured together.", show_default="1000"),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option("--alpha", help="Chance of a false alarm, ever, at most.", show_default="0.05"),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance", help="Change of accuracy - confidence that shall not count.", show_default="0.0"
        ),
    ] = None,
    bins: Annotated[
        int | None, typer.Option("--bins", help="Number of bins of confidence.", show_default="10")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            "--state", help="Go on from this file if it exists; keep the state in it.", metavar="FILE"
        ),
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Forget the alarm in --state and begin the test anew.")
    ] = False,
    events: Annotated[
        Path | None,
        typer.Option("--events", help="Append one JSON object per alarm, a line each.", metavar="FILE.jsonl"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, all fractions.")] = False,
) -> None:
    """Watch a classifier over time: is it still as calibrated as on the reference?

    Look as often as you like: a model that stays as calibrated raises an alarm with a chance of --alpha at
    most over its whole life. Exit code 3 says that there was an alarm, 0 that there was none, 2 that nothing
    was kept, because something is wrong with a file or an option.

    Example: calibrant monitor test.npz monday.npz tuesday.npz --state model.json --events alarms.jsonl
    """
    for target in (state, events):
        _check_folder(target)
    if reset and (state is None or not state.exists()):
        raise InputError("--reset: expected --state with the file of an earlier run, got none")
    given = {"window": window, "alpha": alpha, "tolerance": tolerance, "bins": bins}
    monitoring = _begin(load_predictions(reference), state, given)
    if reset:
        monitoring.reset()
    # Nothing is written before all files are read: a run that is refused can be repeated as it is.
    windows, raised = _read(monitoring, _files(stream), visible=not as_json)
    # The event comes first: whoever is killed in between may repeat it, but never loses it.
    if events is not None and raised is not None:
        _append(events, raised)
    if state is not None:
        monitoring.save(state)
    if as_json:
        _print_json(monitoring, windows, raised)
    else:
        _print(monitoring, windows, kept=state is not None)
    if monitoring.alarm is not None:
        raise typer.Exit(_IN_ALARM)


def _begin(reference: Predictions, state: Path | None, given: dict[str, Any]) -> Monitoring:
    """Return a new monitoring, or one that goes on from a state with the options it was begun with."""
    if state is None or not state.exists():
        chosen = {name: _DEFAULTS[name] if value is None else value for name, value in given.items()}
        n_bins = chosen.pop("bins")
        return Monitoring(reference, **chosen, n_bins=n_bins)
    old = Monitoring.load(state, reference)
    kept = {
        "window": old.window,
        "alpha": old.monitor.alpha,
        "tolerance": old.monitor.reference.tolerance,
        "bins": old.n_bins,
    }
    for name, value in given.items():
        if value is not None and value != kept[name]:
            raise InputError(
                f"--{name}: expected {kept[name]}, with which {state.name} was begun, got {value}; "
                "leave it out, or begin a new state"
            )
    return old


def _read(
    monitoring: Monitoring, files: Sequence[Path], *, visible: bool
) -> tuple[list[Window], dict[str, Any] | None]:
    """Read the files one by one; return their windows, and the event if an alarm was raised by them."""
    windows: list[Window] = []
    raised = None
    with progress_bar(visible=visible) as progress:
        for done, path in enumerate(files):
            progress(path.name, done, len(files))
            before = monitoring.alarm
            windows += monitoring.update(load_predictions(path))
            if before is None and monitoring.alarm is not None:
                now = datetime.now(UTC).isoformat(timespec="seconds")
                raised = monitor_tables.event(monitoring.alarm, monitoring, time=now, file=str(path))
    return windows, raised


def _files(stream: Sequence[Path]) -> list[Path]:
    files: list[Path] = []
    for path in stream:
        if not path.is_dir():
            files.append(path)
            continue
        inside = sorted(
            file
            for file in path.iterdir()
            if file.suffix.lower() in FORMATS and file.is_file() and not file.name.startswith(".")
        )
        if not inside:
            raise FormatError(
                f"{path.name}: expected a folder with files of predictions ({', '.join(FORMATS)}), got none"
            )
        files += inside
    return files


def _check_folder(target: Path | None) -> None:
    """Refuse a place that cannot be written to before hours of rows are read."""
    if target is not None and (target.is_dir() or not target.parent.is_dir()):
        raise InputError(f"{target}: expected a file in a folder that exists, got none; create the folder")


def _append(path: Path, raised: dict[str, Any]) -> None:
    """Append a line as a whole, and start a new one if the last is torn."""
    line = json.dumps(raised, allow_nan=False).encode() + b"\n"
    try:
        with path.open("ab+", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
                line = line if file.read(1) == b"\n" else b"\n" + line
            file.write(line)
            os.fsync(file.fileno())
    except OSError as error:
        raise InputError(f"{path}: expected a file to append events to, got: {error}") from error


def _print(monitoring: Monitoring, windows: Sequence[Window], *, kept: bool) -> None:
    console = Console()
    if windows:
        console.print(monitor_tables.windows(windows))
    if waiting := monitoring.n % monitoring.window:
        what = "wait in the state for the next run" if kept else "are tested but not measured"
        console.print(f"[dim]{waiting:,} rows do not fill a window; they {what}[/dim]", highlight=False)
    console.print(monitor_tables.conclusion(monitoring), highlight=False, soft_wrap=True)


def _print_json(monitoring: Monitoring, windows: Sequence[Window], raised: dict[str, Any] | None) -> None:
    alarm = monitoring.alarm
    answer = {
        "n": monitoring.n,
        "waiting": monitoring.n % monitoring.window,
        "windows": [monitor_tables.window_json(window) for window in windows],
        "log_e_value": monitoring.monitor.log_e_value,
        "threshold": monitoring.monitor.threshold,
        "alarm": alarm is not None,
        "alarm_at": None if alarm is None else alarm.row,
        "since": None if alarm is None else alarm.since,
        "conclusion": monitor_tables.conclusion(monitoring),
        "events": [] if raised is None else [raised],
    }
    typer.echo(json.dumps(answer, allow_nan=False))
