"""The verdicts of a gate: each interval beside its bound."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calibrant.decisions.gate import Gate, GateOutcome, Verdict
from calibrant.plots import layout, style, words
from calibrant.plots.display import Display

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LOOKS: dict[GateOutcome, dict[str, Any]] = {
    "passed": {"fmt": "o", "color": style.BLUE, "label": "passed"},
    "unknown": {"fmt": "D", "color": style.GREY, "markerfacecolor": "white", "label": "cannot tell"},
    "failed": {"fmt": "s", "color": style.VERMILION, "label": "failed"},
}
# Share of the width that names may take.
_NAMES = 0.4


@dataclass(eq=False)
class GateDisplay(Display):
    """Intervals that decide all requirements, each in units of its own distance to the bound.

    Right of the line a requirement is met, left of it it is missed. An interval on both sides cannot tell.

    Args:
        gate: The verdicts. Requirements without an interval are left out.
    """

    gate: Gate

    def proportion(self, ax: "Axes") -> float:
        """Return the height of the rows."""
        return (0.3 + 0.22 * len(self._shown)) / layout.inches(ax)

    @property
    def _shown(self) -> list[Verdict]:
        return [each for each in self.gate.verdicts if math.isfinite(each.least) and math.isfinite(each.most)]

    def draw(self, ax: "Axes") -> None:
        """Draw a row for each requirement."""
        drawn: set[GateOutcome] = set()
        for place, each in enumerate(self._shown):
            look = dict(_LOOKS[each.outcome])
            if each.outcome in drawn:
                look["label"] = None
            drawn.add(each.outcome)
            low, value, high = _distances(each)
            ax.errorbar(value, place, xerr=[[value - low], [high - value]], elinewidth=1.2, capsize=2, **look)
        ax.axvline(0, color=style.BLACK, linewidth=0.7)
        points = _NAMES * 72 * layout.inches(ax)
        ax.set_yticks(
            range(len(self._shown)), [words.shortened(each.requirement, points, 6.5) for each in self._shown]
        )
        ax.tick_params(axis="y", length=0)
        ax.set_ylim(len(self._shown) - 0.4, -0.6)
        ax.set_xlim(-1.15, 1.15)
        ax.set_xticks([-0.6, 0, 0.6], ["missed", "bound", "met"])
        ax.tick_params(axis="x", length=0)
        if drawn:
            layout.legend_below(ax)


def _distances(verdict: Verdict) -> tuple[float, float, float]:
    """Return the ends of an interval and the value in the direction in which the requirement is met."""
    sign = -1.0 if "<" in verdict.requirement else 1.0
    ends = sorted(sign * (end - verdict.bound) for end in (verdict.least, verdict.most))
    unit = max(abs(end) for end in ends) or 1.0
    return ends[0] / unit, sign * (verdict.value - verdict.bound) / unit, ends[1] / unit
