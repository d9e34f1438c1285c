"""What a monitor has seen, for people and for programs: windows, a conclusion in plain words, an event."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from calibrant.metrics.intervals import Interval
from calibrant.monitoring.alarm import Alarm
from calibrant.monitoring.drift import GroupDrift
from calibrant.monitoring.monitor import Monitoring
from calibrant.monitoring.reference import DriftReference
from calibrant.monitoring.window import Window

# A table that is shown in parts has columns of about the same width in all of them.
_COLUMNS = {"rows": 14, "n": 5, "acc %": 5, "conf %": 6, "ECE % (95 %)": 22, "e-value": 7}


def windows(rows: Sequence[Window], *, header: bool = True) -> Table:
    """Lay out the windows in the order of time.

    Args:
        rows: The windows.
        header: Whether this is the first part of the table.
    """
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1, 0, 0), show_header=header)
    for heading, width in _COLUMNS.items():
        table.add_column(heading, justify="right", no_wrap=True, min_width=width)
    table.add_column("verdict", no_wrap=True)
    for row in rows:
        table.add_row(
            f"{row.first:,} to {row.last:,}",
            f"{row.n:,}",
            _percent(row.accuracy.value),
            _percent(row.mean_confidence.value),
            f"{_percent(row.ece.value)} ({_percent(row.ece.low)} to {_percent(row.ece.high)})",
            evidence(row.log_e_value),
            "[bold red]alarm[/bold red]" if row.alarm else "as before",
        )
    return table


def conclusion(monitoring: Monitoring) -> str:
    """Say in plain words whether calibration is what it was, and if not, how it changed."""
    alarm, n = monitoring.alarm, monitoring.n
    if alarm is None:
        state = evidence(monitoring.monitor.log_e_value)
        return (
            f"Still as calibrated as on the reference, as far as {n:,} rows can tell: "
            f"the e-value is {state}, an alarm needs {monitoring.monitor.threshold:,.3g}."
        )
    reference = monitoring.monitor.reference
    found = [f"{change.change} than on the reference {where(change, reference)}" for change in alarm.changes]
    return f"Alarm at row {alarm.row:,}: {' and '.join(found)}, since about row {alarm.since:,}."


def where(change: GroupDrift, reference: DriftReference) -> str:
    """Name a group of confidences by what it is: all of them, a half, or a range."""
    group = next(g for g in reference.groups if (g.low, g.high) == (change.low, change.high))
    if group.level == 0:
        return "over all confidences"
    low, high = (_edge(edge, change.high - change.low) for edge in (change.low, change.high))
    if reference.n_bins >= 4 and group.level == 1:
        if group.first == 0:
            return f"in the lower half (confidences up to {high})"
        return f"in the upper half (confidences above {low})"
    return f"for confidences from {low} to {high}"


def evidence(log_e_value: float) -> str:
    """Write an e-value as short as can be."""
    if log_e_value > math.log(1e5):
        return f"1e{log_e_value / math.log(10):.0f}"
    return f"{math.exp(log_e_value):,.0f}" if log_e_value > math.log(100) else f"{math.exp(log_e_value):.2f}"


def event(alarm: Alarm, monitoring: Monitoring, *, time: str, file: str) -> dict[str, Any]:
    """Return an alarm as what is written to a log: fractions, rows counted from 1.

    Args:
        alarm: The alarm.
        monitoring: Whose alarm it is, as it stands after the file.
        time: When it was raised.
        file: The file whose rows raised it.
    """
    monitor = monitoring.monitor
    return {
        "event": "calibration-drift",
        "time": time,
        "reference": monitoring.reference_digest,
        "file": file,
        "row": alarm.row,
        "since": alarm.since,
        "direction": alarm.changes[0].direction,
        "changes": [
            asdict(change) | {"change": change.change, "where": where(change, monitor.reference)}
            for change in alarm.changes
        ],
        "alpha": monitor.alpha,
        "threshold": monitor.threshold,
        "conclusion": conclusion(monitoring),
    }


def window_json(row: Window) -> dict[str, Any]:
    """Return a window as plain values; intervals are by themselves, and what is not known is null."""
    measures = {
        "accuracy": row.accuracy,
        "mean_confidence": row.mean_confidence,
        "ece": row.ece,
        "brier": row.brier,
        "nll": row.nll,
    }
    known: dict[str, Interval] = {name: value for name, value in measures.items() if value is not None}
    return {
        "first": row.first,
        "last": row.last,
        "n": row.n,
        "metrics": {name: known[name].value if name in known else None for name in measures},
        "intervals": {name: [value.low, value.high] for name, value in known.items()},
        "log_e_value": row.log_e_value,
        "alarm": row.alarm,
    }


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def _edge(confidence: float, width: float) -> str:
    """Write the edge of a group with the digits it takes to tell it from the other one, and from 1."""
    if confidence in (0.0, 1.0):
        return f"{confidence:.0f}"
    least = min(confidence, 1 - confidence, width)
    return f"{confidence:.{max(2, 1 - math.floor(math.log10(least)))}f}"
