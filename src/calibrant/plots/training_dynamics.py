"""Training over epochs: what was measured after each epoch, and AdaFocal's gammas."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias, Unpack

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, to_tensor
from calibrant.metrics.names import MEASURES
from calibrant.plots import layout, style, words
from calibrant.plots.display import Display, Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Lines of ``metrics.jsonl`` or ``dynamics.jsonl``, one mapping per epoch, oldest first.
EpochRows: TypeAlias = Sequence[Mapping[str, Any]]

_COLUMNS = 3
# Points between panels, for ticks and titles.
_BETWEEN = (30.0, 44.0)


def _lines(name: str) -> dict[str, str]:
    return {"train": f"train_{name}", "validation": f"val_{name}"}


# Panels, and for each line in them its column in ``metrics.jsonl``.
_PANELS: Mapping[str, Mapping[str, str]] = {
    "loss": {"train": "train_loss"},
    MEASURES["accuracy"].short: _lines("accuracy"),
    MEASURES["mean_confidence"].short: _lines("mean_confidence"),
    f"{MEASURES['nll'].short} (nats)": _lines("nll"),
    MEASURES["brier"].short: _lines("brier"),
    MEASURES["ece"].short: _lines("ece")
    | {f"validation, {MEASURES['ece_equal_mass'].short}": "val_ece_equal_mass"},
    "entropy (nats)": _lines("entropy"),
    "KL to the rest of the class (nats)": _lines("kl"),
    "cosine to the class mean": _lines("cosine"),
}

# Panels that compare runs, and their columns. Values of different losses cannot be compared.
_COMPARED: Mapping[str, str] = {
    title if label == "validation" else label.removeprefix("validation, "): column
    for title, columns in _PANELS.items()
    for label, column in columns.items()
    if label.startswith("validation")
}


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

    def __post_init__(self) -> None:
        if not self.table:
            raise InputError("table: expected at least one quantity, got none")

    def proportion(self, ax: "Axes") -> float:
        """Return the height of the data area in a new figure as a share of its width."""
        columns = self._columns(ax)
        rows = math.ceil(len(self.table) / columns)
        return rows * 0.68 / columns + (rows - 1) * _BETWEEN[1] / 72 / layout.inches(ax)

    def _columns(self, ax: "Axes") -> int:
        return layout.columns(ax, len(self.table), inch=1.6, most=_COLUMNS)

    @classmethod
    def from_rows(cls, metrics: EpochRows | Mapping[str, EpochRows], **place: Unpack[Place]) -> Self:
        """Draw the lines of ``metrics.jsonl``; epochs and values that are missing leave gaps.

        Args:
            metrics: One mapping per epoch; or, to compare runs on validation samples, a mapping from the name
                of each run to its rows.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        runs = metrics if isinstance(metrics, Mapping) else {"": metrics}
        if not runs or not all(runs.values()):
            raise InputError("metrics: expected at least one epoch, got none; train the run first")
        numbers = [row["epoch"] for rows in runs.values() for row in rows]
        epochs = range(min(numbers), max(numbers) + 1)
        panels = _panels_of(runs)
        present = {name for rows in runs.values() for row in rows for name in row if row[name] is not None}
        by_epoch = {name: {row["epoch"]: row for row in rows} for name, rows in runs.items()}
        # A missing line stays in the table, since its position decides its colour.
        table = {
            panel: {
                label: [_number(by_epoch[run].get(epoch, {}).get(column)) for epoch in epochs]
                for label, (run, column) in lines.items()
            }
            for panel, lines in panels.items()
            if present & {column for _, column in lines.values()}
        }
        if not table:
            known = ", ".join(column for lines in panels.values() for _, column in lines.values())
            last = next(iter(runs.values()))[-1]
            raise InputError(f"metrics: expected some of {known}, got {', '.join(last)}")
        return cls(table, epochs[0]).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Draw the panels."""
        from matplotlib.ticker import MaxNLocator

        columns = self._columns(ax)
        grid = layout.panels(ax, math.ceil(len(self.table) / columns), columns, gap=_BETWEEN)
        points = 72 * layout.inches(ax) / columns - 20
        for number, (panel, (name, lines)) in enumerate(zip(grid, self.table.items(), strict=False)):
            named = lines if isinstance(lines, Mapping) else {"": lines}
            for place, (label, values) in enumerate(named.items()):
                _draw_line(panel, label, values, place, self.first_epoch)
            panel.set_title(words.wrapped(name, points, 7.5, most=2), fontsize=7.5)
            panel.grid()
            panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            if number >= len(self.table) - columns:
                panel.set_xlabel("epoch")
        legend = style.shared_legend(grid)
        if legend["labels"]:
            layout.legend_below(ax, **legend)
        for empty in grid[len(self.table) :]:
            empty.set_axis_off()


@dataclass(eq=False)
class AdaFocalGammasDisplay(Display):
    """A heat map of gammas, epochs from left to right and confidence bins from bottom to top.

    Light cells are high gammas, which lower the confidence of an overconfident bin; hatched cells are
    negative gammas (inverse focal loss), which raise the confidence of an underconfident bin.

    Args:
        gamma: Gammas of shape ``(epochs, bins)``.
        first_epoch: Number of the first epoch.
    """

    gamma: Tensor
    first_epoch: int = 1

    ratio = 0.7

    @classmethod
    def from_history(
        cls, history: Sequence[Mapping[str, Any]], *, first_epoch: int = 1, **place: Unpack[Place]
    ) -> Self:
        """Draw the history of an AdaFocal loss.

        Args:
            history: One entry per epoch, with the gammas of the bins under ``gammas``; entries without this
                key, such as those of other losses, are left out.
            first_epoch: Number of the first epoch.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        rows = [to_tensor(entry["gammas"], "gammas").double().cpu() for entry in history if "gammas" in entry]
        if not rows or len({row.shape for row in rows}) > 1 or rows[0].ndim != 1:
            raise InputError(
                "history: expected the same number of gammas in each epoch, got shapes "
                f"{sorted({tuple(row.shape) for row in rows}) or 'none'}; pass that of an AdaFocal loss"
            )
        return cls(torch.stack(rows), first_epoch).plot(**place)

    @classmethod
    def from_rows(cls, dynamics: EpochRows, **place: Unpack[Place]) -> Self:
        """Draw the gammas in the lines of ``dynamics.jsonl``, from the first epoch that has any.

        Args:
            dynamics: One mapping per epoch, with the entry of an AdaFocal loss under ``adafocal``.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        rows = [row for row in dynamics if row.get("adafocal")]
        if not rows:
            raise InputError(
                "gammas: expected a run trained with AdaFocal, got one of a loss without gammas; "
                "ask for bins, which every run has"
            )
        return cls.from_history([row["adafocal"] for row in rows], first_epoch=rows[0]["epoch"], **place)

    def draw(self, ax: "Axes") -> None:
        """Draw the heat map, its colour scale, and hatches where gammas are negative."""
        from matplotlib.collections import PatchCollection
        from matplotlib.patches import Rectangle
        from matplotlib.ticker import MaxNLocator

        field = self.gamma.T.numpy()
        bins, epochs = field.shape
        xs, ys = np.arange(epochs + 1) + self.first_epoch - 0.5, np.arange(bins + 1) + 0.5
        # Viewers show thin lines between cells that only touch.
        seamless: dict[str, Any] = {"edgecolors": "face", "linewidth": 0.6}
        mesh = ax.pcolormesh(xs, ys, field, cmap="cividis", **seamless)
        below = np.argwhere(field < 0)
        if len(below):
            cells = [Rectangle((xs[epoch], ys[number]), 1, 1) for number, epoch in below]
            look: dict[str, Any] = {"facecolor": "none", "edgecolor": "white", "linewidth": 0}
            ax.add_collection(PatchCollection(cells, hatch="//////", **look))
        scale = ax.inset_axes((1.03, 0, 0.045, 1))
        bar = layout.figure_of(ax).colorbar(mesh, cax=scale)
        bar.set_label("gamma" + (" (hatched: below 0)" if len(below) else ""))
        bar.outline.set_linewidth(0.6)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(6, integer=True))
        ax.set_xlabel("epoch")
        ax.set_ylabel("confidence bin")


def mean_of_runs(runs: Sequence[EpochRows]) -> EpochRows:
    """Return the mean of the rows of several runs, number by number, for the epochs that all of them have.

    Example:
        >>> mean_of_runs([[{"epoch": 1, "gammas": [1.0, 2.0]}], [{"epoch": 1, "gammas": [3.0, 2.0]}]])
        [{'epoch': 1, 'gammas': [2.0, 2.0]}]
    """
    if len(runs) == 1:
        return runs[0]
    by_epoch = [{row["epoch"]: row for row in rows} for rows in runs]
    shared = [epoch for epoch in by_epoch[0] if all(epoch in rows for rows in by_epoch)]
    return [{**_mean([rows[epoch] for rows in by_epoch]), "epoch": epoch} for epoch in shared]


def _mean(values: Sequence[Any]) -> Any:  # noqa: ANN401  # whatever a row holds
    first = values[0]
    if any(value is None for value in values):
        return None
    if isinstance(first, Mapping):
        return {name: _mean([value.get(name) for value in values]) for name in first}
    if isinstance(first, Sequence) and not isinstance(first, str):
        return [_mean(each) for each in zip(*values, strict=True)]
    return math.fsum(values) / len(values) if isinstance(first, int | float) else first


def _panels_of(runs: Mapping[str, EpochRows]) -> dict[str, dict[str, tuple[str, str]]]:
    """Return for each panel the run and the column of each line: one run's splits, or several runs."""
    if len(runs) == 1:
        (run,) = runs
        return {
            panel: {label: (run, column) for label, column in columns.items()}
            for panel, columns in _PANELS.items()
        }
    return {
        f"{panel}, validation": {words.legend_name(run): (run, column) for run in runs}
        for panel, column in _COMPARED.items()
    }


def _draw_line(ax: "Axes", label: str, values: ArrayLike, number: int, first_epoch: int) -> None:
    y = to_tensor(values, label or "values").double().cpu().numpy()
    look = style.line(number)
    # Few markers: lines differ in grey, and long runs stay readable.
    ax.plot(np.arange(len(y)) + first_epoch, y, label=label, markevery=max(1, len(y) // 8), **look)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
