"""The risk-coverage curve to expect where there are no labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

from calibrant.data.predictions import Predictions
from calibrant.decisions.expected import ExpectedQuality, estimate_quality
from calibrant.inputs import Progress
from calibrant.metrics.selective import RiskCoverage, risk_coverage_curve
from calibrant.plots import style
from calibrant.plots.display import Display, Place
from calibrant.plots.risk_coverage import risk_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = 1000


@dataclass(eq=False)
class ExpectedRiskDisplay(Display):
    """Error rate to expect among the most confident predictions, with its band, and the true one if known.

    Args:
        expected: What is expected, by :func:`calibrant.decisions.estimate_quality`.
        truth: The curve of the same predictions with their labels, if they have any.
    """

    expected: ExpectedQuality
    truth: RiskCoverage | None = None

    @classmethod
    def from_predictions(
        cls,
        labelled: Predictions,
        unlabelled: Predictions,
        *,
        methods: str | Sequence[str] = "auto",
        progress: Progress | None = None,
        **place: Unpack[Place],
    ) -> Self:
        """Estimate the curve of unlabelled predictions and draw it.

        Args:
            labelled: Predictions with labels.
            unlabelled: Predictions whose risk is wanted; labels are used for the true curve only.
            methods: Post-hoc methods to choose from, by cross-validation on the labelled ones.
            progress: Called with the current step, the number done, and the total.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        found = estimate_quality(labelled, unlabelled, methods=methods, progress=progress)
        new = found.predictions
        truth = None
        if new.labels is not None or new.correct is not None:
            outcomes = new.outcomes()
            truth = risk_coverage_curve(
                confidence=outcomes.confidence, correct=outcomes.correct, max_points=_POINTS
            )
        return cls(found, truth).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Draw the curves and the band."""
        risk = self.expected.risk
        warning = "" if self.expected.trusted else ", not to be trusted"
        ax.fill_between(
            risk.coverage,
            risk.low,
            risk.high,
            color=style.PALE_BLUE,
            linewidth=0,
            label=f"{100 * self.expected.level:.0f} % interval",
        )
        ax.plot(risk.coverage, risk.risk, label=f"expected without labels{warning}", **style.curve(0))
        if self.truth is not None:
            coverage, errors = self.truth.coverage.numpy(), self.truth.risk.numpy()
            ax.plot(coverage, errors, label="with labels", **style.curve(1))
        risk_axes(ax)
