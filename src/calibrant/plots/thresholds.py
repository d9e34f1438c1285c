"""The error rate that is guaranteed on new data, against the share that is answered."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

from calibrant.data.predictions import Predictions
from calibrant.decisions.thresholds import (
    RISKS,
    GuaranteedRisks,
    Threshold,
    Thresholds,
    guaranteed_risks,
)
from calibrant.metrics.selective import RiskCoverage, risk_coverage_curve
from calibrant.plots import style
from calibrant.plots.display import Display, Place
from calibrant.plots.risk_coverage import risk_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = 1000


@dataclass(eq=False)
class GuaranteedRiskDisplay(Display):
    """Error rate among the answers, observed and guaranteed, and thresholds for a few risks.

    Args:
        observed: The risk-coverage curve of the samples.
        guaranteed: The risk that is guaranteed at each coverage.
        thresholds: Thresholds to mark; those without a guarantee are left out.
    """

    observed: RiskCoverage
    guaranteed: GuaranteedRisks
    thresholds: Sequence[Threshold] = ()

    @classmethod
    def from_predictions(
        cls,
        predictions: Predictions,
        *,
        risks: Sequence[float] = RISKS,
        level: float = 0.95,
        **place: Unpack[Place],
    ) -> Self:
        """Find thresholds for risks, and draw them on the curves.

        Args:
            predictions: Logits or probabilities with labels, or confidences with hits, on which neither the
                model nor a calibrator was fitted; without weights.
            risks: Shares of wrong answers to find thresholds for.
            level: Probability of the guarantee.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        outcomes = predictions.outcomes()
        guaranteed = guaranteed_risks(outcomes, level=level)
        curve = risk_coverage_curve(
            confidence=outcomes.confidence, correct=outcomes.correct, max_points=_POINTS
        )
        found = Thresholds.of(predictions, level=level).table(risks)
        return cls(curve, guaranteed, found).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Draw the curves and the thresholds."""
        level = f"{100 * self.guaranteed.level:g} %"
        coverage, risk = self.observed.coverage.numpy(), self.observed.risk.numpy()
        ax.plot(coverage, risk, label="observed", **style.curve(0))
        if self.guaranteed.risk:
            x = (0.0, *self.guaranteed.coverage)
            y = (self.guaranteed.risk[0], *self.guaranteed.risk)
            ax.step(x, y, where="pre", label=f"guaranteed with {level} probability", **style.curve(1))
        marked = [each for each in self.thresholds if each.rule is not None]
        if marked:
            risks = ", ".join(f"{100 * each.risk:g}" for each in marked)
            ax.plot(
                [each.coverage for each in marked],
                [each.risk for each in marked],
                linestyle="",
                marker="o",
                color=style.BLACK,
                label=f"thresholds for {risks} %",
            )
        risk_axes(ax)
