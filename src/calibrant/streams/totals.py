"""Running totals: what all accumulators share, so that streams, workers and processes can be combined."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.errors import InputError

Array: TypeAlias = npt.NDArray[Any]
Reduction: TypeAlias = Callable[[Array, Array], Array]


def add_pairs(left: Array, right: Array) -> Array:
    """Add sums of floats, each stacked on what rounding has taken from it so far.

    A plain running sum of a billion equal terms rounds each of them the same way and drifts. Here only the
    sum within a batch is rounded, so it does not matter how many batches there are.
    """
    total, term = left[0], right[0]
    with np.errstate(invalid="ignore"):
        grown = total + term
        added = grown - total
        lost = (total - (grown - added)) + (term - added)
    # An infinite log-likelihood has nothing more to lose.
    return np.stack([grown, left[1] + right[1] + np.where(np.isnan(lost), 0.0, lost)])


def as_pair(sums: npt.ArrayLike) -> Array:
    """Begin such a sum: nothing has been lost yet."""
    return np.stack([sums, np.zeros_like(sums)])


class Accumulator:
    """Totals over a stream of predictions, in memory that does not grow with it.

    ``update`` reads a batch, ``merge`` adds what another accumulator has seen, and ``compute`` returns the
    result so far. Neither the order nor the partition of the samples matters. A batch without samples, as
    filters and uneven shards produce, changes nothing; any other is checked as the one-shot functions
    do, and one that is refused changes nothing either.

    Accumulators can be pickled; ``state`` and ``from_state`` carry them as a dictionary of integers and
    tensors. ``settings`` names the options that must agree, and ``reductions`` says how two of each tensor
    become one.
    """

    settings: ClassVar[tuple[str, ...]]
    reductions: ClassVar[Mapping[str, Reduction]]

    # Totals are NumPy arrays: on these few numbers the threads of torch cost more than they give.
    def __init__(self, totals: Mapping[str, Array]) -> None:
        self._totals = {"n": np.array(0), **totals}

    def __repr__(self) -> str:
        return f"<{self._title()} of {self.n} samples>"

    @property
    def n(self) -> int:
        """Number of samples so far."""
        return int(self._totals["n"])

    def merge(self, other: Self) -> None:
        """Add what another accumulator with the same settings has seen; the other one stays as it is."""
        if type(other) is not type(self) or other._chosen() != self._chosen():
            got = other._title() if isinstance(other, Accumulator) else type(other).__name__
            raise InputError(f"merge: expected {self._title()}, got {got}")
        self._include(other._totals)

    def state(self) -> dict[str, int | Tensor]:
        """Return settings and totals as a dictionary of integers and tensors, independent of this object."""
        return {**self._chosen(), **{name: torch.tensor(total) for name, total in self._totals.items()}}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the accumulator whose ``state`` this was."""
        strange = sorted(set(cls.reductions).symmetric_difference(set(state) - set(cls.settings)))
        if strange:
            raise InputError(
                f"state: expected that of {cls.__name__} with {', '.join(cls.reductions)}, "
                f"got one that differs in {', '.join(strange)}"
            )
        new = cls(**{name: state[name] for name in cls.settings if name in state})
        for name, total in new._totals.items():
            value = torch.as_tensor(state[name], device="cpu").numpy().astype(total.dtype)
            if value.shape != total.shape:
                raise InputError(f"state: expected {name} of shape {total.shape}, got shape {value.shape}")
            new._totals[name] = value
        return new

    def _include(self, totals: Mapping[str, Array]) -> None:
        self._totals = {
            name: np.asarray(self.reductions[name](total, totals[name]))
            for name, total in self._totals.items()
        }

    def _seen(self) -> dict[str, Array]:
        """Return the totals of at least one sample, pairs as their sum."""
        if self.n == 0:
            raise InputError("compute: expected at least one sample so far, got none; call update first")
        return {
            name: total.sum(axis=0) if self.reductions[name] is add_pairs else total
            for name, total in self._totals.items()
        }

    def _chosen(self) -> dict[str, int]:
        chosen = {name: getattr(self, name) for name in self.settings}
        return {name: value for name, value in chosen.items() if value is not None}

    def _title(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in self._chosen().items())
        return f"{type(self).__name__}({settings})"
