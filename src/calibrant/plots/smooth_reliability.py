"""Smooth reliability diagram: accuracy as a kernel-smoothed function of confidence."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, Unpack

import torch
from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.inputs import Progress
from calibrant.metrics.reliability_band import Band, curve_band
from calibrant.metrics.smooth_ece import SmoothReliability, smooth_reliability
from calibrant.plots.curve import draw_curve
from calibrant.plots.display import Display, Place
from calibrant.plots.marginal import marginal_density

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Where fewer than one in so many samples lie per unit of confidence, the curve is not drawn.
_THIN = 0.02
# Every so many points of the fine grid are drawn: more would swell the file, and the eye sees no difference.
_STEP = 8


@dataclass(eq=False)
class SmoothReliabilityDisplay(Display):
    """A curve whose distance to the diagonal, weighted by the density above, is the smooth ECE.

    Args:
        curve: The smoothed reliability.
        band: Range of the accuracy at each point of the curve, or none.
    """

    curve: SmoothReliability
    band: Band | None = None

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
        """Smooth predictions by as much as their own error, and draw the curve.

        Args:
            predictions: Logits or probabilities with labels, or confidences with hits.
            band: Whether to bootstrap the range of the curve, at the same bandwidth.
            n_resamples: Number of bootstrap resamples.
            seed: Equal seeds give equal bands.
            progress: Called with the number of resamples done and their total.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        outcomes = predictions.outcomes()
        found = smooth_reliability(confidence=outcomes.confidence, correct=outcomes.correct)

        def again(confidence: Tensor, correct: Tensor) -> Tensor:
            return smooth_reliability(
                confidence=confidence, correct=correct, bandwidth=max(found.bandwidth, 1e-4)
            ).accuracy

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
        return cls(found, ranges).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Put the curve, its band and the density on axes; where hardly any sample lies there is none."""
        density, confidence = self.curve.density[::_STEP], self.curve.confidence[::_STEP]
        at = torch.where(density > _THIN, confidence, torch.nan).numpy()
        band = self.band and replace(self.band, low=self.band.low[::_STEP], high=self.band.high[::_STEP])
        draw_curve(ax, at, self.curve.accuracy[::_STEP].numpy(), band, label="accuracy, smoothed")
        note = f"smECE {100 * self.curve.value:.1f} %"
        ax.legend(loc="upper left", title=note, alignment="left", title_fontsize=6.5)
        marginal_density(ax, confidence.numpy(), density.numpy())
