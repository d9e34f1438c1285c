"""Results on the terminal: what people read, and one JSON object for programs."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from calibrant.cli.terminal import tables
from calibrant.cli.terminal.diagram import reliability_diagram
from calibrant.evaluation.evaluate import Evaluation
from calibrant.evaluation.paired import PairedComparison
from calibrant.evaluation.slices import ClassRow
from calibrant.metrics.margin import MarginSlice
from calibrant.metrics.ood import OODScores
from calibrant.streams.measures import StreamEvaluation


@dataclass(frozen=True)
class Parts:
    """What is shown below an evaluation, where it was asked for."""

    classes: tuple[ClassRow, ...] | None = None
    margins: tuple[MarginSlice, ...] | None = None
    comparison: PairedComparison | None = None
    detection: Mapping[str, OODScores] | None = None


def evaluation(result: Evaluation, parts: Parts, *, title: str) -> None:
    """Print a verdict, a table, a reliability diagram, and the parts that were asked for."""
    console = Console()
    classes = "" if result.k is None else f", {result.k} classes"
    console.print(f"[bold]{title}[/bold]: {result.n:,} predictions{classes}", highlight=False)
    if {"accuracy", "mean_confidence", "ece"} <= set(result.metrics):
        console.print(verdict(result), highlight=False)
    console.print(tables.measures({"value": result}))
    for name, reason in result.skipped.items():
        console.print(f"[dim]{name} is left out: {reason}[/dim]", highlight=False)
    console.print()
    console.print(reliability_diagram(result.bins))
    if parts.classes is not None:
        console.print(tables.classes(parts.classes))
    if parts.margins is not None:
        console.print(tables.margins(parts.margins))
    if parts.comparison is not None:
        console.print(tables.comparison(parts.comparison))
    if parts.detection is not None:
        console.print(tables.detection(parts.detection))


def evaluation_json(result: Evaluation, parts: Parts) -> None:
    """Print one JSON object; what is undefined or infinite is null."""
    answer: dict[str, Any] = {"n": result.n, "k": result.k, "metrics": dict(result.metrics)}
    if result.intervals:
        answer["intervals"] = {name: [i.low, i.high] for name, i in result.intervals.items()}
    if result.skipped:
        answer["skipped"] = dict(result.skipped)
    if parts.classes is not None:
        answer["classes"] = [dataclasses.asdict(row) for row in parts.classes]
    if parts.margins is not None:
        answer["margins"] = [
            {"low": part.low, "high": part.high, "n": part.n, "metrics": dict(part.metrics)}
            for part in parts.margins
        ]
    if parts.comparison is not None:
        answer["comparison"] = {
            name: dataclasses.asdict(difference) for name, difference in parts.comparison.differences.items()
        }
    if parts.detection is not None:
        answer["ood"] = {name: dataclasses.asdict(scores) for name, scores in parts.detection.items()}
    typer.echo(json.dumps(_without_nan(answer), allow_nan=False))


def stream(
    result: StreamEvaluation, names: Sequence[str], *, title: str, seconds: float, by: str | None
) -> None:
    """Print a verdict, a table, a reliability diagram, the groups, what was left out, and the speed."""
    console = Console()
    classes = "" if result.k is None else f", {result.k} classes"
    console.print(f"[bold]{escape(title)}[/bold]: {result.n:,} predictions{classes}", highlight=False)
    console.print(verdict(result), highlight=False)
    console.print(tables.stream(result, names))
    console.print()
    console.print(reliability_diagram(result.bins))
    if by is not None:
        console.print(tables.groups(result, by))
    for left_out in result.left_out:
        console.print(f"[dim]left out: {escape(left_out.reason)}[/dim]", highlight=False)
    console.print(
        f"[dim]{result.n:,} rows in {seconds:.1f} s, {result.n / seconds:,.0f} rows/s"
        + (f"; {len(result.left_out)} bad files or row groups left out" if result.left_out else "")
        + "[/dim]",
        highlight=False,
    )


def stream_json(result: StreamEvaluation, names: Sequence[str], *, seconds: float) -> None:
    """Print one JSON object; what is undefined or infinite is null."""
    answer = _stream_answer(result, names) | {
        "groups": {name: _stream_answer(group, names) for name, group in result.groups.items()},
        "left_out": [dataclasses.asdict(left_out) for left_out in result.left_out],
        "seconds": seconds,
        "rows_per_second": result.n / seconds,
    }
    typer.echo(json.dumps(_without_nan(answer), allow_nan=False))


def _stream_answer(result: StreamEvaluation, names: Sequence[str]) -> dict[str, Any]:
    bounds = {name: [b.low, b.high] for name, b in result.bounds.items() if name in names}
    metrics = {name: result.metrics[name] for name in names if name in result.metrics}
    return {"n": result.n, "k": result.k, "metrics": metrics, "bounds": bounds}


def verdict(result: Evaluation | StreamEvaluation) -> str:
    """Say in plain words whether confidence can be believed."""
    accuracy, confidence = result.metrics["accuracy"], result.metrics["mean_confidence"]
    says = f"it says {confidence:.1%} and is right {accuracy:.1%} of the time"
    if abs(confidence - accuracy) < 0.01:
        return f"About right on average: {says}; a bin is off by {result.metrics['ece']:.1%} on average."
    return f"{'Overconfident' if confidence > accuracy else 'Underconfident'}: {says}."


def _without_nan(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _without_nan(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_without_nan(entry) for entry in value]
    return value
