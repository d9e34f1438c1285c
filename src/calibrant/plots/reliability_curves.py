"""Reliability diagrams without bins: accuracy as a curve over confidence, smoothed or isotonic (CORP)."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, Unpack

import torch
from torch import Tensor

from calibrant.bins import Bins, equal_width_bins
from calibrant.data.predictions import Predictions
from calibrant.inputs import Floats, Progress
from calibrant.metrics.corp import CorpReliability, corp_reliability
from calibrant.metrics.reliability_band import Band, Curve, curve_band
from calibrant.metrics.smooth_ece import SmoothReliability, smooth_reliability
from calibrant.outcomes import Outcomes
from calibrant.plots import style
from calibrant.plots.display import Display, Place
from calibrant.plots.reliability import draw_counts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The smooth curve is drawn only where the density of the confidences is above this.
_LOWEST_DENSITY = 0.02
# Only every eighth point of the fine grid is drawn: more points make the file larger and look the same.
_STEP = 8


class _CurveDisplay(Display):
    """A curve of accuracy over confidence, with a bootstrap band."""

    ratio = 1.12
    band: Band | None

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
        """Compute the curve and its band, and draw them.

        Args:
            predictions: Logits or probabilities with labels, or confidences with hits.
            band: Whether to bootstrap the range of the curve.
            n_resamples: Number of bootstrap resamples.
            seed: Equal seeds give equal bands.
            progress: Called with what is being done, the number of resamples done, and their total.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        outcomes = predictions.outcomes()
        display, curve = cls._fitted(outcomes)
        if band:
            display.band = curve_band(
                curve,
                confidence=outcomes.confidence,
                correct=outcomes.correct,
                n_resamples=n_resamples,
                seed=seed,
                progress=progress,
            )
        return display.plot(**place)

    @classmethod
    @abstractmethod
    def _fitted(cls, outcomes: Outcomes) -> tuple[Self, Curve]:
        """Return the display without a band, and the function that computes the curve of a resample."""


@dataclass(eq=False)
class SmoothReliabilityDisplay(_CurveDisplay):
    """A curve whose distance to the diagonal, weighted by the density above, is the smooth ECE.

    Its bandwidth equals the error itself; resamples are smoothed with the same bandwidth.

    Args:
        curve: The smoothed reliability.
        band: Range of the accuracy at each point of the curve, or none.
    """

    curve: SmoothReliability
    band: Band | None = None

    @classmethod
    def _fitted(cls, outcomes: Outcomes) -> tuple[Self, Curve]:
        smoothed = smooth_reliability(confidence=outcomes.confidence, correct=outcomes.correct)
        bandwidth = max(smoothed.bandwidth, 1e-4)

        def of_resample(confidence: Tensor, correct: Tensor) -> Tensor:
            return smooth_reliability(confidence=confidence, correct=correct, bandwidth=bandwidth).accuracy

        return cls(smoothed), of_resample

    def draw(self, ax: "Axes") -> None:
        """Draw the curve, its band and the density; the curve has gaps where there are hardly any samples."""
        density, confidence = self.curve.density[::_STEP], self.curve.confidence[::_STEP]
        at = torch.where(density > _LOWEST_DENSITY, confidence, torch.nan).numpy()
        band = self.band and replace(self.band, low=self.band.low[::_STEP], high=self.band.high[::_STEP])
        _draw_curve(ax, at, self.curve.accuracy[::_STEP].numpy(), band, label="accuracy, smoothed")
        _draw_legend(ax, f"smECE {100 * self.curve.value:.1f} %")
        strip = style.strip_above(ax, "density")
        strip.fill_between(confidence.numpy(), density.numpy(), color="#BDBDBD", linewidth=0)
        strip.plot(confidence.numpy(), density.numpy(), color=style.GREY, linewidth=0.7)
        strip.set_ylim(0, None)
        strip.set_yticks([])


@dataclass(eq=False)
class CorpReliabilityDisplay(_CurveDisplay):
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

    @classmethod
    def _fitted(cls, outcomes: Outcomes) -> tuple[Self, Curve]:
        isotonic = corp_reliability(confidence=outcomes.confidence, correct=outcomes.correct)
        grid = torch.linspace(float(isotonic.low[0]), float(isotonic.high[-1]), 201, dtype=torch.float64)

        def of_resample(confidence: Tensor, correct: Tensor) -> Tensor:
            return corp_reliability(confidence=confidence, correct=correct).at(grid)

        return cls(isotonic, band_at=grid, bins=equal_width_bins(outcomes, 30)), of_resample

    def draw(self, ax: "Axes") -> None:
        """Draw the curve, its band and the counts."""
        confidence, accuracy = (values.numpy() for values in self.curve.curve)
        at = None if self.band_at is None else self.band_at.numpy()
        _draw_curve(ax, confidence, accuracy, self.band, label="accuracy, isotonic", band_at=at)
        parts = self.curve.parts
        _draw_legend(
            ax,
            f"Brier {parts.score:.3f} = MCB {parts.calibration:.3f}\n"
            f"- DSC {parts.resolution:.3f} + UNC {parts.uncertainty:.3f}",
        )
        if self.bins is not None:
            draw_counts(ax, self.bins)


def _draw_curve(
    ax: "Axes",
    confidence: Floats,
    accuracy: Floats,
    band: Band | None,
    *,
    label: str,
    band_at: Floats | None = None,
) -> None:
    """Draw accuracy over confidence with the diagonal; the line has gaps where ``confidence`` is NaN.

    The band is drawn at ``band_at``, by default at the points of the curve.
    """
    style.diagonal(ax)
    if band is not None:
        ax.fill_between(
            confidence if band_at is None else band_at,
            band.low.numpy(),
            band.high.numpy(),
            facecolor=style.PALE_BLUE,
            edgecolor="none",
            linewidth=0,
            label=f"{100 * band.level:.0f} % bootstrap",
        )
    ax.plot(confidence, accuracy, color=style.BLUE, linewidth=1.5, label=label)
    style.unit_axes(ax)
    ax.set_aspect("equal")
    ax.set_xlabel("confidence (%)")
    ax.set_ylabel("accuracy (%)")


def _draw_legend(ax: "Axes", note: str) -> None:
    ax.legend(loc="upper left", title=note, alignment="left", title_fontsize=6.5)
