"""Metrics for Prometheus: a file that the textfile collector of node_exporter reads."""

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from calibrant._version import __version__
from calibrant.errors import InputError
from calibrant.files import write_file
from calibrant.monitoring.by_group import GroupTest
from calibrant.monitoring.drift import GroupDrift
from calibrant.monitoring.monitor import Monitoring
from calibrant.monitoring.reference import DriftReference
from calibrant.text import visible

if TYPE_CHECKING:
    from calibrant.inference.intervals import Interval

#: The collector reads files with this suffix only.
SUFFIX = ".prom"

Labels: TypeAlias = Mapping[str, str]
MetricSamples: TypeAlias = Iterable[tuple[Labels, float | None]]


@dataclass(frozen=True)
class Metric:
    """One metric of a monitoring.

    Attributes:
        name: Its name; those of counters end in ``_total``.
        kind: ``"counter"`` if it only grows until it starts again from zero, else ``"gauge"``.
        meaning: What it is, in one line.
        samples: Returns the labels and the value of each series; a value of None is unknown.
    """

    name: str
    kind: Literal["counter", "gauge"]
    meaning: str
    samples: Callable[[Monitoring], MetricSamples]

    def lines(self, monitoring: Monitoring, model: str) -> Iterator[str]:
        """Yield the lines of a file with the series of a model; nothing if there are none."""
        samples = list(self.samples(monitoring))
        if samples:
            yield f"# HELP {self.name} {self.meaning}"
            yield f"# TYPE {self.name} {self.kind}"
        for labels, value in samples:
            pairs = ",".join(f'{name}="{_escaped(of)}"' for name, of in {"model": model, **labels}.items())
            yield f"{self.name}{{{pairs}}} {_number(value)}"


def check_metrics_file(path: Path) -> None:
    """Refuse a file that the textfile collector would ignore."""
    if path.suffix != SUFFIX:
        raise InputError(
            f"prometheus: expected a file that ends in {SUFFIX}, because the textfile collector reads no "
            f"others, got {path.name}; name it {path.stem}{SUFFIX}"
        )


def write_metrics(monitoring: Monitoring, path: str | os.PathLike[str]) -> None:
    """Write the metrics of a monitoring as a file for the textfile collector, whole or not at all.

    The label ``model`` is the name of the file without its suffix: each model needs a file of its own.
    """
    write_file(path, metrics_text(monitoring, model=Path(path).stem))


def metrics_text(monitoring: Monitoring, *, model: str) -> str:
    r"""Return the metrics of a monitoring in the text format of Prometheus.

    Args:
        monitoring: The monitoring.
        model: Value of the label ``model`` of all series; hidden characters are written as escapes.

    Example:
        >>> from calibrant import Predictions
        >>> reference = Predictions(confidence=[0.9] * 2000, correct=([True] * 9 + [False]) * 200)
        >>> monitoring = Monitoring(reference, window=250)
        >>> _ = monitoring.update(Predictions(confidence=[0.9] * 600, correct=[True, False] * 300))
        >>> [line for line in metrics_text(monitoring, model="m").splitlines() if "calibrant_alarm{" in line]
        ['calibrant_alarm{model="m"} 1']
    """
    lines = (line for metric in METRICS for line in metric.lines(monitoring, visible(model)))
    return "".join(f"{line}\n" for line in lines)


def _one(value: Callable[[Monitoring], float | None]) -> Callable[[Monitoring], MetricSamples]:
    """Return the samples of a metric with one series for each model."""
    return lambda monitoring: [({}, value(monitoring))]


def _of_window(field: str, name: str, title: str) -> tuple[Metric, ...]:
    """Return the metrics of a measure of the last window: its value and the ends of its interval."""

    def metric(part: str, suffix: str, words: str) -> Metric:
        def value(monitoring: Monitoring) -> float | None:
            window = monitoring.latest
            found: Interval | None = None if window is None else getattr(window, field)
            return None if found is None else getattr(found, part)

        meaning = f"{title} of the last complete window{words}."
        return Metric(f"calibrant_{name}{suffix}", "gauge", meaning, _one(value))

    return (
        metric("value", "", ""),
        metric("low", "_low", ": lower end of its 95 % interval"),
        metric("high", "_high", ": upper end of its 95 % interval"),
    )


