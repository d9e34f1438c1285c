"""Tables for the terminal: one function per kind of result."""

import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from rich.columns import Columns
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from calibrant.cli.terminal.text import Console, cell, line
from calibrant.docstrings import call
from calibrant.metrics.names import MEASURES
from calibrant.posthoc.names import variant_of
from calibrant.text import visible_lines

if TYPE_CHECKING:
    from calibrant.decisions.gate import Gate
    from calibrant.evaluation.compare import Comparison, MethodResult
    from calibrant.evaluation.groups import GroupTable, GroupTest
    from calibrant.evaluation.paired import PairedComparison
    from calibrant.evaluation.slices import ClassRow
    from calibrant.inference.chance import Chance
    from calibrant.inference.intervals import Interval
    from calibrant.metrics.margin import MarginSlice
    from calibrant.metrics.measure import Measure
    from calibrant.metrics.ood import OODScores
    from calibrant.posthoc.names import Method
    from calibrant.streams.measures import StreamEvaluation

_ARROWS = {"lower": "↓", "higher": "↑", "neither": " "}


def measures(
    results: Mapping[str, Mapping[str, float | None]],
    intervals: "Mapping[str, Interval] | None" = None,
    *,
    by_chance: "Mapping[str, Chance] | None" = None,
    titles: Mapping[str, str] = MappingProxyType({}),
) -> Table:
    """Lay out measures in rows and results in columns; the best of several results is bold.

    Args:
        results: Measures by name, of each result.
        intervals: Intervals by name of the measure.
        by_chance: What a calibrated model would show, by name of the measure.
        titles: Other titles of some measures.
    """
    further = (["95 % interval"] if intervals else []) + (["by chance", "p"] if by_chance else [])
    table = _table("measure", *results, *further)
    if intervals and by_chance:  # the columns fit into the 80 characters of a terminal
        table.padding = (0, 1, 0, 0)
    for name in (name for name in MEASURES if all(name in metrics for metrics in results.values())):
        measure = MEASURES[name]
        values = [math.nan if value is None else value for value in (m[name] for m in results.values())]
        best = measure.best(values) if len(values) > 1 else math.nan
        cells = [f"[bold]{_format(v, measure)}[/bold]" if v == best else _format(v, measure) for v in values]
        if intervals:
            cells.append(_interval(intervals[name], measure) if name in intervals else "")
        if by_chance and name in by_chance:
            shown = by_chance[name]
            cells += [_two(shown.mean, shown.high, ", ", measure), p_value(shown.p_value)]
        table.add_row(titles.get(name, _title(measure)), *cells)
    if by_chance:
        _let_names_give_way(table)
    return table


def gate(found: "Gate") -> Table:
    """Lay out the verdicts of a gate, one a row, with the samples that are needed to tell."""
    level = f"{100 * found.verdicts[0].level:.3g} % interval"
    table = _table("requirement", "verdict", "value", level, "samples needed")
    for verdict in found.verdicts:
        color = {"passed": "green", "failed": "red", "unknown": "yellow"}[verdict.outcome]
        words = "cannot tell" if verdict.outcome == "unknown" else verdict.outcome
        known = not math.isnan(verdict.low)
        table.add_row(
            verdict.requirement,
            f"[{color}]{words}[/{color}]",
            "" if math.isnan(verdict.value) else f"{verdict.value:.4f}",
            f"{verdict.low:.4f} to {verdict.high:.4f}" if known else "",
            "" if verdict.needed is None else f"about {verdict.needed:,}",
        )
    _let_names_give_way(table)
    return table


def stream(result: "StreamEvaluation", names: Sequence[str]) -> Table:
    """Lay out the measures of a stream; an approximate one with the bounds of its exact value."""
    table = _table("measure", "value", "exact value within")
    for name in names:
        measure, bounds = MEASURES[name], result.bounds.get(name)
        span = "" if bounds is None else _span(bounds.low, bounds.high, measure)
        table.add_row(_title(measure), _format(result.metrics[name], measure), span)
    return table


