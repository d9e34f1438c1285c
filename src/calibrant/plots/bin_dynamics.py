"""Confidence bins over the epochs of a training run: calibration error, gamma, and training samples."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np
import numpy.typing as npt

from calibrant.errors import InputError
from calibrant.inputs import Floats
from calibrant.plots import layout, style
from calibrant.plots.display import Display, Place
from calibrant.plots.training_dynamics import EpochRows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 5
_SHOWN = 3
# Points between stacks, for ticks and titles, and between the panels of a stack.
_BETWEEN = (26.0, 40.0)
_INSIDE = 10.0


@dataclass(frozen=True, eq=False)
class BinCourse:
    """The bins of a run, epoch by epoch.

    Attributes:
        epochs: Number of each epoch.
        gap: Confidence minus accuracy, shape ``(epochs, bins)``; NaN where a bin is empty.
        gamma: AdaFocal's gammas of the same shape, or None for another loss.
    """

    epochs: Sequence[int]
    gap: Floats
    gamma: Floats | None = None


@dataclass(eq=False)
class BinErrorsDisplay(Display):
    """Confidence minus accuracy of single bins over epochs, and below it the gammas of AdaFocal.

    Above zero a bin is overconfident. All error panels share one scale; gamma panels have their own.

    Args:
        runs: The bins of each run, by name.
        bins: Numbers of the bins to show, from 1 for the lowest confidence.
    """

    runs: Mapping[str, BinCourse]
    bins: Sequence[int]

    width = style.PAGE

    def proportion(self, ax: "Axes") -> float:
        """Return the height of the data area in a new figure as a share of its width."""
        return _proportion(ax, len(self.bins), 2 if self._with_gammas else 1)

    @property
    def _with_gammas(self) -> bool:
        return any(run.gamma is not None for run in self.runs.values())

    @classmethod
    def from_rows(
        cls,
        rows: EpochRows | Mapping[str, EpochRows],
        *,
        bins: Sequence[int] | None = None,
        **place: Unpack[Place],
    ) -> Self:
        """Draw the lines of ``dynamics.jsonl``.

        Args:
            rows: One mapping per epoch with ``epoch``, ``bins`` and optionally ``adafocal``; or, to compare
                runs, a mapping from the name of each run to its rows.
            bins: Numbers of the bins to show, from 1; by default the first, the middle and the last one.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        given = rows if isinstance(rows, Mapping) else {"": rows}
        runs = {name: _course(each) for name, each in given.items()}
        most = {run.gap.shape[1] for run in runs.values()}
        if len(most) != 1:
            raise InputError(f"rows: expected runs with equally many bins, got {sorted(most) or 'none'}")
        (n_bins,) = most
        shown = _spread(range(1, n_bins + 1), _SHOWN) if bins is None else list(bins)
        if not shown or not all(1 <= number <= n_bins for number in shown):
            raise InputError(f"bins: expected numbers from 1 to {n_bins}, got {shown or 'none'}")
        return cls(runs, shown).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Draw a panel per bin, or two with gammas."""
        names = ["confidence\n- accuracy (%)", *(["gamma"] if self._with_gammas else [])]
        n_bins = next(iter(self.runs.values())).gap.shape[1]
        ends = {1: ", lowest", n_bins: ", highest"}
        titles = [f"bin {number} of {n_bins}{ends.get(number, '')}" for number in self.bins]
        grid = _stacks(ax, titles, names, x="epoch")
        places = [number - 1 for number in self.bins]
        shown = np.concatenate([run.gap[:, places].ravel() for run in self.runs.values()])
        low, high = np.fmin.reduce(shown, initial=-0.01), np.fmax.reduce(shown, initial=0.01)
        for place, stack in zip(places, grid, strict=True):
            for panel, part in zip(stack, ("gap", "gamma"), strict=False):
                _draw_runs(panel, self.runs, part, place)
            stack[0].set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
            style.percent_axis(stack[0], "y")
        if len(self.runs) > 1:
            layout.legend_below(ax, **style.shared_legend(grid[0][:1]))


@dataclass(eq=False)
class CorrespondenceDisplay(Display):
    """Confidence of training and of validation samples in the same bins, at some epochs.

    Each bin holds the same number of validation samples, ordered by confidence. Above: the mean validation
    confidence, and the mean true-class probability of the training samples in the same bin. Below: the share
    of the training and of the validation samples in each bin. AdaFocal corrects a bin through its training
    samples; in a bin without training samples it has no effect.

    Args:
        epochs: Number of each epoch shown.
        validation: Mean validation confidence, shape ``(epochs, bins)``; NaN where a bin is empty.
        train: Mean true-class probability of the training samples, of the same shape.
        validation_share: Share of the validation samples in each bin, of the same shape.
        train_share: Share of the training samples in each bin, of the same shape.
    """

    epochs: Sequence[int]
    validation: Floats
    train: Floats
    validation_share: Floats
    train_share: Floats

    width = style.PAGE

    def proportion(self, ax: "Axes") -> float:
        """Return the height of the data area in a new figure as a share of its width."""
        return _proportion(ax, len(self.epochs), 2)

    @classmethod
    def from_rows(
        cls, rows: EpochRows, *, epochs: Sequence[int] | None = None, **place: Unpack[Place]
    ) -> Self:
        """Draw lines of ``dynamics.jsonl``.

        Args:
            rows: One mapping per epoch with ``epoch`` and ``bins``.
            epochs: Numbers of the epochs to show; by default the first, the middle and the last one.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        by_epoch = {row["epoch"]: row["bins"] for row in _checked(rows)}
        shown = _spread(list(by_epoch), _SHOWN) if epochs is None else list(epochs)
        if not shown or not set(shown) <= set(by_epoch):
            known = f"{min(by_epoch)} to {max(by_epoch)}"
            raise InputError(f"epochs: expected some of those measured, {known}, got {shown or 'none'}")
        bins = [by_epoch[epoch] for epoch in shown]
        return cls(
            shown,
            _table(each["confidence"] for each in bins),
            _table(each["train_true"] for each in bins),
            _shares(each["count"] for each in bins),
            _shares(each["train_true_count"] for each in bins),
        ).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Draw two panels per epoch: confidence above, shares of the samples below."""
        titles = [f"epoch {epoch}" for epoch in self.epochs]
        grid = _stacks(ax, titles, ["confidence (%)", "samples (%)"], x="confidence bin")
        lowest = float(np.nanmin([self.validation, self.train]))
        most = float(max(self.validation_share.max(), self.train_share.max()))
        for place, (top, bottom) in enumerate(grid):
            self._draw_confidence(top, place)
            self._draw_shares(bottom, place)
            top.set_ylim(max(0.0, lowest - 0.05), 1.06)
            bottom.set_ylim(0, 1.08 * most)
            for panel in (top, bottom):
                panel.set_xlim(0.4, self.validation.shape[1] + 0.6)
                style.percent_axis(panel, "y")
        layout.legend_below(ax, **style.shared_legend(grid[0]))

    def _draw_confidence(self, ax: "Axes", place: int) -> None:
        numbers = np.arange(self.validation.shape[1]) + 1
        # The two often coincide: a small marker inside a large open one shows both.
        large, small = {"markersize": 4.8, "markerfacecolor": "white"}, {"markersize": 2.1, "linewidth": 1}
        _draw_line(ax, numbers, self.validation[place], "validation: confidence", 0, large)
        _draw_line(ax, numbers, self.train[place], "training: true-class probability", 1, small)

    def _draw_shares(self, ax: "Axes", place: int) -> None:
        numbers = np.arange(self.validation.shape[1]) + 1
        ax.bar(numbers, self.train_share[place], 0.8, label="training samples", **style.OVER)
        edges = np.append(numbers - 0.5, numbers[-1] + 0.5)
        look: dict[str, Any] = {"color": style.BLUE, "linewidth": 1.3, "baseline": None}
        ax.stairs(self.validation_share[place], edges, label="validation samples", **look)


def _draw_runs(ax: "Axes", runs: Mapping[str, BinCourse], part: str, place: int) -> None:
    for number, (name, run) in enumerate(runs.items()):
        values = getattr(run, part)
        if values is not None:
            _draw_line(ax, run.epochs, values[:, place], name, number)
    ax.margins(y=0.12)
    # Above zero a bin is overconfident; a negative gamma is the inverse focal loss.
    if part == "gap" or ax.dataLim.ymin < 0:
        ax.axhline(0, color=style.BLACK, linestyle=(0, (1, 1.5)), linewidth=0.9)


def _draw_line(
    ax: "Axes", xs: npt.ArrayLike, ys: Floats, name: str, number: int, look: Mapping[str, Any] | None = None
) -> None:
    # Few markers keep long runs readable.
    marks = {"markevery": max(1, len(ys) // 8)} if look is None else look
    ax.plot(xs, ys, label=name, **style.line(number), **marks)


def _grid(ax: "Axes", count: int) -> tuple[int, int]:
    """Return the rows and columns of a grid of ``count`` stacks."""
    columns = layout.columns(ax, count, inch=1.5, most=_COLUMNS)
    return math.ceil(count / columns), columns


def _proportion(ax: "Axes", count: int, panels: int) -> float:
    """Return the height of ``count`` stacks of panels as a share of the width of them all."""
    (rows, columns), inches = _grid(ax, count), layout.inches(ax)
    points = rows * (panels - 1) * _INSIDE + (rows - 1) * _BETWEEN[1]
    # A panel is at least as high as its label is long.
    return rows * panels * max(0.62 / max(columns, 2), 0.95 / inches) + points / 72 / inches


def _stacks(ax: "Axes", titles: Sequence[str], names: Sequence[str], *, x: str) -> list[list["Axes"]]:
    """Divide axes into one stack of panels per title, each with one panel per name."""
    from matplotlib.ticker import MaxNLocator

    rows, columns = _grid(ax, len(titles))
    blocks = layout.panels(ax, rows, columns, gap=_BETWEEN)
    grid = [layout.panels(block, len(names), 1, gap=(0, _INSIDE)) for block in blocks[: len(titles)]]
    for place, (block, title, stack) in enumerate(zip(blocks, titles, grid, strict=False)):
        block.set_title(title, fontsize=7.5)
        for panel, name in zip(stack, names, strict=True):
            panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            panel.tick_params(labelbottom=panel is stack[-1])
            panel.grid()
            panel.set_ylabel(name if place % columns == 0 else "")
        stack[-1].set_xlabel(x if place >= len(titles) - columns else "")
    for empty in blocks[len(titles) :]:
        empty.set_axis_off()
    return grid


def _checked(rows: EpochRows) -> EpochRows:
    """Return the rows if they are lines of ``dynamics.jsonl``; refuse others."""
    if not rows:
        raise InputError("rows: expected at least one epoch, got none")
    for row in rows:
        if "epoch" not in row or "bins" not in row:
            names = ", ".join(row) or "nothing"
            raise InputError(f"rows: expected lines of dynamics.jsonl, with epoch and bins, got {names}")
    if len({len(row["bins"]["gap"]) for row in rows}) > 1:
        raise InputError("rows: expected as many bins in each epoch, got different numbers")
    return rows


def _course(rows: EpochRows) -> BinCourse:
    _checked(rows)
    gap = _table(row["bins"]["gap"] for row in rows)
    entries = [row.get("adafocal") for row in rows]
    gammas = [[None] * gap.shape[1] if entry is None else entry["gammas"] for entry in entries]
    return BinCourse([row["epoch"] for row in rows], gap, _table(gammas) if any(entries) else None)


def _table(rows: Iterable[Sequence[float | None]]) -> Floats:
    """Return an array of shape ``(rows, columns)``, with NaN for None."""
    return np.array(list(rows), dtype=np.float64)


def _shares(rows: Iterable[Sequence[int]]) -> Floats:
    counts = _table(rows)
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def _spread(of: Sequence[int], count: int) -> list[int]:
    """Choose ``count`` evenly spaced entries, among them the first and the last."""
    places = np.linspace(0, len(of) - 1, min(count, len(of))).round().astype(int)
    return [of[place] for place in places]
