"""Margin -> temperature: what SMART learned, within the temperatures that would make confidence honest."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

import numpy as np

from calibrant.data.predictions import Predictions
from calibrant.evaluation.temperature_curve import TemperatureCurve, temperature_curve
from calibrant.plots import style
from calibrant.plots.display import Display, Place
from calibrant.posthoc.smart import SMART

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(eq=False)
class TemperatureCurveDisplay(Display):
    """SMART's temperature along the margin, the single temperature, and what each group of margins wants.

    Args:
        curve: The temperatures.
    """

    curve: TemperatureCurve

    ratio = 0.82

    @classmethod
    def from_predictions(
        cls,
        predictions: Predictions,
        *,
        calibrator: SMART | None = None,
        n_groups: int = 10,
        seed: int = 0,
        **place: Unpack[Place],
    ) -> Self:
        """Fit SMART and temperature scaling to predictions and draw what they learned.

        Args:
            predictions: Logits or probabilities with labels, held out from training.
            calibrator: SMART as fitted elsewhere, on the margin; by default it is fitted here.
            n_groups: Number of groups of margin for which the wanted temperature is bounded.
            seed: For the first weights of SMART's network.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        curve = temperature_curve(predictions, calibrator=calibrator, n_groups=n_groups, seed=seed)
        return cls(curve).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Put the curve, the line, the intervals and the density of the margins on axes."""
        curve = self.curve
        top = 1.6 * max(float(curve.temperature.max()), curve.single)
        for number, group in enumerate(curve.feasible):
            # An interval without upper end goes on above the picture.
            highest = np.minimum(group.highest.numpy(), 4 * top)
            ax.fill_between(
                group.margins.numpy(),
                group.lowest.numpy(),
                highest,
                facecolor=style.PALE_GREY,
                linewidth=0,
                label="feasible: confidence can equal accuracy" if number == 0 else None,
            )
            for bound in (group.lowest.numpy(), highest):
                ax.plot(group.margins.numpy(), bound, color="#8A8A8A", linewidth=0.7)
        ax.axhline(
            curve.single,
            color=style.VERMILION,
            linestyle=(0, (5, 1.6)),
            label=f"one temperature, {curve.single:.2f}",
        )
        ax.plot(
            curve.margins.numpy(), curve.temperature.numpy(), color=style.BLUE, linewidth=1.8, label="SMART"
        )
        ax.set_xlim(0, float(curve.margins[-1]))
        ax.set_ylim(0, top)
        ax.set_xlabel("logit margin")
        ax.set_ylabel("temperature")
        ax.legend(loc="lower right")
        strip = ax.inset_axes((0, 1.04, 1, 0.15), sharex=ax)
        strip.stairs(curve.share.numpy(), curve.edges.numpy(), fill=True, color="#9A9A9A")
        strip.tick_params(axis="x", labelbottom=False, length=0)
        strip.set_yticks([])
        strip.set_ylabel("samples", fontsize=5.5)
