"""Risk-coverage curve: how much error is left when the least confident predictions are refused."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, Unpack

import torch

from calibrant.data.predictions import Predictions
from calibrant.metrics.selective import RiskCoverage, aurc, risk_coverage_curve
from calibrant.plots import style
from calibrant.plots.display import Display, Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = 1000


@dataclass(eq=False)
class RiskCoverageDisplay(Display):
    """Error rate against the share of answered samples.

    Args:
        curves: Risk-coverage curves by name.
        aurc: Area under each, for the legend; may be empty.
        oracle: Curve of a ranking that puts every right prediction first, or none.
    """

    curves: Mapping[str, RiskCoverage]
    aurc: Mapping[str, float] = field(default_factory=dict)
    oracle: RiskCoverage | None = None

    @classmethod
    def from_predictions(
        cls, predictions: Predictions | Mapping[str, Predictions], **place: Unpack[Place]
    ) -> Self:
        """Rank predictions by confidence and draw the error among the most confident.

        Args:
            predictions: Logits or probabilities with labels, or confidences with hits; or several of them by
                name. The oracle is that of the first.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        given = {"confidence": predictions} if isinstance(predictions, Predictions) else predictions
        outcomes = {name: each.outcomes() for name, each in given.items()}
        curves, areas = {}, {}
        for name, each in outcomes.items():
            said = {"confidence": each.confidence, "correct": each.correct}
            curves[name] = risk_coverage_curve(**said, max_points=_POINTS)
            areas[name] = aurc(**said)
        right = next(iter(outcomes.values())).correct.cpu()
        # Ranked within right and wrong by their number: an oracle has no ties.
        ideal = right.double() * len(right) + torch.arange(len(right)) / len(right)
        oracle = risk_coverage_curve(score=ideal, correct=right, max_points=_POINTS)
        return cls(curves, areas, oracle).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Put the curves on axes."""
        for number, (name, curve) in enumerate(self.curves.items()):
            look = style.line(number)
            label = f"{name}, AURC {100 * self.aurc[name]:.2f} %" if name in self.aurc else name
            ax.plot(
                curve.coverage.numpy(),
                curve.risk.numpy(),
                color=look["color"],
                linestyle=look["linestyle"],
                label=label,
            )
        if self.oracle is not None:
            ax.plot(
                self.oracle.coverage.numpy(),
                self.oracle.risk.numpy(),
                color=style.GREY,
                linewidth=0.9,
                linestyle=(0, (1, 1.2)),
                label="perfect ranking",
            )
        ax.set_xlim(0, 1)
        ax.set_ylim(0, None)
        ax.grid()
        style.percent_axis(ax, "x")
        style.percent_axis(ax, "y")
        ax.set_xlabel("coverage: share answered (%)")
        ax.set_ylabel("risk: errors among these (%)")
        ax.legend(loc="upper left")