def groups(found: "GroupTable", by: str, *, most: int) -> Table:
    """Lay out the first groups, one a row: their gap with its interval, measures, and the corrected test."""
    names, level = list(found.overall), found.level
    shares = ("with it\n%", "prob.\n%") if by == "label" else ("acc.\n%", "conf.\n%")
    headings = ("samples", *shares, "gap\n%", f"{level:.0%}\ninterval")
    corrected = {"holm": "p\nHolm", "benjamini_hochberg": "p\nBH"}[found.correction]
    table = _table(by, "", *headings, *(heading(MEASURES[name]) for name in names), "Kuiper\nsd", corrected)
    table.padding = (0, 1, 0, 0)  # the columns fit into the 80 characters of a terminal
    for row in found.rows[:most]:
        gap, low, high = (100 * value for value in (row.gap, row.gap_low, row.gap_high))
        cells = [f"{100 * row.accuracy:.1f}", f"{100 * row.mean_confidence:.1f}", f"{gap:+.1f}"]
        values = (row.metrics.get(name, math.nan) for name in names)
        measured = [_bare(value, MEASURES[name]) for value, name in zip(values, names, strict=True)]
        table.add_row(
            *_marked(row, row.name, level),
            f"{row.n:,}",
            *cells,
            f"{low:+.1f} to {high:+.1f}",
            *measured,
            "few" if math.isnan(row.statistic) else f"{row.statistic:.1f}",
            p_value(row.p_corrected),
        )
    _let_names_give_way(table)
    return table


def p_value(p: float) -> str:
    """Return a p-value with three digits after the point; nothing for one that was not computed."""
    if math.isnan(p):
        return ""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def shown(name: str, value: float) -> str:
    """Return a measure as tables show it."""
    return _format(value, MEASURES[name]).strip()


def stream_groups(
    result: "StreamEvaluation",
    names: Sequence[str],
    tests: "Mapping[str, GroupTest]",
    by: str,
    *,
    level: float,
) -> Table:
    """Lay out the groups of a stream, one a row; columns without a better direction are the first to go."""
    names = [name for name in names if MEASURES[name].better != "neither"] or names
    table = _table(by, "", "samples", *(heading(MEASURES[name]) for name in names))
    table.padding = (0, 1, 0, 0)  # eleven columns fit into the 80 characters of a terminal
    for group, test in tests.items():
        found = result.groups[group]
        cells = [_bare(found.metrics[name], MEASURES[name]) for name in names]
        table.add_row(*_marked(test, group, level), f"{found.n:,}", *cells)
    _let_names_give_way(table)
    return table


def classes(rows: "Sequence[ClassRow]") -> Table:
    """Lay out the classes, the least calibrated first."""
    table = _table("class", "samples", "frequency", "mean\nprobability", "recall", "ECE of\nthe class")
    for row in sorted(rows, key=lambda row: -row.ece):
        shares = (row.frequency, row.mean_probability, row.recall, row.ece)
        table.add_row(cell(row.name), f"{row.n:,}", *(_percent(share) for share in shares))
    _let_names_give_way(table)
    return table


def margins(slices: "Sequence[MarginSlice]") -> Table:
    """Lay out the groups of margin, from the smallest to the largest."""
    table = _table("logit margin", "samples", *(heading(MEASURES[name]) for name in slices[0].metrics))
    for part in slices:
        values = (f"{100 * value:.2f}" for value in part.metrics.values())
        table.add_row(f"{part.low:.2f} to {part.high:.2f}", f"{part.n:,}", *values)
    return table


def comparison(result: "PairedComparison", *, width: int) -> Table:
    """Lay out the differences between two models; significant ones are bold.

    Args:
        result: The differences.
        width: Characters of a line; measures have their short names if the table would be wider.
    """
    for short in (False, True):
        table = _comparison(result, short=short)
        if Console(width=1000).measure(table).maximum <= width:
            break
    return table


def _comparison(result: "PairedComparison", *, short: bool) -> Table:
    table = _table("measure", "this", "other", "difference", "95 % interval", "p-value")
    for name, found in result.differences.items():
        measure = MEASURES[name]
        values = (found.value_a, found.value_b, found.difference, found.low, found.high)
        *cells, low, high = (_bare(value, measure, digits=4) for value in values)
        if found.p_value < 1 - found.level:
            cells[2] = f"[bold]{cells[2]}[/bold]"
        title = measure.heading if short else _title(measure) + (", %" if measure.percent else "")
        table.add_row(title, *cells, f"{low} to {high}", p_value(found.p_value))
    return table