def _gap(monitoring: Monitoring) -> float | None:
    window = monitoring.latest
    return None if window is None else window.accuracy.value - window.mean_confidence.value


def _in_each_group(value: Callable[[GroupDrift], float]) -> Callable[[Monitoring], MetricSamples]:
    """Return the samples of a number that both directions of a group share."""

    def samples(monitoring: Monitoring) -> MetricSamples:
        for labels, drift in _groups(monitoring):
            if drift.direction == "overconfident":
                yield labels, value(drift)

    return samples


def _in_each_direction(value: Callable[[GroupDrift], float]) -> Callable[[Monitoring], MetricSamples]:
    """Return the samples of a number of each group and direction."""

    def samples(monitoring: Monitoring) -> MetricSamples:
        for labels, drift in _groups(monitoring):
            yield {**labels, "direction": drift.direction}, value(drift)

    return samples


def _groups(monitoring: Monitoring) -> Iterator[tuple[Labels, GroupDrift]]:
    names = _group_names(monitoring.monitor.reference)
    for place, drift in enumerate(monitoring.monitor.diagnosis()):
        # Both directions of a group stand one after the other.
        yield {"group": names[place // 2], "low": repr(drift.low), "high": repr(drift.high)}, drift


def _group_names(reference: DriftReference) -> list[str]:
    digits = len(str(reference.n_bins))
    names = []
    for group in reference.groups:
        if group.level == 0:
            names.append("all")
        elif group.first == group.last and group.level == reference.groups[-1].level:
            names.append(f"bin {group.first + 1:0{digits}}")
        else:
            names.append("lower half" if group.first == 0 else "upper half")
    return names


def _info(monitoring: Monitoring) -> MetricSamples:
    facts = {
        "version": __version__,
        "reference": monitoring.reference_digest[:12],
        "alpha": repr(monitoring.alpha),
        "tolerance": repr(monitoring.monitor.reference.tolerance),
    }
    return [(facts, 1)]


def _by_group(value: Callable[[GroupTest], float]) -> Callable[[Monitoring], MetricSamples]:
    """Return the samples of a number of each group of rows; none if groups are not tested."""
    return lambda each: [({"by": each.by or "", "value": test.name}, value(test)) for test in each.groups]


#: All metrics, in the order of the file.
METRICS: tuple[Metric, ...] = (
    Metric("calibrant_monitor_info", "gauge", "Version and options of the monitor; always 1.", _info),
    Metric(
        "calibrant_last_update_timestamp_seconds",
        "gauge",
        "When this file was written, in seconds since 1970.",
        _one(lambda _: time.time()),
    ),
    Metric(
        "calibrant_rows_total", "counter", "Rows read since the state was begun.", _one(lambda each: each.n)
    ),
    Metric(
        "calibrant_units_total",
        "counter",
        "Units of these rows; without units every row is one.",
        _one(lambda each: each.n if each.n_units is None else each.n_units),
    ),
    Metric(
        "calibrant_waiting_rows",
        "gauge",
        "Rows of the incomplete window: tested, but not measured.",
        _one(lambda each: each.waiting),
    ),
    Metric("calibrant_window_rows", "gauge", "Rows of a window.", _one(lambda each: each.window)),
    Metric(
        "calibrant_window_last_row",
        "gauge",
        "Last row of the last complete window.",
        _one(lambda each: None if each.latest is None else each.latest.last),
    ),
    *_of_window("accuracy", "accuracy", "Accuracy"),
    *_of_window("mean_confidence", "confidence", "Mean confidence"),
    Metric("calibrant_gap", "gauge", "Accuracy minus confidence of the last complete window.", _one(_gap)),
    *_of_window("ece", "ece", "Expected calibration error"),
    *_of_window("brier", "brier", "Brier score"),
    *_of_window("nll", "nll", "Negative log-likelihood"),
    Metric(
        "calibrant_log_e_value",
        "gauge",
        "Natural logarithm of the evidence that calibration has changed.",
        _one(lambda each: each.monitor.log_e_value),
    ),
    Metric(
        "calibrant_log_e_value_peak",
        "gauge",
        "Natural logarithm of the highest evidence since the test began.",
        _one(lambda each: each.monitor.log_peak),
    ),
    Metric(
        "calibrant_log_e_value_threshold",
        "gauge",
        "Natural logarithm of the evidence that raises the alarm.",
        _one(lambda each: math.log(each.monitor.threshold)),
    ),
    Metric(
        "calibrant_alarm", "gauge", "1 in alarm, else 0.", _one(lambda each: float(each.alarm is not None))
    ),
    Metric(
        "calibrant_alarm_row",
        "gauge",
        "Row after which the evidence reached the threshold.",
        _one(lambda each: None if each.alarm is None else each.alarm.row),
    ),
    Metric(
        "calibrant_alarm_since_row",
        "gauge",
        "Row at which the change seems to have begun.",
        _one(lambda each: None if each.alarm is None else each.alarm.since),
    ),
    Metric(
        "calibrant_group_rows_total",
        "counter",
        "Rows with a confidence of the group since the test began.",
        _in_each_group(lambda drift: drift.n),
    ),
    Metric(
        "calibrant_group_gap",
        "gauge",
        "Accuracy minus confidence of the group since the test began.",
        _in_each_group(lambda drift: drift.gap),
    ),
    Metric(
        "calibrant_group_reference_gap",
        "gauge",
        "Accuracy minus confidence of the group on the reference.",
        _in_each_group(lambda drift: drift.reference_gap),
    ),
    Metric(
        "calibrant_group_log_e_value",
        "gauge",
        "Natural logarithm of the evidence that the group has changed in this direction.",
        _in_each_direction(lambda drift: drift.log_e_value),
    ),
    Metric(
        "calibrant_group_drifts",
        "gauge",
        "1 if the evidence of the group and direction alone was enough for an alarm, else 0.",
        _in_each_direction(lambda drift: float(drift.drifts)),
    ),
    Metric(
        "calibrant_unlabelled_rows_total",
        "counter",
        "Rows that are left out because they have no label, or never got one.",
        _one(lambda each: each.unlabelled + (0 if each.late is None else each.late.never)),
    ),
    Metric(
        "calibrant_rows_without_label",
        "gauge",
        "Rows that wait for their labels.",
        _one(lambda each: 0 if each.late is None else len(each.late)),
    ),
    Metric(
        "calibrant_by_rows_total",
        "counter",
        "Rows of the group since the test began.",
        _by_group(lambda test: test.monitor.n),
    ),
    Metric(
        "calibrant_by_gap",
        "gauge",
        "Accuracy minus confidence of the group since the test began.",
        _by_group(lambda test: test.monitor.diagnosis()[0].gap),
    ),
    Metric(
        "calibrant_by_log_e_value",
        "gauge",
        "Natural logarithm of the evidence that calibration has changed in the group.",
        _by_group(lambda test: test.monitor.log_e_value),
    ),
    Metric(
        "calibrant_by_log_e_value_threshold",
        "gauge",
        "Natural logarithm of the evidence that raises the alarm in the group.",
        _by_group(lambda test: math.log(test.monitor.threshold)),
    ),
    Metric(
        "calibrant_by_alarm",
        "gauge",
        "1 if the group is in alarm, else 0.",
        _by_group(lambda test: float(test.alarm is not None)),
    ),
)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float | None) -> str:
    """Return a number as Prometheus reads it."""
    if value is None or math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value) if value == int(value) and abs(value) < 2**53 else float(value))
