"""The tables of evaluations, comparisons, groups, classes and detectors."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from calibrant.metrics.measure import Measure
from calibrant.metrics.names import MEASURES
from calibrant.show.numbers import (
    NOTHING,
    Cell,
    bare,
    count,
    measured,
    number,
    p_value,
    pair,
    percent,
    points,
    span,
)
from calibrant.show.table import Column, Table

if TYPE_CHECKING:
    from calibrant.evaluation.compare import MethodResult
    from calibrant.evaluation.groups import GroupTable, GroupTest
    from calibrant.evaluation.paired import PairedComparison
    from calibrant.evaluation.slices import ClassRow
    from calibrant.inference.chance import Chance
    from calibrant.inference.intervals import Interval
    from calibrant.inference.paired import PairedDifference
    from calibrant.metrics.margin import MarginSlice
    from calibrant.metrics.ood import OODScores

_ARROWS = {"lower": "↓", "higher": "↑", "neither": " "}
_BY_CHANCE = (
    "by chance: mean and 95th percentile of a perfectly calibrated model with these predictions; "
    "p: how often it shows at least as much"
)
#: The groups of several labels at once.
LABEL = "label"
_TITLES_OF_LABELS = {
    "accuracy": "  entries that have their label",
    "mean_confidence": "  mean probability",
    "auroc_correct": "↑ AUROC",
}
# Of a score that only ranks: what came true is no accuracy.
_TITLES_OF_SCORES = {"accuracy": "  mean outcome", "auroc_correct": "↑ AUROC"}
# The share of entries that have their label is no accuracy.
_WITH_LABEL = Column("with label", "%")
# Groups that fit on a screen or two.
_MOST_GROUPS = 50


def measures_table(
    results: Mapping[str, Mapping[str, float | None]],
    intervals: "Mapping[str, Interval]" = MappingProxyType({}),
    by_chance: "Mapping[str, Chance]" = MappingProxyType({}),
    *,
    of_labels: bool = False,
    of_scores: bool = False,
    title: str = "",
    notes: Sequence[str] = (),
) -> Table:
    """Lay out measures in rows and results in columns; the best of several results is emphasised.

    Args:
        results: Measures by name, of each result.
        intervals: Intervals by name of the measure.
        by_chance: What a calibrated model would show, by name of the measure.
        of_labels: Whether the entries are several labels at once.
        of_scores: Whether they are scores that only rank.
        title: What the table is about.
        notes: Sentences below it.
    """
    titles = _TITLES_OF_LABELS if of_labels else _TITLES_OF_SCORES if of_scores else {}
    rows = []
    for name in (name for name in MEASURES if all(name in metrics for metrics in results.values())):
        measure = MEASURES[name]
        row = [
            Cell(name, titles.get(name, title_of(measure))),
            *_values([m[name] for m in results.values()], measure),
        ]
        if intervals:
            each = intervals.get(name)
            row.append(NOTHING if each is None else _two(each.low, each.high, " to ", measure))
        if name in by_chance:
            chance = by_chance[name]
            row += [_two(chance.mean, chance.high, ", ", measure), p_value(chance.p_value)]
        rows.append(row)
    further = (["95 % interval"] if intervals else []) + (["by chance", "p"] if by_chance else [])
    below = ([_BY_CHANCE] if by_chance else []) + list(notes)
    columns = ["measure", *results, *further]
    # With both, the columns just fit into the 80 characters of a terminal.
    return Table.of(columns, rows, title=title, notes=tuple(below), dense=bool(intervals and by_chance))


def remarks_on(skipped: Mapping[str, str], remarks: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Return what was left out, each with the reason, and remarks by name."""
    left_out = [f"{name} is left out: {reason}" for name, reason in skipped.items()]
    return left_out + [f"{name}: {remark}" for name, remark in remarks.items()]