def detection(scores: "Mapping[str, OODScores]") -> Table:
    """Lay out how well each score separates known samples from out-of-distribution ones."""
    table = _table("score", "↑ AUROC", "↑ AUPR, known", "↑ AUPR, OOD", "↓ FPR at 95 % TPR")
    for name, found in scores.items():
        shares = (found.auroc, found.aupr_in, found.aupr_out, found.fpr95)
        table.add_row(name, *(_percent(share) for share in shares))
    return table


def methods(comparison: "Comparison", chosen: "MethodResult", *, width: int) -> Table:
    """Lay out methods, on the test set if there was one; the best in a column is bold, the choice marked.

    Args:
        comparison: The methods.
        chosen: The one to mark.
        width: Characters of a line; parameters and times are left out if the table would be wider.
    """
    asides = {
        "share\n%": _shares(comparison),
        "fit s": [f"{result.fit_seconds:.2f}" for result in comparison.results],
        "params": [f"{result.calibrator.n_parameters:,}" for result in comparison.results],
    }
    shown = [name for name, cells in asides.items() if any(cells)]
    for left_out in ([], ["params"], ["params", "fit s"]):
        table = _methods(comparison, chosen, {name: asides[name] for name in shown if name not in left_out})
        if table.columns[0].overflow == "fold" or Console(width=1000).measure(table).maximum <= width:
            break
    return table


def _shares(comparison: "Comparison") -> list[str]:
    """Return the percentage of the pool that each method has; empty for methods without a share."""
    weights = {} if comparison.pool is None else comparison.pool.weights
    return [f"{100 * weights[each.name]:.0f}" if each.name in weights else "" for each in comparison.results]


def _methods(comparison: "Comparison", chosen: "MethodResult", asides: Mapping[str, Sequence[str]]) -> Table:
    where = "out of fold" if comparison.n_test is None else "on test"
    names = tuple(chosen.metrics)
    table = _table(where, *(heading(MEASURES[name]) for name in names), *asides)
    table.padding = (0, 1, 0, 0)  # ten columns fit into the 80 characters of a terminal
    if any("(" in result.name for result in comparison.results):  # long names go on below
        _let_names_give_way(table)
        table.columns[0].overflow = "fold"
    shown = [r.metrics if r.test_metrics is None else r.test_metrics for r in comparison.results]
    best = {name: MEASURES[name].best([metrics[name] for metrics in shown]) for name in names}
    for place, (result, values) in enumerate(zip(comparison.results, shown, strict=True)):
        cells = []
        for name in names:
            number = f"{100 * values[name]:.2f}" if MEASURES[name].percent else f"{values[name]:.3f}"
            cells.append(f"[bold]{number}[/bold]" if values[name] == best[name] else number)
        mark = "→ " if result is chosen else "  "
        table.add_row(line(mark, result.name), *cells, *(each[place] for each in asides.values()))
    return table


def stages(refinement: Mapping[str, Mapping[str, float]]) -> Table:
    """Lay out the refinement of a model after each stage of training."""
    names = list(next(iter(refinement.values())))
    table = _table("after", *(_title(MEASURES[name]) for name in names))
    for stage, values in refinement.items():
        table.add_row(stage, *(_format(values[name], MEASURES[name]) for name in names))
    return table


def elsewhere(methods: Mapping[str, Any]) -> Table:
    """Lay out shifted and out-of-distribution sets, one a row, uncalibrated and calibrated by each method."""
    table = _table("set", "measure", *methods)
    first = next(iter(methods.values()))
    for part in list(first["measures"])[1:]:
        for name in ("accuracy", "ece"):
            values = [each["measures"][part][name] for each in methods.values()]
            table.add_row(cell(part), _title(MEASURES[name]), *(_percent(value) for value in values))
    for part in (name for name in first["detection"] if name not in first["measures"]):
        for score in first["detection"][part]:
            values = [each["detection"][part][score]["auroc"] for each in methods.values()]
            table.add_row(cell(part), f"↑ AUROC, {score}", *(_percent(value) for value in values))
    return table


