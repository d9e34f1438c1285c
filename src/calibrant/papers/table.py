"""Tables of finished rows: means over seeds, the best marked, and the papers' figures beside ours."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from calibrant.errors import InputError, listed
from calibrant.inference.intervals import t_interval
from calibrant.papers.experiment import PRESETS, Experiment, PaperColumn, TableLayout, is_wanted
from calibrant.papers.printed import paper_figures
from calibrant.papers.quantities import Quantity, quantity
from calibrant.papers.rankings import elo_ratings
from calibrant.papers.rows import Row, flat, identity
from calibrant.show.numbers import Cell
from calibrant.show.table import Column, Table

# Significance level of the paired t-test.
_LEVEL = 0.05


@dataclass(frozen=True)
class SeedValues:
    """One measure in one line.

    Attributes:
        values: The number of each seed.
        is_best: Whether its mean is the best of its column.
        is_near: Whether it is not significantly worse than the best, by a paired t-test over the seeds.
    """

    values: Mapping[int, float]
    is_best: bool = False
    is_near: bool = False

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return fmean(self.values.values())

    @property
    def std(self) -> float:
        """Standard deviation over the seeds; 0 for one seed."""
        return stdev(self.values.values()) if len(self.values) > 1 else 0.0


@dataclass(frozen=True)
class MeasureColumn:
    """A column: the group it belongs to, and what it measures."""

    group: tuple[str, ...]
    measure: str

    @property
    def quantity(self) -> Quantity:
        """Heading, direction and unit of the measure."""
        return quantity(self.measure)

    @property
    def heading(self) -> str:
        """Text above the column."""
        return ", ".join(filter(None, [*self.group, self.quantity.heading]))


@dataclass(frozen=True)
class ResultTable:
    """Results of an experiment.

    Attributes:
        layout: Its layout.
        columns: Its columns of measures.
        lines: Cells of each line by its labels; None for a missing cell.
        papers: For each paper's column its figures as text, by the labels of the line.
        seeds: Number of seeds.
    """

    layout: TableLayout
    columns: tuple[MeasureColumn, ...]
    lines: Mapping[tuple[str, ...], tuple[SeedValues | None, ...]]
    papers: Mapping[str, Mapping[tuple[str, ...], str]]
    seeds: int

    def to_table(self) -> Table:
        """Return mean and deviation over the seeds, the best and those near it emphasised."""
        columns = [Column(label, align="left") for label in self.layout.rows]
        columns += [Column(each) for each in (*(column.heading for column in self.columns), *self.papers)]
        rows = [
            [
                *labels,
                *(_cell(each, column) for each, column in zip(cells, self.columns, strict=True)),
                *(figures.get(labels, "") for figures in self.papers.values()),
            ]
            for labels, cells in self.lines.items()
        ]
        return Table.of(columns, rows)


def _cell(values: SeedValues | None, column: MeasureColumn) -> Cell:
    if values is None:
        return Cell(None, "\N{EN DASH}")
    text = column.quantity.text(values.mean)
    if len(values.values) > 1:
        text += f" ± {column.quantity.text(values.std, beside=values.mean)}"
    return Cell(values.mean, text, "best" if values.is_best else "near" if values.is_near else "")


def make_tables(experiment: Experiment, rows: Iterable[Row]) -> list[ResultTable]:
    """Make the tables of an experiment from its finished rows.

    Lines and columns have the order of the experiment's grid. If several results of a seed belong to a cell,
    such as those of all tasks of an arena, it shows their mean. The measure ``elo`` is computed from all
    pairs of methods by :func:`~calibrant.papers.rankings.elo_ratings`.
    """
    finished = in_order(experiment, rows)
    tables = [make_table(layout, finished) for layout in experiment.layouts]
    filled = [each for each in tables if each.lines and each.columns]
    if not filled:
        raise _nothing_to_show(experiment, finished)
    return filled


def in_order(experiment: Experiment, rows: Iterable[Row]) -> list[Row]:
    """Return finished rows in the order of the experiment's grid; refuse an experiment without any."""
    order = {
        identity(job): place
        for preset in PRESETS
        if preset in experiment.presets
        for place, job in enumerate(experiment.jobs(preset, seeds=1))
    }
    finished = sorted(rows, key=lambda row: (order.get(identity(row, seed=0), len(order)), row.seed))
    if not finished:
        raise InputError(f"{experiment.name}: expected finished rows, got none; run the experiment first")
    return finished