def methods_table(
    results: "Sequence[MethodResult]",
    *,
    where: str,
    shares: Mapping[str, float],
    chosen: "MethodResult | None" = None,
    title: str = "",
    notes: Sequence[str] = (),
) -> Table:
    """Lay out methods; the best in a column is emphasised, and so is the likeliest method.

    Args:
        results: The methods.
        where: On which samples they were measured.
        shares: Share of the pool by name.
        chosen: The method to mark.
        title: What the table is about.
        notes: Sentences below it.
    """
    shown = [each.metrics if each.test_metrics is None else each.test_metrics for each in results]
    names = [name for name in results[0].metrics if all(name in metrics for metrics in shown)]
    best = {name: MEASURES[name].best([metrics[name] for metrics in shown]) for name in names}
    several = len(results) > 1
    rows = []
    for result, values in zip(results, shown, strict=True):
        cells = [_emphasised(name, values[name], best[name] if several else math.nan) for name in names]
        likeliest = several and "nll" in names and values["nll"] == best["nll"]
        rows.append(
            [
                Cell(result.name, result.name, "best" if likeliest else ""),
                *cells,
                *([points(shares.get(result.name), 0)] if shares else []),
                _change(result.improvement.low, result.improvement.high),
                number(result.fit_seconds, 2),
                count(result.calibrator.n_parameters),
            ]
        )
    asides = [Column("share", "%")] if shares else []
    asides += [Column("change of NLL", optional=3), Column("fit s", optional=1), Column("params", optional=2)]
    wraps = any("(" in result.name for result in results)  # long names go on below
    entries = results[0].held_out
    of_labels = entries.n_rows < entries.n
    measures = [_WITH_LABEL if of_labels and name == "accuracy" else column_of(name) for name in names]
    columns = [Column(where, align="left", wraps=wraps), *measures, *asides]
    place = None if chosen is None else next(at for at, each in enumerate(results) if each is chosen)
    return Table.of(columns, rows, title=title, notes=tuple(notes), dense=True, chosen=place)


def paired_table(
    differences: "Mapping[str, PairedDifference]", *, title: str, notes: Sequence[str] = ()
) -> Table:
    """Lay out the differences between two models; significant ones are emphasised."""
    rows = []
    for name, found in differences.items():
        measure = MEASURES[name]
        values = (found.value_a, found.value_b, found.difference)
        cells = [bare(value, in_percent=measure.percent, digits=4) for value in values]
        if found.p_value < 1 - found.level:
            cells[2] = cells[2].styled("best")
        ends = span(found.low, found.high, partial(bare, in_percent=measure.percent, digits=4))
        unit = ", %" if measure.percent else ""
        rows.append(
            [
                Cell(name, title_of(measure) + unit, short=measure.heading),
                *cells,
                ends,
                p_value(found.p_value),
            ]
        )
    columns = ["measure", "this", "other", "difference", "95 % interval", "p-value"]
    return Table.of(columns, rows, title=title, notes=tuple(notes))


def models_table(
    pairs: "Mapping[tuple[str, str], PairedComparison]",
    p_corrected: Mapping[str, Mapping[tuple[str, str], float]],
    *,
    notes: Sequence[str] = (),
) -> Table:
    """Lay out the differences between each two models; significant ones are emphasised."""
    rows = []
    for both, found_pair in pairs.items():
        for place, (name, of_pairs) in enumerate(p_corrected.items()):
            measure, found = MEASURES[name], found_pair.differences[name]
            write = partial(bare, in_percent=measure.percent, digits=4)
            difference = write(found.difference)
            rows.append(
                [
                    Cell(both, "" if place else " - ".join(both)),
                    Cell(name, title_of(measure) + (", %" if measure.percent else ""), short=measure.heading),
                    difference.styled("best") if of_pairs[both] < 1 - found.level else difference,
                    span(found.low, found.high, write),
                    p_value(found.p_value),
                    p_value(of_pairs[both]),
                ]
            )
    columns = [Column("models", align="left", wraps=True), Column("measure", align="left")]
    columns += [Column(each) for each in ("difference", "95 % interval", "p-value", "p\nHolm")]
    return Table.of(columns, rows, title="Differences between models", notes=tuple(notes), dense=True)


def groups_table(found: "GroupTable", by: str = "group") -> Table:
    """Lay out groups, one a row: their gap with its interval, measures, and the corrected test."""
    names, level = list(found.overall), found.level
    shares = ("with it", "prob.") if by == LABEL else ("acc.", "conf.")
    corrected = {"holm": "p\nHolm", "benjamini_hochberg": "p\nBH"}[found.correction]
    by_unit = any(row.n_units < row.n for row in found.rows)
    # All labels have the same rows.
    sizes = [] if by == LABEL else [Column("samples"), *_units_column(by_unit)]
    columns = [Column(by, align="left"), Column(""), *sizes]
    columns += [Column(each, "%") for each in (*shares, "gap")] + [Column(f"{level:.0%}\ninterval")]
    columns += [*map(column_of, names), Column("Kuiper\nsd"), Column(corrected)]
    rows = []
    for row in found.rows:
        significant = row.p_corrected <= 1 - level
        rows.append(
            [
                Cell(row.name, row.name, "best" if significant else ""),
                Cell(significant, "*" if significant else ""),
                *([count(row.n), *([count(row.n_units)] if by_unit else [])] if sizes else []),
                points(row.accuracy, 1),
                points(row.mean_confidence, 1),
                points(row.gap, 1, sign=True),
                span(row.gap_low, row.gap_high, lambda end: points(end, 1, sign=True)),
                *(bare(row.metrics.get(name), in_percent=MEASURES[name].percent) for name in names),
                Cell(None, "few") if math.isnan(row.statistic) else number(row.statistic, 1),
                p_value(row.p_corrected),
            ]
        )
    sentence, whole, within = found.sentence, "over all samples", "within groups"
    if by == LABEL:
        sentence, whole, within = sentence.replace("groups", "labels"), "over all entries", "mean over labels"
    notes = [f"* {sentence}"]
    for name, value in found.overall.items():
        everywhere, inside = (shown(name, each) for each in (value, found.within[name]))
        notes.append(f"{MEASURES[name].title}: {everywhere} {whole}, {inside} {within}")
    title = f"{len(found.rows)} groups, the worst first"
    return Table.of(columns, rows, title=title, notes=tuple(notes), dense=True, most=_MOST_GROUPS)