def described(rows: Mapping[str, str], first: str, second: str = "what it does") -> Table:
    """Lay out what each entry of a catalogue does; names are never cut."""
    table = _table(first, second, justify="left")
    for name, meaning in rows.items():
        table.add_row(name, escape(meaning))
    return table


def described_methods(methods: "Mapping[str, Method]", *, papers: bool) -> Table:
    """Lay out what each method does, with its paper if wanted; a variant names the method it is made from."""
    table = _table("method", "", "what it does", justify="left")
    for name, method in methods.items():
        marks = ("=" if method.preserves_accuracy else " ") + (
            "f" if method.calibrator.needs_features else " "
        )
        meaning, base = method.meaning, variant_of(name)
        if base is not None:
            meaning = call(base, (), method.options)
        text = re.sub(r"; the predicted class (never changes|may change)\.$", ".", meaning)
        table.add_row(name, marks, escape(f"{text}\n{method.paper}" if papers else text))
    return table


def described_measures(measures: "Mapping[str, Measure]") -> Table:
    """Lay out the measures under the names that one types."""
    table = _table("measure", "", "title", justify="left")
    for name, measure in measures.items():
        marks = ("*" if measure.core else " ") + (" " if measure.of_pairs else "p")
        table.add_row(name, marks, escape(_title(measure)))
    return table


def in_columns(names: Sequence[str]) -> Columns:
    """Lay out names in as many columns as fit into a line."""
    return Columns([escape(name) for name in names], padding=(0, 2), column_first=True)


def options(rows: Sequence[tuple[str, str, str]]) -> Table:
    """Lay out options: name, default, meaning."""
    table = _table("option", "default", "meaning", justify="left")
    table.columns[1].no_wrap = True
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def heading(measure: "Measure") -> str:
    """Return the heading of a column, with its unit on a second line so that ten columns fit a terminal."""
    return f"{measure.short}\n%" if measure.percent else measure.short


def _table(first: str, *others: str, justify: Literal["left", "right"] = "right") -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(Text(visible_lines(first)), no_wrap=True)
    for heading in others:
        table.add_column(Text(visible_lines(heading)), justify=justify, overflow="fold")
    return table


def _let_names_give_way(table: Table) -> None:
    """Give the room that is missing in a line to no number: the first column becomes narrower."""
    for column in table.columns:
        column.no_wrap = column is not table.columns[0]


def _title(measure: "Measure") -> str:
    return f"{_ARROWS[measure.better]} {measure.title}"


def _format(value: float, measure: "Measure") -> str:
    if measure.percent or math.isnan(value):
        return _percent(value)
    return f"{value:.4f}  "


def _interval(interval: "Interval", measure: "Measure") -> str:
    return _two(interval.low, interval.high, " to ", measure)


def _two(first: float, second: float, between: str, measure: "Measure") -> str:
    """Return two values of a measure with one unit."""
    return f"{_bare(first, measure, 4)}{between}{_format(second, measure)}"


def _span(low: float, high: float, measure: "Measure") -> str:
    """Return bounds with enough digits to show that they differ."""
    if math.isnan(low):
        return ""
    scale, unit = (100, " %") if measure.percent else (1, "")
    digits = min(12, max(2, 2 - math.floor(math.log10(max(scale * (high - low), 1e-12)))))
    if high - low < 1e-12:
        return "exact"
    return f"{scale * low:.{digits}f}{unit} to {scale * high:.{digits}f}{unit}"


def _bare(value: float, measure: "Measure", digits: int = 3) -> str:
    """Return a measure without its unit, which is in the heading; ``digits`` are those of plain numbers."""
    if math.isnan(value):
        return ""
    return f"{100 * value:.2f}" if measure.percent else f"{value:.{digits}f}"


def _marked(test: "GroupTest", name: str, level: float) -> tuple[Text, str]:
    """Return the name of a group, and a mark if its miscalibration is significant."""
    return cell(name), "*" if test.p_corrected <= 1 - level else ""


def _percent(value: float) -> str:
    return "undefined" if math.isnan(value) else f"{100 * value:.2f} %"
