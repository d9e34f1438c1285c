"""Training dynamics: what was measured after each epoch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, to_tensor
from calibrant.plots import style
from calibrant.plots.display import Display

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 3


@dataclass(eq=False)
class TrainingDynamicsDisplay(Display):
    """One panel per quantity, one line per run or split.

    Args:
        table: Values per epoch by name; or, for several lines in a panel, a mapping from the name of each
            line to its values. NaN leaves a gap.
        first_epoch: Number of the first epoch.

    Example:
        >>> TrainingDynamicsDisplay({"loss": {"train": [2.0, 1.5], "validation": [2.1, 1.8]}}).table["loss"]
        {'train': [2.0, 1.5], 'validation': [2.1, 1.8]}
    """

    table: Mapping[str, ArrayLike | Mapping[str, ArrayLike]]
    first_epoch: int = 1

    width = style.PAGE
    title_pad = style.ABOVE_TITLES

    def __post_init__(self) -> None:
        if not self.table:
            raise InputError("table: expected at least one quantity, got none")

    @property
    def ratio(self) -> float:  # type: ignore[override]  # it follows from the number of panels
        """Height of a figure as a share of its width."""
        columns = min(len(self.table), _COLUMNS)
        return 0.03 + math.ceil(len(self.table) / columns) * 0.85 / columns

    def draw(self, ax: "Axes") -> None:
        """Put the panels on axes."""
        from matplotlib.ticker import MaxNLocator

        columns = min(len(self.table), _COLUMNS)
        rows = math.ceil(len(self.table) / columns)
        grid = style.panels(ax, rows, columns, gap=(0.08, 0.3 / rows))
        legend: dict[str, Any] = {}
        for number, (panel, (name, lines)) in enumerate(zip(grid, self.table.items(), strict=False)):
            named = lines if isinstance(lines, Mapping) else {"": lines}
            for place, (label, values) in enumerate(named.items()):
                _draw_line(panel, label, values, place, self.first_epoch)
            panel.set_title(name, fontsize=7.5)
            panel.grid()
            panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            if number >= len(self.table) - columns:
                panel.set_xlabel("epoch")
            handles, labels = panel.get_legend_handles_labels()
            legend.update((label, handle) for label, handle in zip(labels, handles, strict=True) if label)
        if legend:
            # Below the panels, where no line can be hidden by it.
            at: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.23 / rows), "ncols": 4}
            ax.legend(list(legend.values()), list(legend), **at)
        for empty in grid[len(self.table) :]:
            empty.set_axis_off()


def _draw_line(ax: "Axes", label: str, values: ArrayLike, number: int, first_epoch: int) -> None:
    y = to_tensor(values, label or "values").double().cpu().numpy()
    look = style.line(number)
    # A marker every so often tells lines apart in grey and leaves long runs readable.
    ax.plot(np.arange(len(y)) + first_epoch, y, label=label, markevery=max(1, len(y) // 8), **look)