def stream_groups_table(
    groups: Mapping[str, Mapping[str, float]],
    tests: "Mapping[str, GroupTest]",
    by: str,
    note: str,
    *,
    level: float,
) -> Table:
    """Lay out the groups of a stream, one a row; columns without a better direction are left out."""
    known = list(next(iter(groups.values())))
    names = [name for name in known if MEASURES[name].better != "neither"] or known
    by_unit = any(test.n_units < test.n for test in tests.values())
    rows = [
        [
            group,
            Cell(test.p_corrected <= 1 - level, "*" if test.p_corrected <= 1 - level else ""),
            count(test.n),
            *([count(test.n_units)] if by_unit else []),
            *(bare(groups[group][name], in_percent=MEASURES[name].percent) for name in names),
        ]
        for group, test in tests.items()
    ]
    columns = [Column(by, align="left"), Column(""), Column("samples"), *_units_column(by_unit)]
    columns += map(column_of, names)
    return Table.of(columns, rows, notes=(f"* {note}",), dense=True)


def _units_column(by_unit: bool) -> list[Column]:
    """Return the column of the number of units, if groups have units."""
    return [Column("units", optional=1)] if by_unit else []


def classes_table(rows: "Sequence[ClassRow]") -> Table:
    """Lay out the classes, the least calibrated first."""
    cells = [
        [row.name, row.n, *map(percent, (row.frequency, row.mean_probability, row.recall, row.ece))]
        for row in sorted(rows, key=lambda row: -row.ece)
    ]
    return Table.of(
        ["class", "samples", "frequency", "mean\nprobability", "recall", "ECE of\nthe class"], cells
    )


def margins_table(slices: "Sequence[MarginSlice]") -> Table:
    """Lay out the groups of margin, from the smallest to the largest."""
    rows = [
        [span(part.low, part.high, lambda end: number(end, 2)), part.n, *map(points, part.metrics.values())]
        for part in slices
    ]
    return Table.of(["logit margin", "samples", *map(column_of, slices[0].metrics)], rows)


def detection_table(scores: "Mapping[str, OODScores]") -> Table:
    """Lay out how well each score separates known samples from out-of-distribution ones."""
    rows = [
        [name, *map(percent, (found.auroc, found.aupr_in, found.aupr_out, found.fpr95))]
        for name, found in scores.items()
    ]
    return Table.of(["score", "↑ AUROC", "↑ AUPR, known", "↑ AUPR, OOD", "↓ FPR at 95 % TPR"], rows)


def title_of(measure: Measure) -> str:
    """Return the title of a measure with an arrow towards better values."""
    return f"{_ARROWS[measure.better]} {measure.title}"


def column_of(name: str) -> Column:
    """Return the column of a measure; its cells have no unit."""
    return Column(MEASURES[name].short, "%" if MEASURES[name].percent else "")


def shown(name: str, value: float) -> str:
    """Return a measure in a sentence."""
    return measured(value, in_percent=MEASURES[name].percent).text.strip()


def _values(values: Sequence[float | None], measure: Measure) -> list[Cell]:
    known = [math.nan if value is None else value for value in values]
    best = measure.best(known) if len(known) > 1 else math.nan
    cells = [measured(value, in_percent=measure.percent) for value in known]
    return [cell.styled("best") if value == best else cell for cell, value in zip(cells, known, strict=True)]


def _change(low: float, high: float) -> Cell:
    """Write the interval of a change of the negative log-likelihood; nothing for the uncalibrated model."""
    return span(low, high, partial(number, sign=True)) if max(-low, high) >= 5e-5 else NOTHING


def _emphasised(name: str, value: float, best: float) -> Cell:
    cell = bare(value, in_percent=MEASURES[name].percent)
    return cell.styled("best") if value == best else cell


def _two(first: float, second: float, between: str, measure: Measure) -> Cell:
    return pair(first, second, between, in_percent=measure.percent)
