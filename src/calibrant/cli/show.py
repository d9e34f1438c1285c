"""Results on the terminal: tables for people, one JSON object for programs."""

import json
import math
from collections.abc import Mapping

import typer
from rich.console import Console
from rich.table import Table

from calibrant.cli.diagram import reliability_diagram
from calibrant.evaluation import Evaluation
from calibrant.registry import MEASURES, Measure

_ARROWS = {"lower": "↓", "higher": "↑", "neither": " "}


def evaluation_json(result: Evaluation) -> None:
    """Print an evaluation as one JSON object; what is undefined or infinite is null."""
    metrics = {name: value if math.isfinite(value) else None for name, value in result.metrics.items()}
    typer.echo(json.dumps({"n": result.n, "k": result.k, "metrics": metrics}, allow_nan=False))


def evaluation(result: Evaluation, *, title: str) -> None:
    """Print an evaluation as a verdict, a table and a reliability diagram."""
    console = Console()
    classes = "" if result.k is None else f", {result.k} classes"
    console.print(f"[bold]{title}[/bold]: {result.n:,} predictions{classes}", highlight=False)
    console.print(verdict(result), highlight=False)
    console.print(comparison_table({"value": result}))
    console.print(reliability_diagram(result.bins))


def comparison_table(results: Mapping[str, Evaluation]) -> Table:
    """Lay out evaluations side by side, one measure a row, the best of several in bold."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("measure")
    for heading in results:
        table.add_column(heading, justify="right")
    names = [name for name in MEASURES if all(name in result.metrics for result in results.values())]
    for name in names:
        measure = MEASURES[name]
        values = [result.metrics[name] for result in results.values()]
        best = _best(values, measure) if len(values) > 1 else math.nan
        cells = [f"[bold]{_format(v, measure)}[/bold]" if v == best else _format(v, measure) for v in values]
        table.add_row(f"{_ARROWS[measure.better]} {measure.title}", *cells)
    return table


def verdict(result: Evaluation) -> str:
    """Say in plain words whether confidence can be believed."""
    accuracy, confidence = result.metrics["accuracy"], result.metrics["mean_confidence"]
    says = f"it says {confidence:.1%} and is right {accuracy:.1%} of the time"
    if abs(confidence - accuracy) < 0.01:
        return f"About right on average: {says}; a bin is off by {result.metrics['ece']:.1%} on average."
    return f"{'Overconfident' if confidence > accuracy else 'Underconfident'}: {says}."


def _best(values: list[float], measure: Measure) -> float:
    defined = [value for value in values if not math.isnan(value)]
    if not defined or measure.better == "neither":
        return math.nan
    return min(defined) if measure.better == "lower" else max(defined)


def _format(value: float, measure: Measure) -> str:
    if math.isnan(value):
        return "undefined"
    return f"{100 * value:.2f} %" if measure.percent else f"{value:.4f}  "
