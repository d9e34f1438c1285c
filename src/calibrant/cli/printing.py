"""What several commands print: sentences, evaluations, calibrations, and reliability diagrams as text."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.text import Text

from calibrant.files import shown
from calibrant.show.numbers import count
from calibrant.show.table import Column, Table
from calibrant.show.terminal import Console, line
from calibrant.text import visible_lines

if TYPE_CHECKING:
    from calibrant.bins import Bins
    from calibrant.evaluation.calibration import Calibration
    from calibrant.evaluation.full import FullEvaluation
    from calibrant.inputs import Progress

_WIDTH = 40


def say(text: str, *, err: bool = False) -> None:
    """Print a text that may quote names, on standard output or standard error."""
    typer.echo(visible_lines(text), err=err)


class Speed:
    """A progress bar that also shows the rows per second since it began."""

    def __init__(self, progress: "Progress") -> None:
        self._progress, self._start = progress, time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return max(1e-9, time.perf_counter() - self._start)

    def show(self, what: str, done: int, total: int) -> None:
        """Show a step, the rows that are done, and the rows per second."""
        self._progress(f"{what}, {done / self.seconds:,.0f} rows/s", done, total)


def pages(folder: Path) -> list[str]:
    """Return the name of the page that goes into a folder; none, with one line why, if it cannot be made."""
    from calibrant.report.write import REPORT, why_no_page

    if (missing := why_no_page()) is None:
        return [REPORT]
    say(f"calibrant: note: {REPORT} is not written in {shown(folder)}; {missing}", err=True)
    return []


def print_evaluation(console: Console, found: "FullEvaluation", *, title: str) -> None:
    """Print a verdict, the measures, a reliability diagram, and the parts that are there."""
    print_heading(console, title, found.heading, found.sentence)
    console.show(found.to_table())
    console.print()
    shares = (
        ("accuracy", "confidence") if found.n_labels is None else ("entries with the label", "probability")
    )
    if not found.evaluation.only_ranks:
        console.print(diagram_of(found.evaluation.bins, shares=shares))
    if found.evaluation.positive is not None:
        console.print(
            diagram_of(
                found.evaluation.positive,
                title="reliability of the positive class",
                shares=("frequency", "probability"),
            )
        )
    for table in found.tables:
        console.show(table)


def print_heading(console: Console, title: str, counted: str, verdict: str) -> None:
    """Print what was measured, and the verdict if there is one."""
    console.print(line((title, "bold"), f": {counted}"))
    if verdict:
        console.say(verdict)


def print_calibration(console: Console, found: "Calibration") -> None:
    """Print the methods, which one was chosen and why, and what it changes and gives up."""
    console.show(found.comparison.to_table(found.choice.result))
    console.print()
    first, *others = found.sentences
    name = found.choice.result.name
    console.print(line("Chosen: ", (name, "bold"), first.removeprefix(f"Chosen: {name}")))
    console.say(*others)


def described(rows: Mapping[str, str], first: str, second: str = "what it does") -> Table:
    """Lay out what each entry of a catalogue does; names are never cut."""
    columns = [Column(first, align="left"), Column(second, align="left", wraps=True)]
    return Table.of(columns, rows.items())


def diagram_of(
    bins: "Bins", *, title: str = "reliability", shares: tuple[str, str] = ("accuracy", "confidence")
) -> Text:
    """Draw accuracy against confidence in bins."""
    return reliability_diagram(
        bins.accuracy.tolist(), bins.confidence.tolist(), bins.count.tolist(), title=title, shares=shares
    )


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
    for number, (accuracy, confidence, n) in enumerate(zip(accuracies, confidences, counts, strict=True)):
        if accuracy is None or confidence is None or not n:
            continue
        text.append(f"{number / len(counts):.2f}-{(number + 1) / len(counts):.2f} ")
        text.append_text(_bar(accuracy, confidence))
        text.append(f" {accuracy:6.1%} {accuracy - confidence:+7.1%} {count(n).text:>9}\n")
    return text


def _bar(accuracy: float, confidence: float) -> Text:
    end, mark = round(_WIDTH * accuracy), min(round(_WIDTH * confidence), _WIDTH - 1)
    low, high = sorted((end, mark))
    line = "█" * end + "░" * (high - end) + " " * (_WIDTH - max(end, high))
    bar = Text(line[:mark] + "┃" + line[mark + 1 :])
    bar.stylize("red" if mark > end else "blue", low, high + 1)
    return bar
