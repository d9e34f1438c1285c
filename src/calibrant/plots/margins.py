"""Figures by logit margin: confidence and accuracy in groups of margin, and SMART's temperature curve."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

import numpy as np

from calibrant.data.predictions import Predictions
from calibrant.evaluation.slices import by_margin
from calibrant.evaluation.temperature_curve import TemperatureCurve, temperature_curve
from calibrant.metrics.margin import MarginSlice
from calibrant.plots import layout, style, words
from calibrant.plots.display import Display, Place
from calibrant.posthoc.smart import SMART

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Points between two panels, for the name of the lower one and the ticks of the upper one.
_BETWEEN = 28.0


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
            predictions: Logits or probabilities with labels, or several of them by name.
            n_groups: Number of groups of equal count.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        given = {"": predictions} if isinstance(predictions, Predictions) else predictions
        groups = {}
        for name, each in given.items():
            # Logarithms of probabilities have the margins of the logits.
            scored = each.classes()
            groups[name] = by_margin(scored.with_scores(scored.to_logits()), n_groups=n_groups)
        return cls(groups).plot(**place)

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
        grid[-1].set_xlabel("logit margin, groups of equal size")


@dataclass(eq=False)
class TemperatureCurveDisplay(Display):
    """SMART's temperature along the margin, the single one, and the feasible ones of each group of margins.

    Args:
        curve: The temperatures.
    """

    curve: TemperatureCurve

    @classmethod
    def from_predictions(
        cls,
        predictions: Predictions,
        *,
        calibrator: SMART | None = None,
        n_groups: int = 10,
        seed: int = 0,
        **place: Unpack[Place],
    ) -> Self:
        """Fit SMART and temperature scaling to predictions and draw their temperatures.

        Args:
            predictions: Logits or probabilities with labels, held out from training.
            calibrator: SMART, fitted on the margin; by default it is fitted here.
            n_groups: Number of groups of margin for which the feasible temperatures are shown.
            seed: For the first weights of SMART's network.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        curve = temperature_curve(predictions, calibrator=calibrator, n_groups=n_groups, seed=seed)
        return cls(curve).plot(**place)

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
        ax.plot(margins, temperature, color=style.BLUE, linewidth=1.8, label="SMART")
        ax.set_xlim(0, float(curve.margins[-1]))
        ax.set_ylim(0, top)
        ax.set_xlabel("logit margin")
        ax.set_ylabel("temperature")
        layout.legend_below(ax)
        strip = style.strip_above(ax, "samples", height=0.15, fontsize=5.5)
        strip.stairs(curve.share.numpy(), curve.edges.numpy(), fill=True, color="#9A9A9A")
        strip.set_yticks([])


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
