"""Results in the terminal: text for people, and one JSON object for programs."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from calibrant.cli.terminal import tables
from calibrant.cli.terminal.text import Console, line
from calibrant.evaluation.choose import Choice
from calibrant.evaluation.effect import Effect
from calibrant.evaluation.evaluate import Evaluation
from calibrant.evaluation.groups import GroupRow, GroupTable, GroupTest, summary
from calibrant.evaluation.paired import PairedComparison
from calibrant.evaluation.slices import ClassRow
from calibrant.files import without_nan
from calibrant.metrics.margin import MarginSlice
from calibrant.metrics.names import MEASURES
from calibrant.metrics.ood import OODScores
from calibrant.outcomes import weighted_like
from calibrant.streams.measures import StreamEvaluation

if TYPE_CHECKING:
    from calibrant.decisions.gate import Gate

#: The groups of several labels at once.
LABEL = "label"
_TITLES_OF_LABELS = {
    "accuracy": "  entries that have their label",
    "mean_confidence": "  mean probability",
    "auroc_correct": "↑ AUROC",
}

_WIDTH = 40
_BY_CHANCE = (
    "by chance: mean and 95th percentile of a perfectly calibrated model with these predictions; "
    "p: how often it shows at least as much"
)
# Groups that fit on a screen or two.
_MOST_GROUPS = 50


@dataclass(frozen=True)
class Parts:
    """Optional parts of an evaluation, and the number of labels if there are several at once."""

    classes: tuple[ClassRow, ...] | None = None
    margins: tuple[MarginSlice, ...] | None = None
    comparison: PairedComparison | None = None
    detection: Mapping[str, OODScores] | None = None
    groups: GroupTable | None = None
    by: str = "group"
    n_labels: int | None = None


@dataclass(frozen=True)
class StreamGroups:
    """The tests of the groups of a stream, the worst first, and the column that made the groups."""

    tests: Mapping[str, GroupTest]
    by: str

    @property
    def level(self) -> float:
        """Level of the intervals and of the tests."""
        return 0.95


def evaluation(result: Evaluation, parts: Parts, *, title: str) -> None:
    """Print a verdict, a table, a reliability diagram, and the parts that are given."""
    console = Console()
    _print_heading(console, title, result, parts.n_labels)
    of_labels = parts.n_labels is not None
    titles = _TITLES_OF_LABELS if of_labels else {}
    console.print(
        tables.measures(
            {"value": result.metrics}, result.intervals, by_chance=result.by_chance, titles=titles
        )
    )
    if result.by_chance:
        console.print(line((_BY_CHANCE, "dim")))
    print_skipped(console, result.skipped)
    for name, remark in result.remarks.items():
        console.print(line((f"{name}: {remark}", "dim")))
    console.print()
    console.print(_diagram(result, of_labels=of_labels))
    _print_parts(console, parts)


def _print_parts(console: Console, parts: Parts) -> None:
    if parts.classes is not None:
        console.print(tables.classes(parts.classes))
    if parts.margins is not None:
        console.print(tables.margins(parts.margins))
    if parts.groups is not None:
        _print_groups(console, parts.groups, parts.by)
    if parts.comparison is not None:
        console.print(tables.comparison(parts.comparison, width=console.width))
    if parts.detection is not None:
        console.print(tables.detection(parts.detection))


def gate(gate: "Gate") -> None:
    """Print the verdicts, why some are unknown, and how the command ends."""
    console = Console()
    console.print(tables.gate(gate))
    for verdict in gate.verdicts:
        if verdict.outcome == "unknown" and (verdict.needed is None or verdict.is_cautious):
            console.print(line((verdict.sentence, "dim")))
    words = {"passed": "passed", "failed": "failed", "unknown": "cannot tell"}[gate.outcome]
    console.print(line("Gate: ", (words, "bold"), f" (exit code {gate.exit_code})."))


def evaluation_json(result: Evaluation, parts: Parts) -> None:
    """Print one JSON object; undefined and infinite numbers are null."""
    answer: dict[str, Any] = {"n": result.n, "k": result.k, "metrics": dict(result.metrics)}
    answer |= _effective(result)
    if result.intervals:
        answer["intervals"] = {name: [i.low, i.high] for name, i in result.intervals.items()}
    if result.by_chance:
        answer["by_chance"] = {name: dataclasses.asdict(each) for name, each in result.by_chance.items()}
    if result.skipped:
        answer["skipped"] = dict(result.skipped)
    if result.remarks:
        answer["remarks"] = dict(result.remarks)
    typer.echo(json.dumps(without_nan(answer | _parts_answer(parts)), allow_nan=False))


def _parts_answer(parts: Parts) -> dict[str, Any]:
    """Return the optional parts of an evaluation as plain values."""
    answer: dict[str, Any] = {} if parts.n_labels is None else {"labels": parts.n_labels}
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
    print_skipped(console, result.skipped)
    console.print()
    console.print(_diagram(result))
    if groups.tests:
        console.print(tables.stream_groups(result, names, groups.tests, groups.by, level=groups.level))
        found = summary(list(groups.tests.values()), correction="holm", level=groups.level)
        console.print(line((f"* {found}", "dim")))
    for left_out in result.left_out:
        console.print(line((f"left out: {left_out.reason}", "dim")))
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
    sentence, whole, within = table.sentence, "over all samples", "within groups"
    if by == LABEL:
        sentence, whole, within = sentence.replace("groups", "labels"), "over all entries", "mean over labels"
    console.print(line((f"* {sentence}", "dim")))
    for name, value in table.overall.items():
        console.print(
            f"[dim]{MEASURES[name].title}: {tables.shown(name, value)} {whole}, "
            f"{tables.shown(name, table.within[name])} {within}[/dim]",
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
    answer = {"n": result.n, "k": result.k, "metrics": metrics, "bounds": bounds}
    return answer | _effective(result) | ({"skipped": dict(result.skipped)} if result.skipped else {})


def verdict(metrics: Mapping[str, float], *, of_labels: bool = False) -> str:
    """Describe in a sentence whether confidence equals accuracy on average."""
    accuracy, confidence = metrics["accuracy"], metrics["mean_confidence"]
    if of_labels and abs(confidence - accuracy) >= 0.01:
        return (
            f"Probabilities are too {'high' if confidence > accuracy else 'low'} on average: mean "
            f"{confidence:.1%}, and {accuracy:.1%} of the entries have their label."
        )
    means = f"mean confidence {confidence:.1%}, accuracy {accuracy:.1%}"
    if abs(confidence - accuracy) < 0.01:
        return f"Calibrated on average: {means}; expected calibration error {metrics['ece']:.1%}."
    return f"{'Overconfident' if confidence > accuracy else 'Underconfident'}: {means}."


def print_skipped(console: Console, skipped: Mapping[str, str]) -> None:
    """Print what was left out, each with the reason."""
    for name, reason in skipped.items():
        console.print(line((f"{name} is left out: {reason}", "dim")))


def print_choice(console: Console, choice: Choice, effect: Effect) -> None:
    """Print what was chosen and why, and what it changes and gives up."""
    name, gain = choice.result.name, choice.result.improvement
    rest = choice.sentence.removeprefix(name)
    console.print(line("Chosen: ", (name, "bold"), f"{rest}."))
    if gain.low < gain.high:  # not of the uncalibrated model
        console.print(
            f"It changes the negative log-likelihood by {gain.difference:+.4f} (95 % interval "
            f"{gain.low:+.4f} to {gain.high:+.4f}).",
            highlight=False,
        )
    for sentence in effect.sentences:
        console.print(line(sentence))


def reliability_diagram(
    accuracies: Sequence[float | None],
    confidences: Sequence[float | None],
    counts: Sequence[float],
    *,
    title: str = "reliability",
    shares: tuple[str, str] = ("accuracy", "confidence"),
) -> Text:
    """Draw accuracy against confidence as text, one line per bin; empty bins are left out.

    The bar ends at the accuracy, and the mark stands at the mean confidence. The gap between them is dotted
    where the model is overconfident.

    Args:
        accuracies: Accuracy in each bin of equal width.
        confidences: Mean confidence in each bin.
        counts: Number of samples in each bin, or their summed weights.
        title: Text before the key.
        shares: What the bar and the mark are called in the key.
    """
    text = Text(f"{title}: █ {shares[0]}, ┃ {shares[1]}, ░ the gap\n", style="dim")
    for number, (accuracy, confidence, count) in enumerate(zip(accuracies, confidences, counts, strict=True)):
        if accuracy is None or confidence is None or not count:
            continue
        text.append(f"{number / len(counts):.2f}-{(number + 1) / len(counts):.2f} ")
        text.append_text(_bar(accuracy, confidence))
        size = f"{count:,.1f}" if isinstance(count, float) else f"{count:,}"
        text.append(f" {accuracy:6.1%} {accuracy - confidence:+7.1%} {size:>9}\n")
    return text


def _diagram(result: Evaluation | StreamEvaluation, *, of_labels: bool = False) -> Text:
    bins = result.bins
    shares = ("entries with the label", "probability") if of_labels else ("accuracy", "confidence")
    return reliability_diagram(
        bins.accuracy.tolist(), bins.confidence.tolist(), bins.count.tolist(), shares=shares
    )


def _bar(accuracy: float, confidence: float) -> Text:
    end, mark = round(_WIDTH * accuracy), min(round(_WIDTH * confidence), _WIDTH - 1)
    low, high = sorted((end, mark))
    line = "█" * end + "░" * (high - end) + " " * (_WIDTH - max(end, high))
    bar = Text(line[:mark] + "┃" + line[mark + 1 :])
    bar.stylize("red" if mark > end else "blue", low, high + 1)
    return bar


def _effective(result: Evaluation | StreamEvaluation) -> dict[str, float]:
    """Return the effective number of weighted samples by name; nothing without weights."""
    return {"n_effective": result.n_effective} if result.bins.count.is_floating_point() else {}


def _print_heading(
    console: Console, title: str, result: Evaluation | StreamEvaluation, n_labels: int | None = None
) -> None:
    classes = "" if result.k is None else f", {result.k} classes"
    counted = f"{result.n:,} predictions{classes}"
    if n_labels is not None:
        counted = f"{result.n // n_labels:,} rows, {n_labels:,} labels"
    counted += "".join(f", {weighted_like(n)}" for n in _effective(result).values())
    console.print(line((title, "bold"), f": {counted}"))
    if {"accuracy", "mean_confidence", "ece"} <= set(result.metrics):
        console.print(verdict(result.metrics, of_labels=n_labels is not None), highlight=False)
