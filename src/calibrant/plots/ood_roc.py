"""OOD ROC: how well confidence scores separate in-distribution from out-of-distribution inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

from calibrant.data.predictions import Predictions
from calibrant.evaluation.detection import score_pairs
from calibrant.inputs import check_choice
from calibrant.metrics.ood import OODCurve, ood_curve
from calibrant.metrics.scores import SCORES
from calibrant.plots import layout, style
from calibrant.plots.display import Display, Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = 1000


@dataclass(eq=False)
class OODRocDisplay(Display):
    """One ROC curve per score, with the point at which 95 % of the in-distribution inputs are accepted.

    Args:
        curves: ROC curves by name of the score.
    """

    curves: Mapping[str, OODCurve]

    ratio = 1.0

    @classmethod
    def from_predictions(
        cls,
        known: Predictions,
        foreign: Predictions,
        *,
        scores: Sequence[str] = ("msp", "negative_entropy", "energy"),
        **place: Unpack[Place],
    ) -> Self:
        """Score in-distribution and out-of-distribution inputs and draw ROC curves; no labels are needed.

        Args:
            known: Logits, probabilities or confidences of in-distribution inputs.
            foreign: Predictions of out-of-distribution inputs, in the same form.
            scores: Names from :data:`calibrant.metrics.SCORES`. Scores that need logits are left out if there
                are only probabilities; confidences have one score, themselves.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        pairs = score_pairs(known, foreign)
        if "confidence" not in pairs:
            pairs = {name: pairs[name] for name in scores if check_choice(name, "scores", SCORES) in pairs}
        return cls({name: ood_curve(*pair, max_points=_POINTS) for name, pair in pairs.items()}).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Draw the curves and their points at 95 %."""
        style.diagonal(ax, linewidth=0.7)
        ax.axhline(0.95, color=style.GREY, linewidth=0.6)
        for number, (name, curve) in enumerate(self.curves.items()):
            scores = curve.scores
            title = SCORES[name].title if name in SCORES else name
            label = f"{title}: AUROC {100 * scores.auroc:.1f}, FPR95 {100 * scores.fpr95:.1f}"
            ax.plot(curve.passed.numpy(), curve.kept.numpy(), label=label, **style.curve(number))
            ax.plot([scores.fpr95], [0.95], markersize=4, **style.line(number))
        style.unit_axes(ax)
        ax.set_aspect("equal")
        ax.set_xlabel("out-of-distribution accepted (%)")
        ax.set_ylabel("in-distribution accepted (%)")
        layout.legend_below(ax, most=1)
