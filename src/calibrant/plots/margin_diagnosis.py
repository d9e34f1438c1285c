"""Margin diagnosis: where a sharper model is likelier but worse calibrated, or the other way round."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

from calibrant.data.predictions import Predictions
from calibrant.evaluation.margin_diagnosis import MarginDiagnosis, diagnose_margins
from calibrant.plots import layout, style
from calibrant.plots.display import Display, Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(eq=False)
class MarginDiagnosisDisplay(Display):
    """Change of likelihood and of calibration error as each margin group alone is sharpened.

    Groups in which the two change in opposite directions are shaded: a temperature chosen by likelihood harms
    calibration there.

    Args:
        diagnosis: The slopes of each margin group.
    """

    diagnosis: MarginDiagnosis

    ratio = 0.8

    @classmethod
    def from_predictions(cls, predictions: Predictions, *, n_groups: int = 8, **place: Unpack[Place]) -> Self:
        """Group predictions by margin, differentiate, and draw the slopes.

        Args:
            predictions: Logits or probabilities with labels.
            n_groups: Number of margin groups of about equal size.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        return cls(diagnose_margins(predictions, n_groups=n_groups)).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Put one panel for the likelihood above one for the calibration error."""
        diagnosis = self.diagnosis
        places = range(len(diagnosis.count))
        upper, lower = layout.panels(ax, 2, 1, gap=(0, 14))
        upper.set_ylabel("change of NLL")
        lower.set_ylabel("change of error")
        for panel, slopes in ((upper, diagnosis.nll_slope), (lower, diagnosis.calibration_slope)):
            for place in places:
                if diagnosis.disagree[place]:
                    panel.axvspan(place - 0.5, place + 0.5, color=style.PALE_GREY, zorder=0, label="opposite")
            _draw_slopes(panel, slopes.tolist())
        style.group_edges(lower, diagnosis.edges.tolist())
        upper.set_xticks(lower.get_xticks(), [])
        lower.set_xlabel("logit margin, in groups of equal count")
        layout.legend_below(ax, **style.shared_legend((upper, lower)))


def _draw_slopes(ax: "Axes", slopes: list[float]) -> None:
    for label, look, mine in (
        ("sharpening harms", style.OVER, [p for p, slope in enumerate(slopes) if slope > 0]),
        ("sharpening helps", style.UNDER, [p for p, slope in enumerate(slopes) if slope <= 0]),
    ):
        if mine:
            ax.bar(mine, [slopes[p] for p in mine], 0.6, label=label, **look)
    ax.axhline(0, color=style.BLACK, linewidth=0.6)
    ax.set_xlim(-0.6, len(slopes) - 0.4)
    ax.ticklabel_format(axis="y", scilimits=(-2, 2))
    ax.grid(axis="y")
