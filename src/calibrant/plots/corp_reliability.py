"""CORP reliability diagram: accuracy as the best rising function of confidence."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

import torch
from torch import Tensor

from calibrant.bins import Bins, equal_width_bins
from calibrant.data.predictions import Predictions
from calibrant.inputs import Progress
from calibrant.metrics.corp import CorpReliability, corp_reliability
from calibrant.metrics.reliability_band import Band, curve_band
from calibrant.plots.curve import draw_curve
from calibrant.plots.display import Display, Place
from calibrant.plots.marginal import marginal_counts

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(eq=False)
class CorpReliabilityDisplay(Display):
    """A rising curve by isotonic regression, with the parts of the Brier score beside it.

    Args:
        curve: The groups of isotonic regression.
        band: Range of the accuracy at ``band_at``, or none.
        band_at: Confidences at which the band is known.
        bins: Counts to show above, or none.
    """

    curve: CorpReliability
    band: Band | None = None
    band_at: Tensor | None = None
    bins: Bins | None = None

    ratio = 1.12

    @classmethod
    def from_predictions(
        cls,
        predictions: Predictions,
        *,
        band: bool = True,
        n_resamples: int = 200,
        seed: int = 0,
        progress: Progress | None = None,
        **place: Unpack[Place],
    ) -> Self:
        """Recalibrate predictions by isotonic regression and draw what it found.

        Args:
            predictions: Logits or probabilities with labels, or confidences with hits.
            band: Whether to bootstrap the range of the curve.
            n_resamples: Number of bootstrap resamples.
            seed: Equal seeds give equal bands.
            progress: Called with the number of resamples done and their total.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        outcomes = predictions.outcomes()
        found = corp_reliability(confidence=outcomes.confidence, correct=outcomes.correct)
        grid = torch.linspace(float(found.low[0]), float(found.high[-1]), 201, dtype=torch.float64)

        def again(confidence: Tensor, correct: Tensor) -> Tensor:
            return corp_reliability(confidence=confidence, correct=correct).at(grid)

        ranges = (
            curve_band(
                again,
                confidence=outcomes.confidence,
                correct=outcomes.correct,
                n_resamples=n_resamples,
                seed=seed,
                progress=progress,
            )
            if band
            else None
        )
        return cls(found, ranges, grid, equal_width_bins(outcomes, 30)).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Put the curve, its band and the counts on axes."""
        confidence, accuracy = (values.numpy() for values in self.curve.curve)
        at = None if self.band_at is None else self.band_at.numpy()
        draw_curve(ax, confidence, accuracy, self.band, label="accuracy, isotonic", band_at=at)
        parts = self.curve.parts
        note = (
            f"Brier {parts.score:.3f} = MCB {parts.calibration:.3f}\n"
            f"- DSC {parts.resolution:.3f} + UNC {parts.uncertainty:.3f}"
        )
        ax.legend(loc="upper left", title=note, alignment="left", title_fontsize=6.5)
        if self.bins is not None:
            marginal_counts(ax, self.bins)
