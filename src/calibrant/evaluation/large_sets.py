"""How many samples of a large set are used, and which: one rule for arrays, files and streams.

What a fit still learns from more samples shrinks with their number. With 100,000 samples a method of 100
numbers is about 0.0005 nats from its optimum, less than a test set of usual size can show, and fewer
out-of-fold predictions find the shares of a mixture. ``benchmarks/large_sets.py`` measures what is lost.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.posthoc.fitting.folds import shuffled

#: Methods are fitted on at most this many samples of ten classes, up to five times as many of fewer classes;
#: on fewer if they have more than ``MOST_NUMBERS`` numbers, but not on fewer than ``LEAST_ROWS``.
MOST_ROWS, MOST_NUMBERS, LEAST_ROWS = 100_000, 8_000_000, 2_000

#: Methods are cross-validated, chosen and mixed on at most this many of them; of fewer than ten classes on up
#: to 25 times as many, which are all: a mixture gains more from samples there, and fits are quick.
MOST_FOR_CHOICE = 20_000

# With fewer units a part would be too small, however many rows it has.
_LEAST_UNITS = 200


def most_rows(width: int) -> int:
    """Return how many samples of so many numbers each are used at most.

    Example:
        >>> most_rows(2), most_rows(10), most_rows(1000), most_rows(50_000)
        (500000, 100000, 8000, 2000)
    """
    return min(MOST_ROWS * _fewer(width), max(LEAST_ROWS, MOST_NUMBERS // max(width, 1)))


def _fewer(k: int) -> int:
    """Return how many times fewer than ten classes there are."""
    return max(1, 10 // max(k, 2))


@dataclass(frozen=True, eq=False)
class Parts:
    """The samples of a large set that are used: random ones, each class in proportion, or whole units.

    Attributes:
        n: Number of samples of the set.
        fitting: The rows that methods are fitted on, in their order.
        choice: Those of them on which methods are cross-validated, chosen and mixed.
    """

    n: int
    fitting: Tensor
    choice: Tensor

    @property
    def sentence(self) -> str:
        """What was used, for people."""
        fitted, chosen = len(self.fitting), len(self.choice)
        first = f"fitted on {fitted:,} of {self.n:,} validation samples"
        if fitted == chosen:
            return f"Methods were {first}; --all-samples uses all."
        return f"Methods were {first} and chosen on {chosen:,} of these; --all-samples uses all."

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers for JSON."""
        return {"n_fitted": len(self.fitting), "n_chosen": len(self.choice)}


def parts_of(predictions: Predictions, *, seed: int) -> Parts | None:
    """Draw the samples that are used; None if all are: the set is not large, has groups, or has few units."""
    k = predictions.k or 2
    most = most_rows(k)
    # Units are drawn whole and inform less, so that the choice needs all that fits have.
    at_choice = most if predictions.n_units is not None else min(most, MOST_FOR_CHOICE * _fewer(k) ** 2)
    if predictions.n <= at_choice or predictions.groups is not None or predictions.outcome is not None:
        return None
    every = torch.arange(predictions.n)
    fitting = _drawn(predictions, every, most, seed)
    choice = fitting if at_choice == most else _drawn(predictions, fitting, at_choice, seed)
    units = predictions.units
    if units is not None and len(units[choice.to(units.device)].unique()) < _LEAST_UNITS:
        return None
    return Parts(predictions.n, fitting, choice)


def _drawn(predictions: Predictions, rows: Tensor, most: int, seed: int) -> Tensor:
    """Return some of the rows at random, in their order: whole units, else each class in proportion."""
    if len(rows) <= most:
        return rows
    if predictions.units is not None:
        units = predictions.units.cpu()[rows].unique(return_inverse=True)[1]
        order = shuffled(int(units.max()) + 1, seed=seed)
        sizes = torch.bincount(units)[order].cumsum(0)
        taken = torch.zeros(len(order), dtype=torch.bool)
        taken[order[sizes <= most]] = True
        return rows[taken[units]]
    mixed = rows[shuffled(len(rows), seed=seed)]
    by_class = mixed[predictions.truth_for("").cpu()[mixed].long().argsort(stable=True)]
    every = (torch.arange(most, dtype=torch.float64) + 0.5) * (len(rows) / most)
    return by_class[every.long()].sort().values
