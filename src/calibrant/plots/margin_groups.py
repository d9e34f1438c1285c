"""Reliability by margin group: confidence and accuracy from doubt to certainty."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, Unpack

from calibrant.data.predictions import Predictions
from calibrant.evaluation.slices import by_margin
from calibrant.metrics.margin import MarginSlice
from calibrant.plots import style
from calibrant.plots.display import Display, Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(eq=False)
class MarginGroupsDisplay(Display):
    """Mean confidence and accuracy in groups of the margin between the two largest logits, joined by the gap.

    Args:
        groups: Groups of margin, one sequence per model or method; several stand one above the other.
    """

    groups: Mapping[str, Sequence[MarginSlice]]

    @property
    def ratio(self) -> float:  # type: ignore[override]  # it follows from the number of panels
        """Height of a figure as a share of its width."""
        return 0.16 + 0.46 * len(self.groups)

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
            scored = each if each.k is None else Predictions(logits=each.to_logits(), labels=each.labels)
            groups[name] = by_margin(scored, n_groups=n_groups)
        return cls(groups).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Put one panel per model on axes."""
        rows = len(self.groups)
        grid = [ax] if rows == 1 else style.panels(ax, rows, 1, gap=(0, 0.36 / rows))
        lowest = min(
            group.metrics[name]
            for groups in self.groups.values()
            for group in groups
            for name in ("accuracy", "mean_confidence")
        )
        legend: dict[str, Any] = {}
        for panel, (name, groups) in zip(grid, self.groups.items(), strict=True):
            _draw_groups(panel, groups)
            panel.set_ylim(max(lowest - 0.05, 0), 1.03)
            panel.set_ylabel("share (%)")
            if name:
                panel.set_title(name, loc="left", fontsize=7.5, pad=3)
            handles, labels = panel.get_legend_handles_labels()
            legend.update(zip(labels, handles, strict=True))
        grid[0].legend(list(legend.values()), list(legend), loc="lower right")
        grid[-1].set_xlabel("logit margin, in groups of equal count")


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
    names = [f"{group.low:.1f} to\n{group.high:.1f}" for group in groups]
    ax.set_xticks(list(places), names)
