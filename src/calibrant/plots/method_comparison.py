"""Method comparison: which repair helps, by how much, and how sure that is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

import numpy as np

from calibrant.evaluation.compare import Comparison, choose
from calibrant.metrics.names import MEASURES
from calibrant.metrics.paired import PairedDifference
from calibrant.plots import style
from calibrant.plots.display import Display, Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(eq=False)
class MethodComparisonDisplay(Display):
    """Change of the likelihood by each method as a dot with its interval, and its calibration error beside.

    Args:
        names: The methods, the first on top.
        improvement: Change of the negative log-likelihood, with its paired interval.
        measured: A measure of each method, in the same order.
        measure: Name of that measure.
        chosen: The method to mark, or none.
        where: What it was measured on.
    """

    names: Sequence[str]
    improvement: Sequence[PairedDifference]
    measured: Sequence[float]
    measure: str = "ece"
    chosen: str | None = None
    where: str = "test"

    width = style.PAGE

    @property
    def ratio(self) -> float:  # type: ignore[override]  # it follows from the number of methods
        """Height of a figure as a share of its width."""
        return 0.12 + 0.028 * len(self.names)

    @classmethod
    def from_comparison(cls, comparison: Comparison, *, measure: str = "ece", **place: Unpack[Place]) -> Self:
        """Draw the result of :func:`~calibrant.evaluation.compare`, and mark what ``choose`` would take.

        Args:
            comparison: Methods side by side; shown on the test set if there was one, else out of fold.
            measure: Which of the measures of the comparison stands beside.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        results = comparison.results
        return cls(
            names=[result.name for result in results],
            improvement=[result.improvement for result in results],
            measured=[(result.test_metrics or result.metrics)[measure] for result in results],
            measure=measure,
            chosen=choose(comparison).name,
            where="out of fold" if comparison.n_test is None else "test",
        ).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Put two columns of dots on axes."""
        from matplotlib.ticker import MaxNLocator

        changes, errors = style.panels(ax, 1, 2, gap=(0.06, 0))
        places = np.arange(len(self.names))
        middle = np.array([change.difference for change in self.improvement])
        ends = np.array([[change.low, change.high] for change in self.improvement]).T
        beyond = np.abs(ends - middle)
        better = ends[1] < 0
        for kind, face, where in (
            ("better", style.BLUE, better),
            ("not clearly better", "white", ~better),
        ):
            if where.any():
                changes.errorbar(
                    middle[where],
                    places[where],
                    xerr=beyond[:, where],
                    fmt="o",
                    color=style.BLUE,
                    markerfacecolor=face,
                    elinewidth=1,
                    capsize=2,
                    label=kind,
                )
        errors.plot(self.measured, places, "s", color=style.VERMILION, linestyle="none")
        changes.axvline(0, color=style.BLACK, linewidth=0.7)
        names = [f"{name} (chosen)" if name == self.chosen else name for name in self.names]
        for panel in (changes, errors):
            panel.set_ylim(len(self.names) - 0.4, -0.6)
            panel.set_yticks(places, names if panel is changes else [""] * len(names))
            panel.grid()
            panel.tick_params(axis="y", length=0)
            for name, place in zip(self.names, places, strict=True):
                if name == self.chosen:
                    panel.axhspan(place - 0.5, place + 0.5, color=style.PALE_GREY, linewidth=0, zorder=0)
        measure = MEASURES[self.measure]
        if measure.percent:
            style.percent_axis(errors, "x")
        level = f"{100 * self.improvement[0].level:.0f} % interval" if self.improvement else ""
        changes.set_xlabel(f"change of the NLL, {self.where}, with {level}")
        errors.set_xlabel(f"{measure.title}, {self.where}" + (" (%)" if measure.percent else ""))
        errors.set_xlim(0, None)
        changes.xaxis.set_major_locator(MaxNLocator(6))
        changes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
