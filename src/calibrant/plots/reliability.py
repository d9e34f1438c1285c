"""Reliability diagrams with bins: accuracy against confidence, of the top label and of every class."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

import numpy as np
import torch

from calibrant.bins import Binning, Bins, top_label_bins
from calibrant.data.predictions import Predictions
from calibrant.inference.bands import Band, accuracy_band, effective_counts
from calibrant.inputs import check_count
from calibrant.metrics.classwise import class_bins
from calibrant.plots import layout, style, words
from calibrant.plots.display import Display, Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 5
# Inches that a small diagram takes at least; points beside all of them, and from one to the next.
_SMALL = 1.25
_BESIDE, _ACROSS = 40.0, 14.0
# The height of a small diagram as a share of its width, and points for its name, its error and its count.
_HIGH, _NAMED = 1.1, 34.0


@dataclass(eq=False)
class ReliabilityDisplay(Display):
    """Bars as high as the accuracy, with the gap to the confidence, over the number of samples.

    The gap is hatched and warm where the model is overconfident, in green lines where it is underconfident.

    Args:
        bins: Confidence and accuracy of one set of predictions.
        band: Range of each bin's accuracy, or none.
    """

    bins: Bins
    band: Band | None = None

    ratio = 1.0

    @classmethod
    def from_predictions(
        cls,
        predictions: Predictions,
        *,
        n_bins: int = 15,
        binning: Binning = "width",
        band: bool = True,
        n_resamples: int = 1000,
        seed: int = 0,
        **place: Unpack[Place],
    ) -> Self:
        """Put predictions into bins and draw them.

        Args:
            predictions: Logits or probabilities with labels, or confidences with hits.
            n_bins: Number of bins.
            binning: Bins of equal ``"width"`` or of equal ``"mass"``.
            band: Whether to bootstrap the range of each bin's accuracy.
            n_resamples: Number of bootstrap resamples.
            seed: Equal seeds give equal bands.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        outcomes = predictions.outcomes()
        bins = top_label_bins(
            confidence=outcomes.confidence,
            correct=outcomes.correct,
            weights=outcomes.weights,
            n_bins=n_bins,
            binning=binning,
        )
        sizes = effective_counts(outcomes, bins)
        ranges = accuracy_band(bins, n_resamples=n_resamples, seed=seed, sizes=sizes) if band else None
        return cls(bins, ranges).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Draw the bars, the gaps, the band and the counts."""
        _draw_bars(ax, self.bins)
        if self.band is not None:
            _draw_band(ax, self.bins, self.band)
        ax.set_xlabel("confidence (%)")
        ax.set_ylabel("accuracy (%)")
        weighted = "weighted, effective " if self.bins.count.is_floating_point() else ""
        note = f"ECE {100 * float(self.bins.expected_gap()):.1f} %, {weighted}n = {self.bins.n:,}"
        layout.legend_below(ax, title=note)
        draw_counts(ax, self.bins)


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

    def proportion(self, ax: "Axes") -> float:
        """Return the height of the data area in a new figure as a share of its width."""
        columns, points = self._columns(ax), self._points(ax)
        rows = math.ceil(len(self.names) / columns)
        height = rows * _HIGH * points + (rows - 1) * _down(points)
        return height / (columns * points + (columns - 1) * _ACROSS)

    def _points(self, ax: "Axes") -> float:
        """Return about how wide a small diagram is."""
        columns = self._columns(ax)
        return (72 * layout.inches(ax) - _BESIDE - (columns - 1) * _ACROSS) / columns

    def _columns(self, ax: "Axes") -> int:
        return layout.columns(ax, len(self.names), inch=_SMALL, most=_COLUMNS)

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
        predictions = predictions.classes("class probabilities with labels")
        probs, weights = predictions.to_probs(), predictions.weights
        labels = predictions.truth_for("bins count it")
        every = class_bins(probs, labels, n_bins=n_bins, weights=weights)
        shown = torch.arange(predictions.k)
        if predictions.k > check_count(max_classes, "max_classes"):
            shown = every.expected_gap().argsort(descending=True)[:max_classes]
        names = predictions.names
        return cls(
            [names[c] for c in shown],
            [Bins(every.edges, every.count[c], every.confidence_sum[c], every.correct_sum[c]) for c in shown],
        ).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Draw a grid of diagrams, each below its name, its error and the number of samples of its class."""
        columns = self._columns(ax)
        points = self._points(ax)
        grid = layout.panels(
            ax, math.ceil(len(self.names) / columns), columns, gap=(_ACROSS, _NAMED), strip=style.STRIP
        )
        strips: list[Axes] = []
        for number, (panel, name, bins) in enumerate(zip(grid, self.names, self.bins, strict=False)):
            _draw_bars(panel, bins, name="frequency")
            style.unit_axes(panel, ticks=2)
            panel.set_aspect("auto")
            strips.append(draw_counts(panel, bins, label="samples in bin (log scale, above)"))
            note = f"ECE {100 * float(bins.expected_gap()):.1f} %, n = {float(bins.correct_sum.sum()):,.0f}"
            panel.set_title(
                f"{words.wrapped(name, points, 7, most=2)}\n{words.cut_to_width(note, points, 7)}",
                fontsize=7,
                pad=3,
                parse_math=False,
            )
            panel.tick_params(
                labelleft=number % columns == 0, labelbottom=number >= len(self.names) - columns
            )
        for empty in grid[len(self.names) :]:
            empty.set_axis_off()
        style.outer_labels(ax, "probability of the class (%)", "frequency of the class (%)")
        layout.legend_below(ax, **style.shared_legend([grid[0], *strips]))


