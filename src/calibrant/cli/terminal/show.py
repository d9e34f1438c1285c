"""Results in the terminal: text for people, and one JSON object for programs."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from calibrant.cli.terminal import tables
from calibrant.evaluation.choose import Choice
from calibrant.evaluation.evaluate import Evaluation
from calibrant.evaluation.groups import Correction, GroupRow, GroupTable, GroupTest, summary
from calibrant.evaluation.paired import PairedComparison
from calibrant.evaluation.slices import ClassRow
from calibrant.files import without_nan
from calibrant.metrics.margin import MarginSlice
from calibrant.metrics.names import MEASURES
from calibrant.metrics.ood import OODScores
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.pool import pool_of
from calibrant.streams.measures import StreamEvaluation

_WIDTH = 40
# Groups that fit on a screen or two.
_MOST_GROUPS = 50


@dataclass(frozen=True)
class Parts:
    """Optional parts of an evaluation."""

    classes: tuple[ClassRow, ...] | None = None
    margins: tuple[MarginSlice, ...] | None = None
    comparison: PairedComparison | None = None
    detection: Mapping[str, OODScores] | None = None
    groups: GroupTable | None = None
    by: str = "group"


@dataclass(frozen=True)
class StreamGroups:
    """The tests of the groups of a stream, the worst first, and the column that made the groups."""

    tests: Mapping[str, GroupTest]
    correction: Correction
    by: str

    @property
    def level(self) -> float:
        """Level of the intervals and of the tests."""
        return 0.95


def evaluation(result: Evaluation, parts: Parts, *, title: str) -> None:
    """Print a verdict, a table, a reliability diagram, and the parts that are given."""
    console = Console()
    _print_heading(console, title, result)
    console.print(tables.measures({"value": result.metrics}, result.intervals))
    print_skipped(console, result.skipped)
    for name, remark in result.remarks.items():
        console.print(f"[dim]{name}: {remark}[/dim]", highlight=False)
    console.print()
    console.print(_diagram(result))
    if parts.classes is not None:
        console.print(tables.classes(parts.classes))
    if parts.margins is not None:
        console.print(tables.margins(parts.margins))
    if parts.groups is not None:
        _print_groups(console, parts.groups, parts.by)
    if parts.comparison is not None:
        console.print(tables.comparison(parts.comparison))
    if parts.detection is not None:
        console.print(tables.detection(parts.detection))


def evaluation_json(result: Evaluation, parts: Parts) -> None:
    """Print one JSON object; undefined and infinite numbers are null."""
    answer: dict[str, Any] = {"n": result.n, "k": result.k, "metrics": dict(result.metrics)}
    if result.intervals:
        answer["intervals"] = {name: [i.low, i.high] for name, i in result.intervals.items()}
    if result.skipped:
        answer["skipped"] = dict(result.skipped)
    if result.remarks:
        answer["remarks"] = dict(result.remarks)
    typer.echo(json.dumps(without_nan(answer | _parts_answer(parts)), allow_nan=False))


def _parts_answer(parts: Parts) -> dict[str, Any]:
    """Return the optional parts of an evaluation as plain values."""
    answer: dict[str, Any] = {}
    if parts.classes is not None:
        answer["classes"] = [dataclasses.asdict(row) for row in parts.classes]
    if parts.margins is not None:
        answer["margins"] = [{**vars(part), "metrics": dict(part.metrics)} for part in parts.margins]
    if parts.groups is not None:
        table = parts.groups
        answer["groups"] = {row.name: _group_answer(row) | _group_measures(row) for row in table.rows}
        answer["group_test"] = {
            "by": parts.by,
            "correction": table.correction,
            "level": table.level,
            "overall": dict(table.overall),
            "within": dict(table.within),
        }
    if parts.comparison is not None:
        answer["comparison"] = {
            name: dataclasses.asdict(difference) for name, difference in parts.comparison.differences.items()
        }
    if parts.detection is not None:
        answer["ood"] = {name: dataclasses.asdict(scores) for name, scores in parts.detection.items()}
    return answer


def stream(
    result: StreamEvaluation, names: Sequence[str], groups: StreamGroups, *, title: str, seconds: float
) -> None:
    """Print a verdict, a table, a reliability diagram, the groups, what was left out, and the speed."""
    console = Console()
    _print_heading(console, title, result)
    console.print(tables.stream(result, names))
    console.print()
    console.print(_diagram(result))
    if groups.tests:
        console.print(tables.stream_groups(result, names, groups.tests, groups.by, level=groups.level))
        found = summary(list(groups.tests.values()), correction=groups.correction, level=groups.level)
        console.print(f"[dim]* {found}[/dim]", highlight=False)
    for left_out in result.left_out:
        console.print(f"[dim]left out: {escape(left_out.reason)}[/dim]", highlight=False)
    console.print(
        f"[dim]{result.n:,} rows in {seconds:.1f} s, {result.n / seconds:,.0f} rows/s"
        + (f"; {len(result.left_out)} bad files or row groups left out" if result.left_out else "")
        + "[/dim]",
        highlight=False,
    )


def stream_json(
    result: StreamEvaluation, names: Sequence[str], groups: StreamGroups, *, seconds: float
) -> None:
    """Print one JSON object; undefined and infinite numbers are null."""
    answer = _stream_answer(result, names) | {
        "groups": {
            name: _stream_answer(result.groups[name], names) | _group_answer(test)
            for name, test in groups.tests.items()
        },
        "left_out": [dataclasses.asdict(left_out) for left_out in result.left_out],
        "seconds": seconds,
        "rows_per_second": result.n / seconds,
    }
    typer.echo(json.dumps(without_nan(answer), allow_nan=False))


def _print_groups(console: Console, table: GroupTable, by: str) -> None:
    """Print the groups, what the test says, and the measures within groups beside those of all samples."""
    console.print(tables.groups(table, by, most=_MOST_GROUPS))
    if len(table.rows) > _MOST_GROUPS:
        console.print(f"[dim]and {len(table.rows) - _MOST_GROUPS:,} more: see --json[/dim]", highlight=False)
    console.print(f"[dim]* {table.sentence}[/dim]", highlight=False)
    for name, value in table.overall.items():
        console.print(
            f"[dim]{MEASURES[name].title}: {tables.shown(name, value)} over all samples, "
            f"{tables.shown(name, table.within[name])} within groups[/dim]",
            highlight=False,
        )


def _group_answer(test: GroupTest) -> dict[str, Any]:
    """Return the gap and the test of a group as plain values."""
    return {
        "n": test.n,
        "accuracy": test.accuracy,
        "mean_confidence": test.mean_confidence,
        "gap": test.gap,
        "gap_interval": [test.gap_low, test.gap_high],
        "statistic": test.statistic,
        "p_value": test.p_value,
        "p_corrected": test.p_corrected,
    }


def _group_measures(row: GroupRow) -> dict[str, Any]:
    intervals = {name: [each.low, each.high] for name, each in row.intervals.items()}
    return {"metrics": dict(row.metrics)} | ({"intervals": intervals} if intervals else {})


def _stream_answer(result: StreamEvaluation, names: Sequence[str]) -> dict[str, Any]:
    bounds = {name: [b.low, b.high] for name, b in result.bounds.items() if name in names}
    metrics = {name: result.metrics[name] for name in names if name in result.metrics}
    return {"n": result.n, "k": result.k, "metrics": metrics, "bounds": bounds}


def verdict(metrics: Mapping[str, float]) -> str:
    """Describe in a sentence whether confidence equals accuracy on average."""
    accuracy, confidence = metrics["accuracy"], metrics["mean_confidence"]
    means = f"mean confidence {confidence:.1%}, accuracy {accuracy:.1%}"
    if abs(confidence - accuracy) < 0.01:
        return f"Calibrated on average: {means}; expected calibration error {metrics['ece']:.1%}."
    return f"{'Overconfident' if confidence > accuracy else 'Underconfident'}: {means}."


def print_skipped(console: Console, skipped: Mapping[str, str]) -> None:
    """Print what was left out, each with the reason."""
    for name, reason in skipped.items():
        console.print(f"[dim]{escape(name)} is left out: {escape(reason)}[/dim]", highlight=False)


def print_choice(console: Console, choice: Choice) -> None:
    """Print in one sentence what was chosen and why."""
    name = choice.result.name
    rest = choice.sentence.removeprefix(name)
    console.print(f"Chosen: [bold]{escape(name)}[/bold]{escape(rest)}.", highlight=False)


def pool_numbers(calibrator: Calibrator) -> dict[str, Any]:
    """Return the weights and the temperature of a pool as plain values; nothing for other calibrators."""
    pool = pool_of(calibrator)
    return {} if pool is None else {"weights": pool.weights, "temperature": float(pool.temperature)}


def reliability_diagram(
    accuracies: Sequence[float | None],
    confidences: Sequence[float | None],
    counts: Sequence[int],
    *,
    title: str = "reliability",
) -> Text:
    """Draw accuracy against confidence as text, one line per bin; empty bins are left out.

    The bar ends at the accuracy, and the mark stands at the mean confidence. The gap between them is dotted
    where the model is overconfident.

    Args:
        accuracies: Accuracy in each bin of equal width.
        confidences: Mean confidence in each bin.
        counts: Number of samples in each bin.
        title: Text before the key.
    """
    text = Text(f"{title}: █ accuracy, ┃ confidence, ░ the gap\n", style="dim")
    for number, (accuracy, confidence, count) in enumerate(zip(accuracies, confidences, counts, strict=True)):
        if accuracy is None or confidence is None or not count:
            continue
        text.append(f"{number / len(counts):.2f}-{(number + 1) / len(counts):.2f} ")
        text.append_text(_bar(accuracy, confidence))
        text.append(f" {accuracy:6.1%} {accuracy - confidence:+7.1%} {count:9,}\n")
    return text


def _diagram(result: Evaluation | StreamEvaluation) -> Text:
    bins = result.bins
    return reliability_diagram(bins.accuracy.tolist(), bins.confidence.tolist(), bins.count.tolist())


def _bar(accuracy: float, confidence: float) -> Text:
    end, mark = round(_WIDTH * accuracy), min(round(_WIDTH * confidence), _WIDTH - 1)
    low, high = sorted((end, mark))
    line = "█" * end + "░" * (high - end) + " " * (_WIDTH - max(end, high))
    bar = Text(line[:mark] + "┃" + line[mark + 1 :])
    bar.stylize("red" if mark > end else "blue", low, high + 1)
    return bar


def _print_heading(console: Console, title: str, result: Evaluation | StreamEvaluation) -> None:
    classes = "" if result.k is None else f", {result.k} classes"
    console.print(f"[bold]{escape(title)}[/bold]: {result.n:,} predictions{classes}", highlight=False)
    if {"accuracy", "mean_confidence", "ece"} <= set(result.metrics):
        console.print(verdict(result.metrics), highlight=False)
