"""Figures by logit margin: accuracy and confidence in groups of margin, and SMART's temperature curve."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np

from calibrant.bins import Bins
from calibrant.data.predictions import Predictions
from calibrant.evaluation.indicators import NeededTemperatures, needed_temperatures
from calibrant.evaluation.margin_reliability import MarginReliability, margin_reliability
from calibrant.evaluation.slices import by_original_margin
from calibrant.evaluation.temperature_curve import TemperatureCurve, temperature_curve
from calibrant.metrics.margin import MarginSlice
from calibrant.plots import layout, style, words
from calibrant.plots.display import Display, Place
from calibrant.posthoc.smart import SMART

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Points between two panels, for the name of the lower one and the ticks of the upper one.
_BETWEEN = 28.0
# The same across and down, for panels with labels of their own.
_APART = (30.0, 50.0)
# Samples of a bin that is drawn.
_FEWEST = 10


@dataclass(eq=False)
class MarginGroupsDisplay(Display):
    """Mean confidence and accuracy in groups of the margin between the two largest logits, joined by the gap.

    Args:
        groups: Groups of margin of each model or method, by name; each has a panel.
    """

    groups: Mapping[str, Sequence[MarginSlice]]

    def proportion(self, ax: "Axes") -> float:
        """Return the height of the data area in a new figure as a share of its width."""
        rows, inches = len(self.groups), layout.inches(ax)
        return max(0.38, 1.35 / inches) * rows + (rows - 1) * _BETWEEN / 72 / inches

    @classmethod
    def from_predictions(
        cls,
        predictions: Predictions | Mapping[str, Predictions],
        *,
        n_groups: int = 8,
        **place: Unpack[Place],
    ) -> Self:
        """Group predictions by margin and draw them.

        Args:
            predictions: Logits or probabilities with labels; or several of them for the same samples, by
                name: the original ones, whose margins decide the groups, then repaired ones.
            n_groups: Number of groups of equal count.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        given = {"": predictions} if isinstance(predictions, Predictions) else predictions
        return cls(by_original_margin(given, n_groups=n_groups)).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Draw one panel per model."""
        rows = len(self.groups)
        grid = [ax] if rows == 1 else layout.panels(ax, rows, 1, gap=(0, _BETWEEN))
        lowest = min(
            group.metrics[name]
            for groups in self.groups.values()
            for group in groups
            for name in ("accuracy", "mean_confidence")
        )
        for panel, (name, groups) in zip(grid, self.groups.items(), strict=True):
            _draw_groups(panel, groups)
            panel.set_ylim(max(lowest - 0.05, 0), 1.03)
            panel.set_ylabel("confidence, accuracy (%)")
            if name:
                short = words.cut_to_width(name, 72 * layout.inches(ax) - 40, 7.5)
                panel.set_title(short, loc="left", fontsize=7.5, pad=3)
        layout.legend_below(ax, **style.shared_legend(grid))
        original = "original logit margin" if rows > 1 else "logit margin"
        grid[-1].set_xlabel(f"{original}, groups of equal size")


@dataclass(eq=False)
class MarginReliabilityDisplay(Display):
    """Reliability diagrams of all samples and of groups of the original margin, one line per model.

    Beside them, if there are repaired models, the mean change of the confidence along the original margin.
    Bins of fewer than ten samples are left out.

    Args:
        reliability: The bins of each group.
    """

    reliability: MarginReliability

    width = style.PAGE

    def proportion(self, ax: "Axes") -> float:
        """Return the height of the data area in a new figure as a share of its width."""
        columns = self._columns(ax)
        rows = math.ceil(self._count / columns)
        return 0.86 * rows / columns + (rows - 1) * _APART[1] / 72 / layout.inches(ax)

    @property
    def _count(self) -> int:
        return len(self.reliability.bins) + bool(self.reliability.change)

    def _columns(self, ax: "Axes") -> int:
        return layout.columns(ax, self._count, inch=1.6, most=4)

    @classmethod
    def from_predictions(
        cls,
        predictions: Predictions | Mapping[str, Predictions],
        *,
        n_groups: int = 3,
        n_bins: int = 10,
        **place: Unpack[Place],
    ) -> Self:
        """Group predictions by their original margin and draw a reliability diagram of each group.

        Args:
            predictions: Logits or probabilities with labels; or several of them for the same samples, by
                name: the original ones, then repaired ones.
            n_groups: Number of groups of equal count.
            n_bins: Number of bins of equal width.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        given = {"": predictions} if isinstance(predictions, Predictions) else predictions
        return cls(margin_reliability(given, n_groups=n_groups, n_bins=n_bins)).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Draw a panel per group, and one of the changes."""
        columns = self._columns(ax)
        grid = layout.panels(ax, math.ceil(self._count / columns), columns, gap=_APART)
        models = list(next(iter(self.reliability.bins.values())))
        for number, (panel, (title, bins)) in enumerate(
            zip(grid, self.reliability.bins.items(), strict=False)
        ):
            style.diagonal(panel)
            for name, each in bins.items():
                _draw_reliability(panel, each, name, models.index(name))
            style.unit_axes(panel, ticks=4)
            panel.grid()
            panel.set_title(title, fontsize=7.5)
            panel.set_xlabel("confidence (%)")
            panel.set_ylabel("accuracy (%)" if number % columns == 0 else "")
        if self.reliability.change:
            self._draw_change(grid[len(self.reliability.bins)], models)
        for empty in grid[self._count :]:
            empty.set_axis_off()
        if len(models) > 1:
            layout.legend_below(ax, **style.shared_legend(grid[:1]))

    def _draw_change(self, ax: "Axes", models: Sequence[str]) -> None:
        margins = self.reliability.margins.numpy()
        for name, change in self.reliability.change.items():
            look = style.line(models.index(name)) | {"markersize": 2.5}
            ax.plot(margins, change.numpy(), label=name, **look)
        ax.axhline(0, color=style.BLACK, linewidth=0.6)
        style.percent_axis(ax, "y")
        ax.grid()
        ax.set_title("change of confidence (points)", fontsize=7.5)
        ax.set_xlabel("original margin")


@dataclass(eq=False)
class TemperatureCurveDisplay(Display):
    """SMART's temperature along the margin, the single one, and the feasible ones of each group of margins.

    Args:
        curve: The temperatures.
        name: The name of SMART or of its variant.
    """

    curve: TemperatureCurve
    name: str = "SMART"

    @classmethod
    def from_predictions(
        cls,
        predictions: Predictions,
        *,
        calibrator: SMART | None = None,
        name: str = "SMART",
        n_groups: int = 10,
        seed: int = 0,
        **place: Unpack[Place],
    ) -> Self:
        """Fit SMART and temperature scaling to predictions and draw their temperatures.

        Args:
            predictions: Logits or probabilities with labels, held out from training.
            calibrator: SMART, fitted on the margin; by default it is fitted here.
            name: Name of the calibrator in the legend.
            n_groups: Number of groups of margin for which the feasible temperatures are shown.
            seed: For the first weights of SMART's network.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        curve = temperature_curve(predictions, calibrator=calibrator, n_groups=n_groups, seed=seed)
        return cls(curve, name).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Draw SMART's curve, the single temperature, the feasible intervals and the margins' density."""
        curve = self.curve
        top = 1.6 * max(float(curve.temperature.max()), curve.single)
        for number, group in enumerate(curve.feasible):
            # An interval without an upper end is drawn beyond the top of the figure.
            highest = np.minimum(group.highest.numpy(), 4 * top)
            ax.fill_between(
                group.margins.numpy(),
                group.lowest.numpy(),
                highest,
                facecolor=style.PALE_GREY,
                linewidth=0,
                label="feasible: confidence can equal accuracy" if number == 0 else None,
            )
            for bound in (group.lowest.numpy(), highest):
                ax.plot(group.margins.numpy(), bound, color="#8A8A8A", linewidth=0.7)
        ax.axhline(
            curve.single,
            color=style.VERMILION,
            linestyle=(0, (5, 1.6)),
            label=f"temperature scaling, {curve.single:.2f}",
        )
        margins, temperature = curve.margins.numpy(), curve.temperature.numpy()
        label = f"{self.name}, Pearson r = {curve.pearson:.2f}"
        ax.plot(margins, temperature, color=style.BLUE, linewidth=1.8, label=label)
        ax.set_xlim(0, float(curve.margins[-1]))
        ax.set_ylim(0, top)
        ax.set_xlabel("logit margin")
        ax.set_ylabel("temperature")
        layout.legend_below(ax)
        strip = style.strip_above(ax, "samples", height=0.15, fontsize=5.5)
        strip.stairs(curve.share.numpy(), curve.edges.numpy(), fill=True, color="#9A9A9A")
        strip.set_yticks([])


@dataclass(eq=False)
class IndicatorsDisplay(Display):
    """The temperature at which each sample has one confidence, against the margin and other indicators.

    The grey area has the temperatures that are possible at each margin. The narrower the cloud, the better
    an indicator tells which temperature a sample needs.

    Args:
        needed: Temperatures and indicators of the samples.
    """

    needed: NeededTemperatures

    width = style.PAGE

    def proportion(self, ax: "Axes") -> float:
        """Return the height of the data area in a new figure as a share of its width."""
        rows = len(self.needed.indicators) // self._columns(ax)
        return 0.8 * rows / self._columns(ax) + (rows - 1) * _APART[1] / 72 / layout.inches(ax)

    def _columns(self, ax: "Axes") -> int:
        return 3 if layout.inches(ax) > 4 else 1

    @classmethod
    def from_predictions(cls, predictions: Predictions, **place: Unpack[Place]) -> Self:
        """Find the temperatures at which 1,000 samples have a confidence of 80 %, and draw them.

        Args:
            predictions: Logits or probabilities; labels are not used.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        return cls(needed_temperatures(predictions)).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Draw a cloud of dots per indicator."""
        needed, columns = self.needed, self._columns(ax)
        grid = layout.panels(ax, len(needed.indicators) // columns, columns, gap=(14, _APART[1]))
        look: dict[str, Any] = {"color": style.BLUE, "linestyle": "none", "markersize": 1.4}
        ends = float(needed.temperature.min()), float(needed.temperature.max())
        for number, (panel, (name, values)) in enumerate(zip(grid, needed.indicators.items(), strict=True)):
            # Thousands of dots are an image inside vector graphics.
            panel.plot(values.numpy(), needed.temperature.numpy(), "o", rasterized=True, **look)
            panel.set_yscale("log")
            panel.set_ylim(ends[0] / 1.5, ends[1] * 1.5)
            panel.yaxis.set_major_formatter("{x:g}" if number % columns == 0 else "")
            panel.grid()
            panel.set_xlabel(name)
            wanted = f"T for a confidence of {100 * needed.confidence:.0f} %"
            panel.set_ylabel(wanted if number % columns == 0 else "")
        order = needed.indicators["logit margin"].argsort()[::20]
        low, high = needed.lowest[order].numpy(), needed.highest[order].numpy()
        margins = needed.indicators["logit margin"][order].numpy()
        area: dict[str, Any] = {"facecolor": style.PALE_GREY, "linewidth": 0, "zorder": 0}
        grid[0].fill_between(margins, low, high, label="possible at this margin", **area)
        layout.legend_below(ax, **style.shared_legend(grid[:1]))


def _draw_reliability(ax: "Axes", bins: Bins, name: str, number: int) -> None:
    shown = bins.count >= _FEWEST
    confidence, accuracy = bins.confidence[shown].numpy(), bins.accuracy[shown].numpy()
    ax.plot(confidence, accuracy, label=words.legend_name(name), clip_on=False, **style.line(number))


def _draw_groups(ax: "Axes", groups: Sequence[MarginSlice]) -> None:
    places = range(len(groups))
    accuracy = [group.metrics["accuracy"] for group in groups]
    confidence = [group.metrics["mean_confidence"] for group in groups]
    over = [
        "gap: overconfident" if c > a else "gap: underconfident"
        for a, c in zip(accuracy, confidence, strict=True)
    ]
    looks = {"gap: overconfident": style.OVER, "gap: underconfident": style.UNDER}
    for kind, look in looks.items():
        mine = [place for place in places if over[place] == kind]
        if mine:
            height = [confidence[place] - accuracy[place] for place in mine]
            bottom = [accuracy[place] for place in mine]
            ax.bar(mine, height, 0.34, bottom, label=kind, **look)
    ax.plot(
        places, confidence, "_", color=style.BLACK, markersize=11, markeredgewidth=1.5, label="confidence"
    )
    ax.plot(places, accuracy, "o", color=style.BLUE, markersize=4, label="accuracy")
    ax.grid(axis="y")
    style.percent_axis(ax, "y")
    style.group_edges(ax, [groups[0].low, *(group.high for group in groups)])
