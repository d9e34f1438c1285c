"""Loss shape: the value and the gradient of a loss against the probability of the true class."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

from torch import Tensor

from calibrant.evaluation.loss_shape import LossShape, loss_shape
from calibrant.inputs import ArrayLike
from calibrant.plots import layout, style, words
from calibrant.plots.display import Display, Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(eq=False)
class LossShapeDisplay(Display):
    """Losses side by side: their value, and their gradient as a multiple of that of cross-entropy.

    Args:
        shape: Values and weights along the probability; either may be empty.
    """

    shape: LossShape

    width = style.PAGE

    def proportion(self, ax: "Axes") -> float:
        """Return the height of the data area in a new figure as a share of its width."""
        return 0.4 if self._columns(ax) == 2 else 0.62 * len(self._shown)

    @property
    def _shown(self) -> dict[str, Mapping[str, Tensor]]:
        named = {"loss": self.shape.loss, "gradient relative to cross-entropy": self.shape.weight}
        return {name: values for name, values in named.items() if values}

    def _columns(self, ax: "Axes") -> int:
        return layout.columns(ax, len(self._shown), inch=2.2, most=2)

    @classmethod
    def from_functions(
        cls,
        losses: Mapping[str, Callable[[Tensor], Tensor]],
        *,
        p: ArrayLike | None = None,
        **place: Unpack[Place],
    ) -> Self:
        """Evaluate losses along the probability of the true class and draw them.

        Args:
            losses: Functions of the cross-entropy ``-log p_y`` of each sample, by name.
            p: Probabilities above 0 and at most 1; by default an even grid.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.

        Example:
            >>> from calibrant.losses.focal import focal_value
            >>> losses = {"cross-entropy": lambda nll: nll, "focal": lambda nll: focal_value(nll, 3.0)}
            >>> display = LossShapeDisplay.from_functions(losses)
        """
        return cls(loss_shape(losses, p=p)).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Draw the losses, and beside them their gradients relative to cross-entropy."""
        shown, columns = self._shown, self._columns(ax)
        grid = [ax] if len(shown) == 1 else layout.panels(ax, len(shown) // columns, columns, gap=(40, 34))
        for panel, (name, curves) in zip(grid, shown.items(), strict=True):
            for number, (label, values) in enumerate(curves.items()):
                named = words.legend_name(label)
                panel.plot(self.shape.p.numpy(), values.numpy(), label=named, **style.curve(number))
            panel.set_xlim(0, 1)
            panel.grid()
            panel.axhline(0, color=style.BLACK, linewidth=0.6)
            panel.set_ylim(min(0.0, *(float(values.min()) for values in curves.values())), None)
            panel.set_xlabel("probability of the true class")
            panel.set_ylabel(name)
        layout.legend_below(ax, **style.shared_legend(grid))
