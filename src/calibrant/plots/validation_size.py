"""Calibration error against validation size: how much held-out data a repair needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

from calibrant.data.predictions import Predictions
from calibrant.evaluation.validation_size import ValidationSizes, by_validation_size
from calibrant.inputs import Progress
from calibrant.metrics.names import MEASURES
from calibrant.plots import style
from calibrant.plots.display import Display, Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
        methods: Sequence[str] = ("temperature", "smart"),
        sizes: Sequence[int] | None = None,
        n_repeats: int = 5,
        measure: str = "ece",
        n_bins: int = 15,
        seed: int = 0,
        progress: Progress | None = None,
        **place: Unpack[Place],
    ) -> Self:
        """Fit methods on ever larger parts of the validation set, and draw how they do on the test set.

        The options are those of :func:`~calibrant.evaluation.by_validation_size`, then those of :meth:`plot`.
        """
        found = by_validation_size(
            validation,
            test,
            methods=methods,
            sizes=sizes,
            n_repeats=n_repeats,
            measure=measure,
            n_bins=n_bins,
            seed=seed,
            progress=progress,
        )
        return cls(found).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Put the lines and their ranges on axes."""
        measure = MEASURES[self.sizes.measure]
        for number, (name, curve) in enumerate(self.sizes.curves.items()):
            look = style.line(number)
            size = curve.size.numpy()
            ax.fill_between(
                size, curve.low.numpy(), curve.high.numpy(), color=look["color"], alpha=0.15, linewidth=0
            )
            ax.plot(size, curve.mean.numpy(), label=name, **look)
        ax.axhline(
            self.sizes.uncalibrated,
            color=style.GREY,
            linewidth=0.9,
            linestyle=(0, (1, 1.2)),
            label="uncalibrated",
        )
        ax.set_xscale("log")
        ticks = next(iter(self.sizes.curves.values())).size.tolist()
        ax.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        ax.set_xticks([], minor=True)
        ax.set_ylim(0, None)
        ax.grid()
        if measure.percent:
            style.percent_axis(ax, "y")
        ax.set_xlabel("validation samples")
        ax.set_ylabel(measure.title + (" (%)" if measure.percent else ""))
        ax.legend(loc="best")
