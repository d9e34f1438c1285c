"""The command ``calibrant monitor``."""

import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.columns import read, with_columns
from calibrant.cli.printing import say
from calibrant.errors import InputError
from calibrant.files import is_there
from calibrant.progress import progress_bar

if TYPE_CHECKING:
    from calibrant.data.columns import Columns
    from calibrant.data.predictions import Predictions
    from calibrant.monitoring.monitor import Monitoring

_DEFAULTS: dict[str, Any] = {"window": 1000, "alpha": 0.05, "tolerance": 0.0}


def _option(name: str, meaning: str, metavar: str | None = None) -> Any:  # noqa: ANN401  # as typer.Option
    """Return an option that shows its default in the help; None in the function means "not given".

    A state stores these options, so an option that is not given has the stored value.
    """
    default = str(_DEFAULTS[name]) if name in _DEFAULTS else False
    return typer.Option(f"--{name}", help=meaning, metavar=metavar, show_default=default)


@partial(with_columns, without=("score",))
def monitor(
    reference: Annotated[
        str, typer.Argument(metavar="REFERENCE", help="Labelled predictions from before deployment.")
    ],
    stream: Annotated[
        list[str],
        typer.Argument(
            metavar="STREAM...",
            help="Labelled predictions since then, in order of time: files, folders, patterns, or "
            "addresses of Parquet files. Files of a folder, pattern or address are read in the order "
            "of their names.",
        ),
    ],
    window: Annotated[int | None, _option("window", "Number of rows that are measured together.")] = None,
    alpha: Annotated[
        float | None, _option("alpha", "Upper bound on the probability of a false alarm over all runs.")
    ] = None,
    tolerance: Annotated[
        float | None, _option("tolerance", "Change of (accuracy - confidence) to ignore.")
    ] = None,
    state: Annotated[
        Path | None, _option("state", "Continue from this file if it exists; save the state in it.", "FILE")
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Forget the alarm in --state and begin a new test.")
    ] = False,
    events: Annotated[
        Path | None, _option("events", "Append one line of JSON for each alarm.", "FILE.jsonl")
    ] = None,
    labels: Annotated[
        str | None,
        _option(
            "labels",
            "Labels that come later, by --id: a file, a folder or a pattern. Rows wait for theirs.",
            "FILE|FOLDER",
        ),
    ] = None,
    patience: Annotated[
        str, typer.Option("--patience", help="How long rows wait for --labels, as 30d or 12h.")
    ] = "30d",
    prometheus: Annotated[
        Path | None,
        _option("prometheus", "Write metrics for the textfile collector of Prometheus.", "FILE.prom"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, with fractions instead of percent.")
    ] = False,
    *,
    columns: "Columns",
) -> None:
    """Test over time whether a model is still as calibrated as on the reference.

    Look as often as you like: if calibration does not change, the probability of an alarm over the whole
    life of the model is at most --alpha. The exit code is 3 after an alarm, 0 without one, and 2 if a file or
    an option is wrong.

    Example: calibrant monitor test.npz monday.npz tuesday.npz --state model.json --events alarms.jsonl

    Example: calibrant monitor test.parquet predictions/ --state model.json --prometheus model.prom

    Example: calibrant monitor before.jsonl today.jsonl --confidence stated --correct is_right --read percent

    Example: calibrant monitor before.csv days/ --unit question_id --state model.json

    Example: calibrant monitor before.parquet days/ --labels labels/ --id request_id --state model.json

    Example: calibrant monitor before.csv days/ --by region --state model.json
    """
    from calibrant.cli.monitor_report import JsonReport, TableReport
    from calibrant.monitoring.files import gather
    from calibrant.monitoring.run import MonitorRun, read_steps

    sources = [reference, *stream, *([] if labels is None else [labels])]
    _check_targets(sources, state, events, prometheus)
    if reset and (state is None or not is_there(state)):
        raise InputError("--reset: expected --state with the file of an earlier run, got none")
    given = {"window": window, "alpha": alpha, "tolerance": tolerance}
    wait = _seconds(patience)
    if labels is not None and not columns.ids:
        raise InputError("--labels: expected together with --id, the column that names each row, got none")
    if len(columns.group_columns) > 1:
        raise InputError(
            f"--by: expected one column for monitor, got {columns.by}; join them into one column"
        )
    own = replace(columns, ids=())
    before = gather(reference, columns=own) if _is_stream(reference) else read(reference, own)
    monitoring = _begin(before, state, given, columns.by)
    if labels is None and monitoring.late is not None:
        raise InputError(f"--labels: expected them, as rows in {state} wait for their labels, got none")
    columns = columns if labels is not None else own
    if reset:
        monitoring.reset()
    stepwise = all(_is_stream(argument) for argument in stream)
    # Windows on a terminal show progress themselves, and a bar would be in their way.
    bar = not as_json and not (stepwise and sys.stdout.isatty())
    with JsonReport() if as_json else TableReport(kept=state is not None) as report:
        run = MonitorRun(monitoring, report, state, events, prometheus, stepwise)
        steps = read_steps(
            monitoring,
            stream,
            is_stream=_is_stream,
            tell=_warn,
            columns=columns,
            labels=labels,
            patience=wait,
        )
        with progress_bar(visible=bar) as progress:
            refusal = run.read(steps, progress)
        run.save()
        report.finish(monitoring, run.raised)
    if refusal is not None:
        raise refusal
    if run.stopped is not None:
        raise typer.Exit(128 + run.stopped)
    raise typer.Exit(0 if monitoring.alarm is None else 3)


def _is_stream(argument: str) -> bool:
    from calibrant.streams.files import is_followed

    return is_followed(argument)


def _check_targets(
    sources: list[str], state: Path | None, events: Path | None, prometheus: Path | None
) -> None:
    """Refuse files that cannot be written or that have another use, before anything is read."""
    from calibrant.monitoring.prometheus import check_metrics_file
    from calibrant.monitoring.run import check_target

    if prometheus is not None:
        check_metrics_file(prometheus)
    others = list(sources)
    targets = {"--state": state, "--events": events, "--prometheus": prometheus}
    for name, target in targets.items():
        if target is not None:
            check_target(target, name, appends=name == "--events", others=others)
            others.append(str(target))


def _warn(sentence: str) -> None:
    say(f"calibrant: note: {sentence}", err=True)


def _seconds(patience: str) -> float:
    """Return a time such as 30d, 12h or 90m in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([dhm])", patience.strip())
    if found is None:
        raise InputError(f"--patience: expected days, hours or minutes such as 30d or 12h, got {patience!r}")
    return float(found[1]) * {"d": 86_400, "h": 3600, "m": 60}[found[2]]


def _begin(
    reference: "Predictions", state: Path | None, given: dict[str, Any], by: str | None
) -> "Monitoring":
    """Return a new monitoring, or one that continues from a state with the options of that state."""
    from calibrant.monitoring.monitor import Monitoring

    if state is None or not is_there(state):
        chosen = {name: _DEFAULTS[name] if value is None else value for name, value in given.items()}
        return Monitoring(reference, by=by, **chosen)
    old = Monitoring.load(state, reference)
    if by != old.by:
        raise InputError(
            f"--by: expected {old.by or 'none'}, as in {state.name}, got {by or 'none'}; begin a new state"
        )
    kept = {
        "window": old.window,
        "alpha": old.alpha,
        "tolerance": old.monitor.reference.tolerance,
    }
    for name, value in given.items():
        if value is not None and value != kept[name]:
            raise InputError(
                f"--{name}: expected {kept[name]}, the value stored in {state.name}, got {value}; "
                "leave it out, or begin a new state"
            )
    return old
