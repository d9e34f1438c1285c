"""Class frequencies of unlabelled predictions, beside those of labelled ones."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

import numpy as np

from calibrant.data.predictions import Predictions
from calibrant.decisions.frequencies import FrequencyShift, estimate_frequencies
from calibrant.evaluation.calibrated import fit_named
from calibrant.inputs import Progress
from calibrant.plots import layout, style, words
from calibrant.plots.display import Display, Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Points from one class to the next; names take at most this share of the width.
_ROW = 13.0
_NAMES = 0.3
_MOST_CLASSES = 30


@dataclass(eq=False)
class FrequencyShiftDisplay(Display):
    """Old and new frequency of each class: EM as a dot with its interval, BBSE, and the old one.

    With more than thirty classes, those that changed most are shown.

    Args:
        shift: The frequencies, by :func:`calibrant.decisions.estimate_frequencies`.
    """

    shift: FrequencyShift

    @classmethod
    def from_predictions(
        cls,
        labelled: Predictions,
        unlabelled: Predictions,
        *,
        method: str | None = None,
        progress: Progress | None = None,
        **place: Unpack[Place],
    ) -> Self:
        """Estimate the frequencies of unlabelled predictions and draw them.

        Args:
            labelled: Predictions with labels and the old frequencies.
            unlabelled: Predictions with the new ones; labels are ignored.
            method: A post-hoc method to fit on the labelled ones first, or none.
            progress: Called with the current step, the number of resamples done, and their total.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        calibrator = None if method is None else fit_named(method, labelled)
        found = estimate_frequencies(labelled, unlabelled, calibrator=calibrator, progress=progress)
        return cls(found).plot(**place)

    def proportion(self, ax: "Axes") -> float:
        """Return the height of the data area in a new figure as a share of its width."""
        rows = min(len(self.shift.classes), _MOST_CLASSES)
        return max(60, _ROW * rows) / (72 * (1 - _NAMES) * layout.inches(ax))

    def draw(self, ax: "Axes") -> None:
        """Draw a row for each class."""
        found = self.shift
        order = np.argsort(-np.abs(found.frequencies - found.old), kind="stable")[:_MOST_CLASSES]
        chosen = np.sort(order)
        places = np.arange(len(chosen))
        middle = found.frequencies[chosen]
        beyond = np.stack([middle - found.low[chosen], found.high[chosen] - middle])
        ax.plot(
            found.old[chosen],
            places,
            "|",
            color=style.BLACK,
            markersize=9,
            label="labelled",
            linestyle="none",
        )
        ax.errorbar(
            middle,
            places,
            xerr=beyond,
            fmt="o",
            color=style.BLUE,
            elinewidth=1,
            capsize=2,
            label=f"EM, {100 * found.level:.0f} % interval",
        )
        ax.plot(
            found.second_opinion[chosen],
            places,
            "s",
            color=style.VERMILION,
            markerfacecolor="white",
            label="BBSE",
            linestyle="none",
        )
        points = _NAMES * 72 * layout.inches(ax)
        ax.set_ylim(len(chosen) - 0.4, -0.6)
        ax.set_yticks(places, [words.shortened(found.classes[each], points, 6.5) for each in chosen])
        ax.tick_params(axis="y", length=0)
        ax.set_xlim(left=0)
        ax.grid()
        style.percent_axis(ax, "x")
        ax.set_xlabel("share of the samples (%)")
        layout.legend_below(ax)
