"""Post-hoc methods compared: by how much each helps, and how many validation samples it needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypedDict, Unpack

import numpy as np

from calibrant.data.predictions import Predictions
from calibrant.evaluation.validation_size import ValidationSizes, by_validation_size
from calibrant.inference.paired import PairedDifference
from calibrant.inputs import Progress
from calibrant.metrics.names import MEASURES
from calibrant.plots import layout, style, words
from calibrant.plots.display import Display, Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from calibrant.evaluation.compare import Comparison

# Points from one method to the next and between both panels; names take at most this share of the width.
_ROW = 13.0
_BETWEEN = (14.0, 40.0)
_NAMES = 0.38


@dataclass(eq=False)
class MethodComparisonDisplay(Display):
    """Change in NLL by each method as a dot with its interval, and its calibration error beside it.

    Args:
        names: The methods, the first on top.
        improvement: Change in the negative log-likelihood, with its paired interval.
        measured: A measure of each method, in the same order.
        measure: Name of that measure.
        chosen: The method to mark, or none.
        where: The data that it was measured on.
    """

    names: Sequence[str]
    improvement: Sequence[PairedDifference]
    measured: Sequence[float]
    measure: str = "ece"
    chosen: str | None = None
    where: str = "test"

    width = style.PAGE

    def proportion(self, ax: "Axes") -> float:
        """Return the height of the data area in a new figure as a share of its width."""
        rows = 2 // self._columns(ax)
        points = rows * max(60, _ROW * len(self.names)) + (rows - 1) * _BETWEEN[1]
        # The names take about a third of the figure, so that the area is narrower than it.
        return points / (72 * (1 - _NAMES) * layout.inches(ax))

    def _columns(self, ax: "Axes") -> int:
        return layout.columns(ax, 2, inch=2.4, most=2)

    @classmethod
    def from_comparison(
        cls, comparison: "Comparison", *, measure: str = "ece", **place: Unpack[Place]
    ) -> Self:
        """Draw the result of :func:`~calibrant.evaluation.compare`, and mark what ``choose`` picks.

        Args:
            comparison: The compared methods; shown on the test set if there was one, else out of fold.
            measure: The measure to show beside the change in NLL.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        from calibrant.evaluation.choose import choose

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
        """Draw two columns of dots."""
        from matplotlib.ticker import MaxNLocator

        columns = self._columns(ax)
        changes, errors = layout.panels(ax, 2 // columns, columns, gap=_BETWEEN)
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
        points = _NAMES * 72 * layout.inches(ax)
        names = [f"{name} (chosen)" if name == self.chosen else name for name in self.names]
        names = [words.cut_to_width(name, points, 6.5) for name in names]
        for panel in (changes, errors):
            panel.set_ylim(len(self.names) - 0.4, -0.6)
            panel.set_yticks(places, names if panel is changes or columns == 1 else [""] * len(names))
            panel.grid()
            panel.tick_params(axis="y", length=0)
            for name, place in zip(self.names, places, strict=True):
                if name == self.chosen:
                    panel.axhspan(place - 0.5, place + 0.5, color=style.PALE_GREY, linewidth=0, zorder=0)
        measure = MEASURES[self.measure]
        if measure.percent:
            style.percent_axis(errors, "x")
        level = f"{100 * self.improvement[0].level:.0f} % interval" if self.improvement else ""
        changes.set_xlabel(f"change in NLL, {self.where}, {level}")
        errors.set_xlabel(f"{measure.title}, {self.where}" + (" (%)" if measure.percent else ""))
        errors.set_xlim(0, 1.08 * max(self.measured, default=1.0) or 1.0)
        changes.xaxis.set_major_locator(MaxNLocator(4))
        layout.legend_below(ax, **style.shared_legend([changes]))


class SizeOptions(TypedDict, total=False):
    """Options of :func:`~calibrant.evaluation.by_validation_size`."""

    methods: Sequence[str]
    sizes: Sequence[int] | None
    n_repeats: int
    measure: str
    n_bins: int
    seed: int
    progress: Progress | None


@dataclass(eq=False)
class ValidationSizeDisplay(Display):
    """One line per method, with the range over random parts of the validation set.

    Args:
        sizes: A measure on the test set by method and by size.
    """

    sizes: ValidationSizes

    @classmethod
    def from_predictions(
        cls,
        validation: Predictions,
        test: Predictions,
        *,
        ax: "Axes | None" = None,
        width: float | None = None,
        title: str | None = None,
        **options: Unpack[SizeOptions],
    ) -> Self:
        """Fit methods on ever larger parts of the validation set, and draw their measure on the test set.

        The options are those of :func:`~calibrant.evaluation.by_validation_size`; ``ax``, ``width`` and
        ``title`` are those of :meth:`plot`.
        """
        return cls(by_validation_size(validation, test, **options)).plot(ax, width=width, title=title)

    def draw(self, ax: "Axes") -> None:
        """Draw the lines and their ranges."""
        measure = MEASURES[self.sizes.measure]
        for number, (name, curve) in enumerate(self.sizes.curves.items()):
            look = style.line(number)
            size = curve.size.numpy()
            ax.fill_between(
                size, curve.low.numpy(), curve.high.numpy(), color=look["color"], alpha=0.15, linewidth=0
            )
            ax.plot(size, curve.mean.numpy(), label=name, **look)
        ax.axhline(self.sizes.uncalibrated, label="uncalibrated", **style.REFERENCE)
        ax.set_xscale("log")
        ticks = next(iter(self.sizes.curves.values())).size.tolist()
        ax.set_xticks(ticks, style.apart(ticks, 72 * layout.inches(ax) - 50))
        ax.set_xticks([], minor=True)
        ax.set_ylim(0, None)
        ax.grid()
        if measure.percent:
            style.percent_axis(ax, "y")
        ax.set_xlabel("validation samples")
        ax.set_ylabel(measure.title + (" (%)" if measure.percent else ""))
        layout.legend_below(ax)
