"""Stated confidence against accuracy for many models at once, before and after repair."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.plots import style
from calibrant.plots.display import Display

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Points between the baselines of two names, and their size.
_LINE = 8.6
_FONT = 6.0

# The width of the diagram, and where names and both columns of errors stand, as shares of the whole width.
_DIAGRAM, _NAMES, _BEFORE, _AFTER = 0.57, 0.625, 0.945, 1.0

# Longer names are cut off.
_LONGEST = 39

# The height of the topmost name, below the headings.
_TOP = 0.965

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

    def height(self) -> float:
        """Return the height of a new figure as a share of its width: at least as high as all names."""
        return max(0.62, (len(self.models) * _LINE + 60) / 72 / self.width)

    def draw(self, ax: "Axes") -> None:
        """Draw the diagram on the left, and the names on the right."""
        ax.set_axis_off()
        diagram = ax.inset_axes((0, 0, _DIAGRAM, 1))
        models = sorted(self.models, key=lambda each: -each.accuracy)
        self._draw_diagram(diagram, models)
        self._draw_names(diagram, models)

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
        ax.text(0.03, 0.85, "underconfident", color=style.GREY, ha="left", fontsize=7.5)
        ax.legend(loc="upper left")

    def _draw_names(self, ax: "Axes", models: Sequence[ModelHonesty]) -> None:
        """Write names and errors beside the diagram, each joined to its dot by a thin line."""
        names, first, second = (place / _DIAGRAM for place in (_NAMES, _BEFORE, _AFTER))
        look: dict[str, Any] = {"fontsize": _FONT, "va": "center"}
        columns = ((first, "before", style.VERMILION), (second, "after", style.BLUE))
        for x, text, color in columns:
            ax.text(x, 1.0, f"ECE %\n{text}", ha="right", color=color, **look)
        heights = np.linspace(_TOP, 0, len(models)) if len(models) > 1 else [_TOP / 2]
        for each, height in zip(models, heights, strict=True):
            xs, ys = [each.before, 1, names - 0.015], [each.accuracy, each.accuracy, height]
            ax.plot(xs, ys, color="#C9C9C9", linewidth=0.4, clip_on=False, zorder=1)
            name = (
                each.name
                if len(each.name) <= _LONGEST
                else f"{each.name[: _LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"
            )
            ax.text(names, height, name, ha="left", **look)
            errors = (each.error_before, each.error_after)
            for (x, _, color), error in zip(columns, errors, strict=True):
                ax.text(x, height, f"{100 * error:.1f}", ha="right", color=color, **look)
