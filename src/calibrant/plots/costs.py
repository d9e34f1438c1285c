"""What decisions cost, by the cost of asking a person."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

from calibrant.data.predictions import Predictions
from calibrant.decisions.costs import CostOfAsking, Costs, cost_of_asking
from calibrant.plots import layout, style, words
from calibrant.plots.display import Display, Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(eq=False)
class CostOfAskingDisplay(Display):
    """Mean cost of the cheapest expected action against the cost of asking a person.

    Args:
        curves: What acting costs, by name of the model.
    """

    curves: Mapping[str, CostOfAsking]

    @classmethod
    def from_predictions(
        cls,
        predictions: Predictions | Mapping[str, Predictions],
        *,
        costs: Costs | None = None,
        **place: Unpack[Place],
    ) -> Self:
        """Act on predictions at many costs of asking, and draw what that costs.

        Args:
            predictions: Logits or probabilities with labels, or confidences with hits; or several of them by
                name. What is calibrated must have been fitted on other samples.
            costs: Costs of the other actions; by default a mistake costs 1, and a hit nothing.
            **place: ``ax``, ``width`` and ``title`` of :meth:`plot`.
        """
        given = {"confidence": predictions} if isinstance(predictions, Predictions) else predictions
        largest = max(cost_of_asking(each, costs).ask[-1] for each in given.values())
        ask = [largest * step / 100 for step in range(101)]
        return cls({name: cost_of_asking(each, costs, ask=ask) for name, each in given.items()}).plot(**place)

    def draw(self, ax: "Axes") -> None:
        """Draw the curves and the cost of asking always."""
        for number, (name, curve) in enumerate(self.curves.items()):
            ax.plot(curve.ask, curve.observed, label=words.legend_name(name), **style.curve(number))
        first = next(iter(self.curves.values()))
        top = max(max(curve.observed) for curve in self.curves.values())
        ax.plot(first.ask, first.ask, label="always ask", **style.REFERENCE)
        ax.set_xlim(0, first.ask[-1])
        ax.set_ylim(0, 1.15 * top)
        ax.grid()
        ax.set_xlabel("cost of asking a person")
        ax.set_ylabel("mean cost of a sample")
        layout.legend_below(ax)