def _nothing_to_show(experiment: Experiment, rows: Sequence[Row]) -> InputError:
    """Return the error of tables that show no finished row: their ``only`` or ``measures`` match nothing."""
    records = flat(rows)
    labels = dict.fromkeys(name for layout in experiment.layouts for name in layout.only)
    known = [
        f"{name}={listed(sorted({str(record.get(name)) for record in records}), most=5)}, " for name in labels
    ]
    measures = sorted({name for record in records for name in record["values"]})
    asked = "; ".join(
        f"only = {dict(layout.only)}, measures = {list(layout.measures)}" for layout in experiment.layouts
    )
    return InputError(
        f"table: expected labels and measures of the finished rows, which have {''.join(known)}"
        f"measures {listed(measures)}, got {asked}; correct the table in the experiment's file"
    )


def make_table(layout: TableLayout, rows: Sequence[Row]) -> ResultTable:
    """Make one table from finished rows, in their order; it has no lines if the layout matches none."""
    records = [each for each in flat(rows) if _wanted(each, layout.only)]
    if "elo" in layout.measures:
        _add_elo(records)
    results: dict[tuple[tuple[str, ...], MeasureColumn], dict[int, list[float]]] = {}
    lines: dict[tuple[str, ...], Mapping[str, Any]] = {}
    groups: dict[tuple[str, ...], None] = {}
    for record in records:
        line = tuple(str(record.get(label, "")) for label in layout.rows)
        group = tuple(str(record.get(label, "")) for label in layout.columns)
        lines.setdefault(line, record)
        groups[group] = None
        for name in layout.measures:
            value = record["values"].get(name)
            if value is not None and math.isfinite(value):
                cell = results.setdefault((line, MeasureColumn(group, name)), defaultdict(list))
                cell[record["seed"]].append(value)
    found = {place: {seed: fmean(values) for seed, values in cell.items()} for place, cell in results.items()}
    columns = [MeasureColumn(group, name) for group in groups for name in layout.measures]
    columns = [column for column in columns if any((line, column) in found for line in lines)]
    marked = [_marked([found.get((line, column), {}) for line in lines], column) for column in columns]
    return ResultTable(
        layout,
        tuple(columns),
        {line: tuple(cells[place] for cells in marked) for place, line in enumerate(lines)},
        {column.title: _figures(column, lines) for column in layout.paper},
        len({record["seed"] for record in records}),
    )


def _add_elo(records: Sequence[dict[str, Any]]) -> None:
    """Add to every result the rating of its method over all tasks of its seed, by Brier score."""
    for seed in {record["seed"] for record in records}:
        tasks: dict[str, dict[str, float]] = defaultdict(dict)
        own = [record for record in records if record["seed"] == seed]
        for record in own:
            task = str([value for name, value in record.items() if name not in ("method", "values", "draws")])
            tasks[task][record["method"]] = record["values"]["brier"]
        ratings = elo_ratings(list(tasks.values()))
        for record in own:
            record["values"]["elo"] = ratings[record["method"]]


def _wanted(record: Mapping[str, Any], only: Mapping[str, Any]) -> bool:
    wanted = {label: value if isinstance(value, list) else [value] for label, value in only.items()}
    return is_wanted(record, {label: [str(value) for value in values] for label, values in wanted.items()})


def _marked(values: Sequence[Mapping[int, float]], column: MeasureColumn) -> list[SeedValues | None]:
    """Mark the best cell of a column and those that are not significantly worse."""
    cells = [SeedValues(each) if each else None for each in values]
    better = column.quantity.better
    present = [cell for cell in cells if cell is not None]
    if better == "neither" or len(present) < 2:
        return cells
    sign = 1 if better == "lower" else -1
    best = min(present, key=lambda cell: sign * cell.mean)
    return [
        None if cell is None else SeedValues(cell.values, cell.mean == best.mean, _near(cell, best, sign))
        for cell in cells
    ]


def _near(cell: SeedValues, best: SeedValues, sign: int) -> bool:
    """Whether a cell is not significantly worse than the best, by a one-sided paired t-test over seeds."""
    shared = cell.values.keys() & best.values.keys()
    behind = [sign * (cell.values[seed] - best.values[seed]) for seed in sorted(shared)]
    # The lower end of a two-sided interval is that of a one-sided test with half its error.
    return len(behind) > 1 and t_interval(behind, level=1 - 2 * _LEVEL)[0] <= 0


def _figures(
    column: PaperColumn, lines: Mapping[tuple[str, ...], Mapping[str, Any]]
) -> dict[tuple[str, ...], str]:
    """Return a paper's figure for each line whose labels match exactly one."""
    where = dict(column.where)
    known = paper_figures(where.pop("paper"), **where)
    found = {}
    for line, record in lines.items():
        fits = [
            figure
            for figure in known
            if all(
                getattr(figure, theirs) == column.theirs(record.get(ours))
                for ours, theirs in column.match.items()
            )
        ]
        if len(fits) == 1:
            value, std = fits[0].value, fits[0].std
            found[line] = f"{value:g}" if std is None else f"{value:g} ± {std:g}"
    return found
