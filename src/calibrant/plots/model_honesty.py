"""Stated confidence against accuracy for many models at once, before and after repair."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.plots import layout, style, words
from calibrant.plots.display import Display

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Points between the baselines of two names, and their size.
_LINE = 8.6
_FONT = 6.0

# Points of a column of errors, and from the diagram to the names.
_ERRORS = 26.0
_LEAD = 14.0

_ARROW = {
    "arrowstyle": "-|>,head_length=0.28,head_width=0.13",
    "color": "#9A9A9A",
    "linewidth": 0.5,
    "shrinkA": 2.2,
    "shrinkB": 2.2,
}


@dataclass(frozen=True)
class ModelHonesty:
    """What a model states and how often it is right.

    Attributes:
        name: Name of the model.
        accuracy: Share of right answers.
        before: Mean confidence that it states.
        after: Mean confidence after repair.
        error_before: Calibration error of the stated confidence.
        error_after: Calibration error after repair.
    """

    name: str
    accuracy: float
    before: float
    after: float
    error_before: float
    error_after: float


@dataclass(eq=False)
class ModelHonestyDisplay(Display):
    """A dot per model at its stated confidence and its accuracy, and an arrow to where repair moves it.

    On the diagonal a model is right as often as it states. Names stand on the right, the most accurate model
    on top, each with its calibration error before and after.

    Args:
        models: The models.
        confidence: Name of the confidence, such as ``"stated"``.
        repair: What the repair was, for the legend.
    """

    models: Sequence[ModelHonesty]
    confidence: str = "stated"
    repair: str = "repaired"

    width = style.PAGE

    def proportion(self, ax: "Axes") -> float:
        """Return the height of the data area in a new figure as a share of its width: that of all names."""
        wide = 72 * layout.inches(ax)
        return max(_share(ax), (len(self.models) * _LINE + 30) / wide)

    def draw(self, ax: "Axes") -> None:
        """Draw the diagram on the left, and the names on the right."""
        ax.set_axis_off()
        diagram = ax.inset_axes((0, 0, _share(ax), 1))
        models = sorted(self.models, key=lambda each: -each.accuracy)
        self._draw_diagram(diagram, models)
        self._draw_names(ax, diagram, models)
        layout.legend_below(ax, **style.shared_legend([diagram]))

    def _draw_diagram(self, ax: "Axes", models: Sequence[ModelHonesty]) -> None:
        style.unit_axes(ax)
        style.diagonal(ax)
        ax.fill_between([0, 1], [0, 1], color=style.PALE_VERMILION, alpha=0.3, linewidth=0, zorder=0)
        ax.grid()
        for each in models:
            start, end = ((x, each.accuracy) for x in (each.before, each.after))
            ax.annotate("", xy=end, xytext=start, arrowprops=_ARROW, zorder=3)
        accuracy = [each.accuracy for each in models]
        edge: dict[str, Any] = {"linestyle": "none", "markeredgecolor": "white", "markeredgewidth": 0.4}
        before, after = [each.before for each in models], [each.after for each in models]
        look: dict[str, Any] = {"marker": "o", "markersize": 4.2, "color": style.VERMILION, **edge}
        ax.plot(before, accuracy, label=self.confidence, zorder=5, **look)
        look = {"marker": "D", "markersize": 3.6, "color": style.BLUE, **edge}
        ax.plot(after, accuracy, label=self.repair, zorder=6, **look)
        ax.set_xlabel("mean confidence (%)")
        ax.set_ylabel("right answers (%)")
        ax.text(0.97, 0.03, "overconfident", color=style.VERMILION, ha="right", fontsize=7.5)
        ax.text(0.03, 0.95, "underconfident", color=style.GREY, ha="left", fontsize=7.5)

    def _draw_names(self, whole: "Axes", ax: "Axes", models: Sequence[ModelHonesty]) -> None:
        """Write names and errors beside the diagram, each joined to its dot by a thin line."""
        # Ticks and the label beside the diagram take about 32 points of the figure.
        points, share = 72 * layout.inches(whole) - 32, _share(whole)
        names = 1 + _LEAD / (points * share)
        second = 1 / share
        first = second - _ERRORS / (points * share)
        room = points * (1 - share) - _LEAD - 2 * _ERRORS
        look: dict[str, Any] = {"fontsize": _FONT, "va": "center"}
        columns = ((first, "before", style.VERMILION), (second, "after", style.BLUE))
        for x, text, color in columns:
            ax.text(x, 1.03, f"ECE %\n{text}", ha="right", color=color, fontsize=_FONT, va="bottom")
        heights = np.linspace(0.98, 0, len(models)) if len(models) > 1 else [0.5]
        for each, height in zip(models, heights, strict=True):
            xs, ys = [each.before, 1, names - 0.015], [each.accuracy, each.accuracy, height]
            ax.plot(xs, ys, color="#C9C9C9", linewidth=0.4, clip_on=False, zorder=1)
            ax.text(names, height, words.cut_to_width(each.name, room, _FONT), ha="left", **look)
            errors = (each.error_before, each.error_after)
            for (x, _, color), error in zip(columns, errors, strict=True):
                ax.text(x, height, f"{100 * error:.1f}", ha="right", color=color, **look)


def _share(ax: "Axes") -> float:
    """Return the share of the width that the diagram takes; names need the more of a narrow figure."""
    return 0.57 if layout.inches(ax) >= 6 else 0.48