def _down(points: float) -> float:
    """Return the points between two rows of small diagrams: the strip of counts and the names."""
    return style.STRIP * _HIGH * points + _NAMED


def _draw_bars(ax: "Axes", bins: Bins, *, name: str = "accuracy") -> None:
    """Draw accuracy as bars and the gap to the mean confidence on top of them; empty bins have none."""
    left, width = bins.edges[:-1].numpy(), bins.edges.diff().numpy()
    accuracy, confidence = bins.accuracy.numpy(), bins.confidence.numpy()
    # An empty set of bars would still have an entry in the legend, so kinds that do not occur are left out.
    kinds = {
        name: (bins.count.numpy() > 0, np.zeros_like(accuracy), accuracy),
        "gap: overconfident": (confidence > accuracy, accuracy, confidence),
        "gap: underconfident": (confidence < accuracy, confidence, accuracy),
    }
    looks = {name: style.SOLID, "gap: overconfident": style.OVER, "gap: underconfident": style.UNDER}
    for kind, (where, bottom, top) in kinds.items():
        if where.any():
            ax.bar(
                left[where],
                (top - bottom)[where],
                width[where],
                bottom[where],
                align="edge",
                label=kind,
                **looks[kind],
            )
    style.diagonal(ax, zorder=3)
    style.unit_axes(ax)
    ax.set_aspect("equal")


def _draw_band(ax: "Axes", bins: Bins, band: Band) -> None:
    """Draw the range of each bin's accuracy as a line with ends."""
    known = band.low.isfinite() & (bins.count > 0)
    centre = ((bins.edges[:-1] + bins.edges[1:]) / 2)[known]
    accuracy = bins.accuracy[known]
    ends = [
        (accuracy - band.low[known]).clamp(min=0).numpy(),
        (band.high[known] - accuracy).clamp(min=0).numpy(),
    ]
    ax.errorbar(
        centre.numpy(),
        accuracy.numpy(),
        yerr=np.stack(ends),
        fmt="none",
        ecolor=style.BLACK,
        elinewidth=0.8,
        capsize=1.6,
        capthick=0.8,
        label=f"{100 * band.level:.0f} % bootstrap",
        zorder=4,
    )


def draw_counts(ax: "Axes", bins: Bins, *, label: str | None = None) -> "Axes":
    """Draw the number of samples in each bin above the axes, on a log scale; labelled bars have no ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    strip = style.strip_above(ax, "samples" if label is None else "")
    left, width = bins.edges[:-1].numpy(), bins.edges.diff().numpy()
    strip.bar(
        left,
        bins.count.numpy(),
        width,
        align="edge",
        facecolor="#9A9A9A",
        edgecolor="white",
        linewidth=0.5,
        label=label,
    )
    # On a linear scale most bins would look empty beside the bin of highest confidence.
    strip.set_yscale("log")
    # A bin of weighted samples may count less than one.
    lowest = min(1.0, float(bins.count[bins.count > 0].min())) if bool((bins.count > 0).any()) else 1.0
    strip.set_ylim(0.7 * lowest, 1.5 * max(10, int(bins.count.max())))
    strip.yaxis.set_major_locator(LogLocator(numticks=4))
    strip.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
    strip.yaxis.set_minor_locator(NullLocator())
    if label is not None:
        strip.set_yticks([])
    return strip
