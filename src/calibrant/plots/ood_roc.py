"""OOD ROC: how many foreign inputs slip through for each share of known inputs that is kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.metrics.ood import OODCurve, ood_curve
from calibrant.metrics.scores import confidence_score
from calibrant.plots import style
from calibrant.plots.display import Display, Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = 1000


@dataclass(eq=False)
class OODRocDisplay(Display):
    """One ROC curve per score, with the point at which 95 % of the known inputs are kept.

    Args:
        curves: ROC curves by name of the score.
    """

    curves: Mapping[str, OODCurve]

    ratio = 0.94

    @classmethod
    def from_predictions(
        cls,
        known: Predictions,
        foreign: Predictions,
        *,
        scores: Sequence[str] = ("msp", "negative_entropy", "energy"),
        **place: Unpack[Place],
    ) -> Self:
        """Score known and foreign inputs and draw how well the scores tell them apart; labels are not needed.

        Args:
            known: Logits, probabilities or confidences of in-distribution inputs.
            foreign: The same form for foreign ones.
            scores: Names from :data:`calibrant.metrics.SCORES`; those that need logits are left out where
                only probabilities are known, and of confidences there is only one.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        return cls(_curves(known, foreign, scores)).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Put the curves and their points on axes."""
        ax.plot([0, 1], [0, 1], color=style.BLACK, linewidth=0.7, linestyle=(0, (4, 2)))
        ax.axhline(0.95, color=style.GREY, linewidth=0.6)
        for number, (name, curve) in enumerate(self.curves.items()):
            look = style.line(number)
            scores = curve.scores
            ax.plot(
                curve.passed.numpy(),
                curve.kept.numpy(),
                color=look["color"],
                linestyle=look["linestyle"],
                label=f"{name}: AUROC {100 * scores.auroc:.1f}, FPR95 {100 * scores.fpr95:.1f}",
            )
            ax.plot([scores.fpr95], [0.95], look["marker"], color=look["color"], markersize=4)
        style.unit_axes(ax)
        ax.set_aspect("equal")
        ax.set_xlabel("foreign inputs let through (%)")
        ax.set_ylabel("known inputs kept (%)")
        ax.legend(loc="lower right")


def _curves(known: Predictions, foreign: Predictions, scores: Sequence[str]) -> dict[str, OODCurve]:
    if known.confidence is not None and foreign.confidence is not None:
        return {"confidence": ood_curve(known.confidence, foreign.confidence, max_points=_POINTS)}
    if known.k is None or foreign.k is None:
        raise InputError("predictions: expected the same form twice, got class scores and confidences")
    curves = {}
    for name in scores:
        if known.logits is not None and foreign.logits is not None:
            pair = [confidence_score(name, logits=each.logits) for each in (known, foreign)]
        elif name in ("msp", "softmax_margin", "negative_entropy"):
            pair = [confidence_score(name, probs=each.to_probs()) for each in (known, foreign)]
        else:
            continue
        curves[name] = ood_curve(*pair, max_points=_POINTS)
    return curves
