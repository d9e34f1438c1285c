"""The command ``calibrant monitor``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from calibrant.cli.monitor_run import Run, check_target, exit_code, steps_of, warn
from calibrant.cli.streams import is_streamed
from calibrant.cli.terminal.monitor_report import JsonReport, TableReport
from calibrant.data.files import load_predictions
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.monitoring.files import gather
from calibrant.monitoring.monitor import Monitoring

_DEFAULTS: dict[str, Any] = {"window": 1000, "alpha": 0.05, "tolerance": 0.0, "bins": 10}


def monitor(
    reference: Annotated[
        str, typer.Argument(metavar="REFERENCE", help="Labelled predictions of when all was well.")
    ],
    stream: Annotated[
        list[str],
        typer.Argument(
            metavar="STREAM...",
            help="Labelled predictions since, in the order of time: files; or folders, patterns or addresses "
            "of Parquet files, which are read in the order of their names.",
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
    most over its whole life. Exit code 3 says that there was an alarm, 0 that there was none, 2 that
    something is wrong with a file or an option.

    Example: calibrant monitor test.npz monday.npz tuesday.npz --state model.json --events alarms.jsonl

    Example: calibrant monitor test.parquet predictions/ --state model.json
    """
    for target, name in ((state, "--state"), (events, "--events")):
        check_target(target, name)
    if reset and (state is None or not state.exists()):
        raise InputError("--reset: expected --state with the file of an earlier run, got none")
    given = {"window": window, "alpha": alpha, "tolerance": tolerance, "bins": bins}
    before = gather(reference) if _is_stream(reference) else load_predictions(reference)
    monitoring = _begin(before, state, given)
    if reset:
        monitoring.reset()
    stepwise = all(_is_stream(argument) for argument in stream)
    with JsonReport() if as_json else TableReport(kept=state is not None) as report:
        run = Run(monitoring, report, state, events, stepwise)
        steps = steps_of(monitoring, stream, is_stream=_is_stream, tell=warn)
        refusal = run.read(steps, visible=not as_json)
        run.keep()
        report.finish(monitoring, run.raised)
    if refusal is not None:
        raise refusal
    raise typer.Exit(exit_code(run))


def _is_stream(argument: str) -> bool:
    return is_streamed(argument, asked=False)


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
