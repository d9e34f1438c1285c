"""Risk-coverage curve: the error rate when the least confident predictions are rejected."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, Unpack

import torch

from calibrant.data.predictions import Predictions
from calibrant.metrics.selective import RiskCoverage, aurc, risk_coverage_curve
from calibrant.outcomes import Pairs
from calibrant.plots import layout, style, words
from calibrant.plots.display import Display, Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = 1000


@dataclass(eq=False)
class RiskCoverageDisplay(Display):
    """Error rate among the accepted samples (risk) against their share (coverage).

    Args:
        curves: Risk-coverage curves by name.
        aurc: Area under each curve, for the legend; may be empty.
        oracle: Curve of a ranking that puts every correct prediction first, or none.
    """

    curves: Mapping[str, RiskCoverage]
    aurc: Mapping[str, float] = field(default_factory=dict)
    oracle: RiskCoverage | None = None

    @classmethod
    def from_predictions(
        cls, predictions: Predictions | Mapping[str, Predictions], **place: Unpack[Place]
    ) -> Self:
        """Rank predictions by confidence and draw the error among the most confident.

        Coverage and risk of weighted samples are shares of their weight; AURC takes no weights.

        Args:
            predictions: Logits or probabilities with labels, or confidences with hits; or several of them by
                name. The oracle is that of the first one.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        given = {"confidence": predictions} if isinstance(predictions, Predictions) else predictions
        outcomes = {name: each.outcomes() for name, each in given.items()}
        curves, areas = {}, {}
        for name, each in outcomes.items():
            pairs = Pairs(confidence=each.confidence, correct=each.correct, weights=each.weights)
            curves[name] = risk_coverage_curve(**pairs, max_points=_POINTS)
            if each.weights is None:
                areas[name] = aurc(**pairs)
        first = next(iter(outcomes.values()))
        correct = first.correct.cpu()
        # Correct and wrong predictions are ranked by their position among themselves: an oracle has no ties.
        ideal = correct.double() * len(correct) + torch.arange(len(correct)) / len(correct)
        w = None if first.weights is None else first.weights.cpu()
        oracle = risk_coverage_curve(score=ideal, correct=correct, weights=w, max_points=_POINTS)
        return cls(curves, areas, oracle).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Draw the curves."""
        for number, (name, curve) in enumerate(self.curves.items()):
            label = words.legend_name(name)
            label += f", AURC {100 * self.aurc[name]:.2f} %" if name in self.aurc else ""
            ax.plot(curve.coverage.numpy(), curve.risk.numpy(), label=label, **style.curve(number))
        if self.oracle is not None:
            coverage, risk = self.oracle.coverage.numpy(), self.oracle.risk.numpy()
            ax.plot(coverage, risk, label="perfect ranking", **style.REFERENCE)
        risk_axes(ax)


def risk_axes(ax: "Axes") -> None:
    """Label axes of risk against coverage, in percent, with the legend below."""
    ax.set_xlim(0, 1)
    ax.set_ylim(0, None)
    ax.grid()
    style.percent_axis(ax, "x")
    style.percent_axis(ax, "y")
    ax.set_xlabel("coverage (%)")
    ax.set_ylabel("risk: error rate (%)")
    layout.legend_below(ax)
