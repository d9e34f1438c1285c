"""Sizes of prediction sets, before and after calibration."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, Unpack

from calibrant.data.predictions import Predictions
from calibrant.decisions.sets import SetComparison, SetResult, calibrate_part, compare_sets
from calibrant.plots import layout, style, words
from calibrant.plots.display import Display, Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Sets with this many classes and more share a bar.
_MOST = 8
# The panels: LAC has the smallest sets, and randomised APS shows best what calibration does.
_PANELS = (("lac", False), ("aps", True))
_LOOKS: tuple[dict[str, Any], ...] = (
    style.SOLID,
    style.OVER,
    style.UNDER,
    {"facecolor": style.PALE_GREY, "edgecolor": style.GREY, "hatch": "......", "linewidth": 0.6},
)


@dataclass(eq=False)
class SetSizesDisplay(Display):
    """Share of prediction sets by their size, for LAC above and randomised APS below.

    Args:
        comparison: The sets, by :func:`calibrant.decisions.compare_sets`; up to four kinds of scores are
            drawn.
    """

    comparison: SetComparison

    ratio = 0.95

    @classmethod
    def from_predictions(
        cls,
        validation: Predictions,
        predictions: Predictions,
        *,
        alpha: float = 0.1,
        methods: Sequence[str] = (),
        **place: Unpack[Place],
    ) -> Self:
        """Fit prediction sets and draw their sizes.

        Args:
            validation: Labelled predictions to fit the sets on. With methods, a random half of them fits the
                methods and the other half the sets, those of raw scores too.
            predictions: Labelled predictions to measure on.
            alpha: Share of sets that may miss the true class.
            methods: Post-hoc methods to compare with raw scores.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        calibrators, rest = {}, validation
        for name in methods:
            calibrators[name], rest = calibrate_part(validation, method=name)
        found = compare_sets(rest, predictions, alpha=alpha, methods=("lac", "aps"), calibrators=calibrators)
        return cls(found).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Draw a panel for each method, with bars for each kind of scores."""
        panels = layout.panels(ax, len(_PANELS), 1, gap=(0, 16))
        results = self.comparison.results
        shown = [[each for each in results if (each.method, each.randomised) == kind] for kind in _PANELS]
        found = {int(row.name) for each in (*shown[0], *shown[1]) for row in each.measures.sizes}
        sizes = range(min(1, *found), min(_MOST, max(found)) + 1)
        for panel, drawn in zip(panels, shown, strict=True):
            _draw_panel(panel, drawn[: len(_LOOKS)], sizes)
        panels[-1].set_xlabel("classes in a set")
        layout.legend_below(ax, **style.shared_legend(panels))


def _draw_panel(panel: "Axes", results: Sequence[SetResult], sizes: range) -> None:
    bar, last = 0.8 / len(results), sizes[-1]
    lines = []
    for number, each in enumerate(results):
        name, found = words.legend_name(each.scores), each.measures
        counts = {int(row.name): row.n for row in found.sizes}
        counts[last] = sum(n for size, n in counts.items() if size >= last)
        shares = [counts.get(size, 0) / found.n for size in sizes]
        places = [size - 0.4 + bar * (number + 0.5) for size in sizes]
        panel.bar(places, shares, bar, label=name, **_LOOKS[number])
        lines.append(f"{name}: {found.mean_size:.2f} classes, covers {100 * found.coverage:.1f} %")
    room = 0.6 * 72 * layout.inches(panel)
    text = "\n".join(words.shortened(each, room, 6.5) for each in lines)
    panel.text(0.99, 0.99, text, ha="right", va="top", transform=panel.transAxes, fontsize=6.5)
    panel.set_xticks(list(sizes), [*map(str, sizes[:-1]), f"{last}+" if last == _MOST else str(last)])
    style.percent_axis(panel, "y")
    panel.set_ylabel(f"{results[0].name}\nsets (%)")
    panel.grid(axis="y")
