"""Reliability diagram: accuracy against confidence, bin by bin."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

import numpy as np

from calibrant.bins import Binning, Bins, top_label_bins
from calibrant.data.predictions import Predictions
from calibrant.metrics.reliability_band import Band, accuracy_band
from calibrant.plots import style
from calibrant.plots.display import Display, Place
from calibrant.plots.marginal import marginal_counts

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(eq=False)
class ReliabilityDisplay(Display):
    """Bars as high as the accuracy, with the gap to the confidence, over the number of samples.

    The gap is hatched and warm where the model promises more than it keeps, in green lines where it keeps
    more than it promises.

    Args:
        bins: Confidence and accuracy of one set of predictions.
        band: Range of each bin's accuracy, or none.
    """

    bins: Bins
    band: Band | None = None

    ratio = 1.12

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
            confidence=outcomes.confidence, correct=outcomes.correct, n_bins=n_bins, binning=binning
        )
        ranges = accuracy_band(bins, n_resamples=n_resamples, seed=seed) if band else None
        return cls(bins, ranges).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Put the bars, the gaps, the band and the counts on axes."""
        draw_bars(ax, self.bins)
        if self.band is not None:
            draw_band(ax, self.bins, self.band)
        ax.set_xlabel("confidence (%)")
        ax.set_ylabel("accuracy (%)")
        note = f"ECE {100 * float(self.bins.expected_gap()):.1f} %\nn = {self.bins.n:,}"
        ax.legend(loc="upper left", title=note, alignment="left", title_fontsize=6.5)
        marginal_counts(ax, self.bins)


def draw_bars(ax: "Axes", bins: Bins, *, name: str = "accuracy") -> None:
    """Draw accuracy as bars and the gap to the mean confidence on top of them; empty bins have none."""
    left, width = bins.edges[:-1].numpy(), bins.edges.diff().numpy()
    accuracy, confidence = bins.accuracy.numpy(), bins.confidence.numpy()
    # The label of bars stands in the legend even if there are none, so kinds that do not occur are left out.
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
    ax.plot([0, 1], [0, 1], color=style.BLACK, linewidth=0.8, linestyle=(0, (4, 2)), zorder=3)
    style.unit_axes(ax)
    ax.set_aspect("equal")


def draw_band(ax: "Axes", bins: Bins, band: Band) -> None:
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
