"""Per-class reliability: for each class, its frequency against the probability it is given."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, Unpack

import torch

from calibrant.bins import Bins
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.inputs import check_count
from calibrant.metrics.classwise import class_bins
from calibrant.plots import style
from calibrant.plots.display import Display, Place
from calibrant.plots.reliability import draw_bars

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 5
_LONGEST_NAME = 20


@dataclass(eq=False)
class ClassReliabilityDisplay(Display):
    """One small reliability diagram per class.

    Args:
        names: Name of each class.
        bins: Bins of each class, as :func:`~calibrant.metrics.class_bins` makes them.
    """

    names: Sequence[str]
    bins: Sequence[Bins]

    width = style.PAGE
    title_pad = style.ABOVE_TITLES

    @property
    def ratio(self) -> float:  # type: ignore[override]  # it follows from the number of classes
        """Height of a figure as a share of its width: as many rows as the classes need."""
        columns = min(len(self.names), _COLUMNS)
        return 0.06 + 1.16 * math.ceil(len(self.names) / columns) / columns

    @classmethod
    def from_predictions(
        cls, predictions: Predictions, *, n_bins: int = 10, max_classes: int = 15, **place: Unpack[Place]
    ) -> Self:
        """Put every class's probabilities into bins and draw them.

        Args:
            predictions: Logits or probabilities with labels.
            n_bins: Number of bins of equal width.
            max_classes: Of more classes than this the least calibrated are shown, the worst first.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        if predictions.k is None or predictions.labels is None:
            raise InputError("predictions: expected class probabilities with labels, got neither or only one")
        every = class_bins(predictions.to_probs(), predictions.labels, n_bins=n_bins)
        shown = torch.arange(predictions.k)
        if predictions.k > check_count(max_classes, "max_classes"):
            shown = every.expected_gap().argsort(descending=True)[:max_classes]
        names = predictions.class_names or tuple(str(c) for c in range(predictions.k))
        return cls(
            [names[c] for c in shown],
            [Bins(every.edges, every.count[c], every.confidence_sum[c], every.correct_sum[c]) for c in shown],
        ).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Put a grid of diagrams on axes."""
        columns = min(len(self.names), _COLUMNS)
        rows = math.ceil(len(self.names) / columns)
        grid = style.panels(ax, rows, columns, gap=(0.045, 0.13 / rows))
        for number, (panel, name, bins) in enumerate(zip(grid, self.names, self.bins, strict=False)):
            draw_bars(panel, bins, name="frequency")
            style.unit_axes(panel, ticks=2)
            panel.set_aspect("auto")
            panel.set_title(_short(name), fontsize=7.5, pad=2, parse_math=False)
            error = f"{100 * float(bins.expected_gap()):.1f} %"
            panel.text(0.05, 0.95, f"ECE {error}", transform=panel.transAxes, va="top", fontsize=6)
            panel.tick_params(
                labelleft=number % columns == 0, labelbottom=number >= len(self.names) - columns
            )
        for empty in grid[len(self.names) :]:
            empty.set_axis_off()
        label: dict[str, Any] = {"transform": ax.transAxes, "fontsize": 7.5}
        below, beside = -0.2 / rows, -0.055
        ax.text(0, below, "probability of the class (%)", ha="left", va="top", **label)
        ax.text(beside, 0.5, "frequency of the class (%)", ha="right", va="center", rotation=90, **label)
        handles, names = grid[0].get_legend_handles_labels()
        ax.legend(handles, names, loc="upper right", bbox_to_anchor=(1, below + 0.02 / rows), ncols=3)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
