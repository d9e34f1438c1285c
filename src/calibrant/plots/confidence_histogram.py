"""Confidence histogram: correct and wrong predictions by confidence."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

from calibrant.bins import Bins, equal_width_bins
from calibrant.data.predictions import Predictions
from calibrant.metrics.accuracy import accuracy, mean_confidence
from calibrant.outcomes import Pairs
from calibrant.plots import layout, style
from calibrant.plots.display import Display, Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(eq=False)
class ConfidenceHistogramDisplay(Display):
    """Share of correct and of wrong predictions by confidence, with the accuracy and the mean confidence.

    Args:
        bins: Counts by confidence.
        accuracy: Share of correct predictions.
        mean_confidence: Mean confidence; if it exceeds the accuracy, the model is overconfident.
    """

    bins: Bins
    accuracy: float
    mean_confidence: float

    @classmethod
    def from_predictions(cls, predictions: Predictions, *, n_bins: int = 20, **place: Unpack[Place]) -> Self:
        """Count predictions by confidence and draw them.

        Args:
            predictions: Logits or probabilities with labels, or confidences with hits.
            n_bins: Number of bins of equal width.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        outcomes = predictions.outcomes()
        pairs = Pairs(confidence=outcomes.confidence, correct=outcomes.correct, weights=outcomes.weights)
        bins = equal_width_bins(outcomes, n_bins)
        return cls(bins, accuracy(**pairs), mean_confidence(**pairs)).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Draw stacked bars, and a line at the accuracy and one at the mean confidence."""
        bins = self.bins
        left, width = bins.edges[:-1].numpy(), bins.edges.diff().numpy()
        total = float(bins.count.sum())
        correct = (bins.correct_sum / total).numpy()
        wrong = ((bins.count - bins.correct_sum) / total).numpy()
        ax.bar(left, correct, width, align="edge", label="correct", **style.SOLID)
        ax.bar(left, wrong, width, correct, align="edge", label="wrong", **style.OVER)
        means = ((self.accuracy, "accuracy", "-"), (self.mean_confidence, "mean confidence", (0, (3, 1.5))))
        for place, name, dashes in means:
            ax.axvline(
                place, color=style.BLACK, linewidth=1.1, linestyle=dashes, label=f"{name} {100 * place:.1f} %"
            )
        ax.set_xlim(0, 1)
        style.percent_axis(ax, "x")
        style.percent_axis(ax, "y")
        ax.set_xlabel("confidence (%)")
        ax.set_ylabel("samples (%)")
        handles, names = ax.get_legend_handles_labels()
        layout.legend_below(ax, handles[2:] + handles[:2], names[2:] + names[:2])
