"""Reliability diagrams without bins: accuracy as a curve over confidence, smoothed or isotonic (CORP)."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, Unpack

import torch
from torch import Tensor

from calibrant.bins import Bins, equal_width_bins
from calibrant.data.predictions import Predictions
from calibrant.inference.bands import AccuracyCurve, Band, curve_band, effective_size
from calibrant.inference.intervals import wilson_interval
from calibrant.inputs import Floats, Progress
from calibrant.metrics.corp import CorpReliability, corp_reliability
from calibrant.metrics.smooth_ece import SmoothReliability, smooth_reliability
from calibrant.outcomes import Outcomes
from calibrant.plots import layout, style
from calibrant.plots.display import Display, Place
from calibrant.plots.reliability import draw_counts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The smooth curve is thin where fewer samples than the first of these determine it; it ends below the second.
_ENOUGH, _FEWEST = 30.0, 5.0
# Cells in which samples are counted, to find out how many determine a point of the smooth curve.
_CELLS = 512
# Only every eighth point of the fine grid is drawn: more points make the file larger and look the same.
_STEP = 8


class _CurveDisplay(Display):
    """A curve of accuracy over confidence, with a bootstrap band."""

    ratio = 1.0
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
            resampled = curve_band(
                curve,
                confidence=outcomes.confidence,
                correct=outcomes.correct,
                weights=outcomes.weights,
                units=outcomes.units,
                n_resamples=n_resamples,
                seed=seed,
                progress=progress,
            )
            display.band = display._completed(resampled)
        return display.plot(**place)

    def _completed(self, band: Band) -> Band:
        """Return the band to draw, given that of the resamples."""
        return band

    @classmethod
    @abstractmethod
    def _fitted(cls, outcomes: Outcomes) -> tuple[Self, AccuracyCurve]:
        """Return the display without a band, and the function that computes the curve of a resample."""


@dataclass(eq=False)
class SmoothReliabilityDisplay(_CurveDisplay):
    """A curve whose distance to the diagonal, weighted by the density above, is the smooth ECE.

    Its bandwidth equals the error itself; resamples are smoothed with the same bandwidth. As in a diagram
    with bins, each point shows the mean accuracy of the samples under the kernel over their mean confidence,
    so that the curve ends where the samples end. It is thin where few samples determine it, and the band
    holds there at least Wilson's interval for this number of samples.

    Args:
        curve: The smoothed reliability.
        mean_confidence: Mean confidence under the kernel at each point; by default the points themselves.
        n_effective: Effective number of samples under the kernel at each point; by default many.
        band: Range of the accuracy at each point of the curve, or none.
    """

    curve: SmoothReliability
    mean_confidence: Tensor | None = None
    n_effective: Tensor | None = None
    band: Band | None = None

    @classmethod
    def _fitted(cls, outcomes: Outcomes) -> tuple[Self, AccuracyCurve]:
        w = outcomes.weights
        smoothed = smooth_reliability(confidence=outcomes.confidence, correct=outcomes.correct, weights=w)
        bandwidth = max(smoothed.bandwidth, 1e-4)

        def of_resample(confidence: Tensor, correct: Tensor, weights: Tensor | None = None) -> Tensor:
            return smooth_reliability(
                confidence=confidence, correct=correct, weights=weights, bandwidth=bandwidth
            ).accuracy

        # Without any hit the smoothed gap is the mean confidence, with the other sign.
        missed = of_resample(outcomes.confidence, torch.zeros_like(outcomes.correct), w)
        effective = _effective_samples(outcomes, smoothed.confidence, bandwidth)
        return cls(smoothed, smoothed.confidence - missed, effective), of_resample

    @property
    def _points(self) -> tuple[Tensor, Tensor]:
        """The mean confidence and the mean accuracy under the kernel."""
        at = self.curve.confidence if self.mean_confidence is None else self.mean_confidence
        return at, (at + self.curve.accuracy - self.curve.confidence).clamp(0, 1)

    def _completed(self, band: Band) -> Band:
        at, accuracy = self._points
        shift = at - self.curve.confidence
        assert self.n_effective is not None
        ends = [
            wilson_interval(share, n, level=band.level) if n > 0 else (0.0, 1.0)
            for share, n in zip(accuracy.nan_to_num(0.5).tolist(), self.n_effective.tolist(), strict=True)
        ]
        low, high = torch.tensor(ends, dtype=torch.float64).T
        return replace(
            band,
            low=torch.minimum(band.low + shift, low).clamp(0, 1),
            high=torch.maximum(band.high + shift, high).clamp(0, 1),
        )

    def draw(self, ax: "Axes") -> None:
        """Draw the curve, its band and the density; the curve is thin or ends where there are few samples."""
        at, accuracy = (values[::_STEP] for values in self._points)
        known = torch.full_like(at, torch.inf) if self.n_effective is None else self.n_effective[::_STEP]
        shown = torch.where(known >= _FEWEST, at, torch.nan)
        band = self.band and replace(self.band, low=self.band.low[::_STEP], high=self.band.high[::_STEP])
        if (known < _ENOUGH).any() and shown.isfinite().any():
            few = f"fewer than {_ENOUGH:.0f} samples"
            ax.plot(shown.numpy(), accuracy.numpy(), color=style.BLUE, linewidth=0.7, label=few)
        firm = torch.where(known >= _ENOUGH, accuracy, torch.nan)
        _draw_curve(ax, shown.numpy(), firm.numpy(), band, label="accuracy, smoothed")
        layout.legend_below(ax, title=f"smECE {100 * self.curve.value:.1f} %")
        strip = style.strip_above(ax, "density")
        confidence, density = self.curve.confidence[::_STEP].numpy(), self.curve.density[::_STEP].numpy()
        strip.fill_between(confidence, density, color="#BDBDBD", linewidth=0)
        strip.plot(confidence, density, color=style.GREY, linewidth=0.7)
        strip.set_ylim(0, None)
        strip.set_yticks([])


def _effective_samples(outcomes: Outcomes, points: Tensor, bandwidth: float) -> Tensor:
    r"""Return :math:`(\sum_i w_i K_i)^2 / \sum_i (w_i K_i)^2` of the smooth ECE's kernel at each point.

    Samples that depend on each other are fewer everywhere by their design effect.
    """
    confidence = outcomes.confidence.cpu().double()
    w = torch.ones_like(confidence) if outcomes.weights is None else outcomes.weights.cpu()
    place = (confidence * _CELLS).long().clamp(max=_CELLS - 1)
    count, squared = (torch.bincount(place, each, _CELLS) for each in (w, w.square()))
    cells = (torch.arange(_CELLS, dtype=torch.float64) + 0.5) / _CELLS
    # A Gaussian that is reflected at 0 and 1; one narrower than a cell would miss its samples.
    width = max(bandwidth, 1 / _CELLS)
    reach = [(points[:, None] - each) / width for each in (cells, -cells, 2 - cells)]
    kernel = sum((torch.exp(each.square() / -2) for each in reach), torch.zeros(()))
    squares = kernel.square() @ squared
    sizes = torch.where(squares > 0, (kernel @ count).square() / squares, 0.0)
    return sizes if outcomes.units is None else sizes * effective_size(outcomes) / float(w.sum())


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
    def _fitted(cls, outcomes: Outcomes) -> tuple[Self, AccuracyCurve]:
        isotonic = corp_reliability(
            confidence=outcomes.confidence, correct=outcomes.correct, weights=outcomes.weights
        )
        grid = torch.linspace(float(isotonic.low[0]), float(isotonic.high[-1]), 201, dtype=torch.float64)

        def of_resample(confidence: Tensor, correct: Tensor, weights: Tensor | None = None) -> Tensor:
            return corp_reliability(confidence=confidence, correct=correct, weights=weights).at(grid)

        return cls(isotonic, band_at=grid, bins=equal_width_bins(outcomes, 30)), of_resample

    def draw(self, ax: "Axes") -> None:
        """Draw the curve, its band and the counts."""
        confidence, accuracy = (values.numpy() for values in self.curve.curve)
        at = None if self.band_at is None else self.band_at.numpy()
        _draw_curve(ax, confidence, accuracy, self.band, label="accuracy, isotonic", band_at=at)
        parts = self.curve.parts
        layout.legend_below(
            ax,
            title=f"Brier score of the top label {parts.score:.3f}\n= MCB {parts.calibration:.3f} "
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
            label=f"{100 * band.level:.0f} % band",
        )
    ax.plot(confidence, accuracy, color=style.BLUE, linewidth=1.5, label=label)
    style.unit_axes(ax)
    ax.set_aspect("equal")
    ax.set_xlabel("confidence (%)")
    ax.set_ylabel("accuracy (%)")
