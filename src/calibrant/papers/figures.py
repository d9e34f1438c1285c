"""Figures of finished rows: means over seeds with their intervals, as an experiment's file lays them out."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.errors import InputError, listed
from calibrant.inference.intervals import t_interval
from calibrant.inputs import Floats
from calibrant.papers.experiment import (
    Experiment,
    FigureLayout,
    TableLayout,
    experiment_names,
    load_experiment,
)
from calibrant.papers.rows import Row, finished_rows, flat, saved_experiment
from calibrant.papers.table import MeasureColumn, ResultTable, SeedValues, in_order, make_table
from calibrant.plots import layout, style, words
from calibrant.plots.display import Display

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Points between panels, for ticks, labels and titles.
_BETWEEN = (40.0, 46.0)
# Inches that a panel takes at least, and points from one row of dots to the next.
_PANEL, _ROW = 1.6, 10.0
# Points that the name of a row of dots takes at most.
_NAMES = 130.0
# Width in inches of a figure with one panel.
_SINGLE = 4.2


@dataclass(frozen=True)
class Series:
    """The values of one line, or of the dots of one colour.

    Attributes:
        places: Values of the label on the axis.
        mean: Mean over the seeds at each place.
        low: Lower end of its 95 % interval; NaN for one seed.
        high: Upper end of its interval.
    """

    places: tuple[str, ...]
    mean: Floats
    low: Floats
    high: Floats


@dataclass(eq=False)
class ResultFigure(Display):
    """One panel for each measure and group of columns; means over seeds with 95 % t-intervals.

    Args:
        figure: The layout.
        table: The results, with the label on the axis as the last label of each line.
    """

    figure: FigureLayout
    table: ResultTable

    width = style.PAGE

    @cached_property
    def panels(self) -> dict[MeasureColumn, dict[str, Series]]:
        """The series of each panel, by name."""
        return {
            column: _series({labels: cells[place] for labels, cells in self.table.lines.items()}, column)
            for place, column in enumerate(self.table.columns)
        }

    @cached_property
    def _names(self) -> list[str]:
        """The names of all series, whose positions decide their looks."""
        return list(dict.fromkeys(name for series in self.panels.values() for name in series))

    @cached_property
    def _places(self) -> list[str]:
        """All values of the label on the axis, in the order of the grid."""
        return list(dict.fromkeys(labels[-1] for labels in self.table.lines))

    def proportion(self, ax: "Axes") -> float:
        """Return the height of the data area in a new figure as a share of its width."""
        columns, inches = self._columns(ax), layout.inches(ax)
        rows = math.ceil(len(self.panels) / columns)
        between = (rows - 1) * _BETWEEN[1] / 72 / inches
        if self.figure.kind == "lines":
            return rows * 0.62 / columns + between
        # Names stand left of the dots, so that the area is narrower than the figure.
        return 1.25 * (rows * max(len(self._places) * self._row, 60) / 72 / inches + between)

    @property
    def _row(self) -> float:
        """Points from one row of dots to the next."""
        return max(_ROW, 3.2 * len(self._names))

    def _columns(self, ax: "Axes") -> int:
        together = len(self.figure.y)
        return layout.columns(ax, len(self.panels), inch=_PANEL, most=together if together > 1 else 3)

    def draw(self, ax: "Axes") -> None:
        """Draw the panels and one legend."""
        columns = self._columns(ax)
        rows = math.ceil(len(self.panels) / columns)
        grid = [ax] if len(self.panels) == 1 else layout.panels(ax, rows, columns, gap=_BETWEEN)
        points = 72 * layout.inches(ax) / columns - 24
        for number, (panel, (column, series)) in enumerate(zip(grid, self.panels.items(), strict=False)):
            looks = {name: style.line(self._names.index(name)) for name in series}
            if self.figure.kind == "lines":
                self._draw_lines(panel, series, looks, points)
                panel.set_ylabel(column.quantity.heading)
                panel.set_xlabel(_label(self.figure.x) if number >= len(self.panels) - columns else "")
            else:
                self._draw_dots(panel, series, looks, named=number % columns == 0)
                panel.set_xlabel(column.quantity.heading)
            group = zip(self.figure.panel, column.group, strict=True)
            title = ", ".join(_value(label, each) for label, each in group if each)
            panel.set_title(words.wrapped(title, points, 7.5, most=2), fontsize=7.5)
        for empty in grid[len(self.panels) :]:
            empty.set_axis_off()
        if len(self._names) > 1:
            layout.legend_below(ax, **style.shared_legend(grid[: len(self.panels)]))

    def _draw_lines(
        self, ax: "Axes", series: Mapping[str, Series], looks: Mapping[str, dict[str, Any]], points: float
    ) -> None:
        from matplotlib.ticker import MaxNLocator

        for name, each in series.items():
            xs, look = np.array([float(place) for place in each.places]), looks[name]
            order = np.argsort(xs)
            low, high = each.low[order], each.high[order]
            ax.fill_between(xs[order], low, high, color=look["color"], alpha=0.13, linewidth=0)
            ax.plot(xs[order], each.mean[order], label=words.legend_name(name), **look)
        if self.figure.log:
            ax.set_xscale("log")
            ticks = sorted({float(place) for place in self._places})
            ax.set_xticks(ticks, style.apart(ticks, points))
            ax.set_xticks([], minor=True)
        ax.set_ylim(*_limits(list(series.values())))
        ax.yaxis.set_major_locator(MaxNLocator(5))
        ax.grid()

    def _draw_dots(
        self, ax: "Axes", series: Mapping[str, Series], looks: Mapping[str, dict[str, Any]], *, named: bool
    ) -> None:
        from matplotlib.ticker import MaxNLocator

        for name, each in series.items():
            # The dots of one row stand below each other where there are several.
            shift = (self._names.index(name) - (len(self._names) - 1) / 2) * 0.72 / max(len(self._names), 1)
            places = np.array([self._places.index(place) for place in each.places]) + shift
            ends = np.nan_to_num(np.abs(np.stack([each.low, each.high]) - each.mean))
            look: dict[str, Any] = looks[name] | {"linestyle": "none", "elinewidth": 0.9, "capsize": 1.5}
            ax.errorbar(each.mean, places, xerr=ends, label=words.legend_name(name), **look)
        shown = [words.cut_to_width(_value(self.figure.x, place), _NAMES, 6.5) for place in self._places]
        ax.set_yticks(range(len(shown)), shown if named else [""] * len(shown))
        ax.set_ylim(len(shown) - 0.4, -0.6)
        ax.set_xlim(*_limits(list(series.values())))
        ax.xaxis.set_major_locator(MaxNLocator(5))
        ax.tick_params(axis="y", length=0)
        ax.grid()


def figures_of_folder(folder: Path) -> dict[str, ResultFigure]:
    """Return the figures of a folder that ``calibrant bench run`` wrote, by name.

    An experiment that was saved without figures has those of the experiment that comes with the package.
    """
    experiment = saved_experiment(folder)
    if not experiment.figures and experiment.name in experiment_names():
        experiment = load_experiment(experiment.name)
    return make_figures(experiment, finished_rows(folder))


def make_figures(experiment: Experiment, rows: Iterable[Row]) -> dict[str, ResultFigure]:
    """Draw the figures of an experiment, by name; those that no finished row belongs to are left out."""
    finished = in_order(experiment, rows)
    if not experiment.figures:
        raise InputError(
            f"{experiment.name}: expected an experiment with figures, got one that declares none"
        )
    made = {figure.name: ResultFigure(figure, _table(figure, finished)) for figure in experiment.figures}
    drawn = {
        name: each.plot(width=_SINGLE if len(each.panels) == 1 else None, title=each.figure.title or None)
        for name, each in made.items()
        if each.panels
    }
    if not drawn:
        known = sorted({name for record in flat(finished) for name in record["values"]})
        raise InputError(
            f"{experiment.name}: expected rows with the labels and measures of its figures, got rows with "
            f"{listed(known)}"
        )
    return drawn


def _table(figure: FigureLayout, rows: list[Row]) -> ResultTable:
    table = TableLayout((*figure.group, figure.x), figure.y, columns=figure.panel, only=figure.only)
    return make_table(table, rows)


def _series(cells: Mapping[tuple[str, ...], SeedValues | None], column: MeasureColumn) -> dict[str, Series]:
    """Return the cells of a column as series, by the labels before the last one."""
    found: dict[str, dict[str, list[float]]] = {}
    for (*group, place), cell in cells.items():
        if cell is not None:
            name = ", ".join(_value("", each) for each in group if each)
            found.setdefault(name, {})[place] = list(cell.values.values())
    scale = 100 if column.quantity.percent else 1
    return {name: _summary(places, scale) for name, places in found.items()}


def _summary(places: Mapping[str, list[float]], scale: float) -> Series:
    ends = np.array([t_interval(values) for values in places.values()]).T
    low, high = np.where(np.isfinite(ends), ends, math.nan)
    mean = np.array([sum(values) / len(values) for values in places.values()])
    return Series(tuple(places), scale * mean, scale * low, scale * high)


def _limits(series: Sequence[Series]) -> tuple[float, float]:
    """Return the ends of an axis around all intervals, not below 0 if no mean is."""
    low = min(float(np.fmin.reduce(np.append(each.mean, each.low))) for each in series)
    high = max(float(np.fmax.reduce(np.append(each.mean, each.high))) for each in series)
    least = min(float(each.mean.min()) for each in series)
    edge = 0.05 * ((high - low) or 1.0)
    return max(low - edge, 0.0) if least >= 0 else low - edge, high + edge


def _label(name: str) -> str:
    return name.rpartition(".")[2].replace("_", " ")


def _value(label: str, value: str) -> str:
    """Return a label's value as text: a number with its label, a file by its name."""
    if value.startswith("files:"):
        return PurePosixPath(value.partition(":")[2]).stem
    is_number = value.replace(".", "", 1).replace("-", "", 1).isdigit()
    return f"{_label(label)} {float(value):.3g}" if label and is_number else value
