"""Running totals over a stream: the base of all accumulators."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, TypeAlias, Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, no_weight
from calibrant.streams.sums import Array, CheckedBatch, OtherForms, check_streamed_batch

TotalsReduction: TypeAlias = Callable[[Array, Array], Array]

# Weights are summed as they come, so the square of their sum must be a number.
_LEAST = 1e-100


def add_pairs(left: Array, right: Array) -> Array:
    """Add compensated sums: each is stacked on the rounding errors that it has lost so far.

    A plain running sum of a billion equal terms rounds each of them the same way and drifts. Here only the
    sum within a batch is rounded, so the number of batches does not matter.
    """
    total, term = left[0], right[0]
    with np.errstate(invalid="ignore"):
        grown = total + term
        added = grown - total
        lost = (total - (grown - added)) + (term - added)
    # An infinite log-likelihood has nothing more to lose.
    return np.stack([grown, left[1] + right[1] + np.where(np.isnan(lost), 0.0, lost)])


#: The totals of every accumulator: the number of samples, of those with a weight, and the sums of all weights
#: and of their squares.
NUMBERS: Mapping[str, TotalsReduction] = {
    "n": np.add,
    "n_weighted": np.add,
    "weight": add_pairs,
    "squared_weight": add_pairs,
}


def weight_sums(weights: Tensor | None) -> dict[str, float]:
    """Return the number of weights, their sum and that of their squares by name; nothing without weights."""
    if weights is None:
        return {}
    squares = float(weights.square().sum())
    return {"n_weighted": len(weights), "weight": float(weights.sum()), "squared_weight": squares}


class Accumulator(ABC):
    """Totals over a stream of predictions, in memory that does not grow with it.

    ``update`` reads a batch, ``merge`` adds the totals of another accumulator, and ``compute`` returns the
    result so far. Neither the order nor the partition of the samples matters. A batch without samples, as
    filters and uneven shards produce, changes nothing; any other is checked as the one-shot functions
    do, and one that is refused changes nothing either. The weights of all batches have one scale; a sample
    without a weight has the weight 1.

    Accumulators can be pickled; ``state`` and ``from_state`` turn them into a dictionary of settings and
    tensors. ``settings`` names the options that must agree, ``reductions`` says how two of each tensor become
    one, ``growing`` names tensors of any length, and ``needs_classes`` says whether confidences without class
    probabilities are refused.
    """

    settings: ClassVar[tuple[str, ...]] = ()
    reductions: ClassVar[Mapping[str, TotalsReduction]]
    growing: ClassVar[tuple[str, ...]] = ()
    needs_classes: ClassVar[bool] = False

    # Totals are NumPy arrays: for so few numbers the threads of torch cost more than they gain.
    def __init__(self, *shape: int) -> None:
        """Begin with totals of this shape."""
        empty = {
            np.add: np.zeros(shape),
            add_pairs: np.zeros((2, *shape)),
            np.minimum: np.full(shape, np.inf),
            np.maximum: np.full(shape, -np.inf),
        }
        self._totals = {name: empty[how] for name, how in self.reductions.items() if how in empty}
        self._totals |= {name: np.array(0) for name in ("n", "n_weighted")}
        self._totals |= {name: np.zeros(2) for name in ("weight", "squared_weight")}

    def __repr__(self) -> str:
        return f"<{self._title()} of {self.n} samples>"

    @property
    def n(self) -> int:
        """Number of samples so far."""
        return int(self._totals["n"])

    @property
    def weight(self) -> float:
        """Sum of the weights of all samples so far; without weights their number."""
        return float(self._totals["weight"].sum())

    @property
    def effective(self) -> float | None:
        """Effective number of the samples so far, as in ``outcomes.effective``; none without weights."""
        if not self._totals["n_weighted"]:
            return None
        weight, squared = self.weight, float(self._totals["squared_weight"].sum())
        if weight < _LEAST:
            raise InputError(
                f"weights: expected a sum of at least {_LEAST} in a stream, got {weight:.6g}; divide them by "
                "their mean"
            )
        return weight**2 / squared

    def update(
        self,
        probs: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        **others: Unpack[OtherForms],
    ) -> None:
        """Read a batch.

        Args:
            probs: Class probabilities of shape ``(n, k)``, with ``labels``.
            labels: Integer classes of shape ``(n,)``.
            others: Instead of ``probs``, ``logits`` with ``labels``; or ``confidence`` with ``correct`` for
                accumulators that do not need the probability of every class. Beside any of these,
                ``weights`` of shape ``(n,)``.
        """
        batch = check_streamed_batch(probs, labels, n_bins=getattr(self, "n_bins", 1), **others)
        if batch is None:
            return
        if reason := self.why_not(batch.k):
            raise InputError(reason)
        self.add(batch)

    @abstractmethod
    def add(self, batch: CheckedBatch) -> None:
        """Read a batch that has been checked, once for several accumulators."""

    @abstractmethod
    def compute(self) -> object:
        """Return the result of all samples so far."""

    def why_not(self, k: int | None) -> str:
        """Return why ``k`` classes (None: confidences) cannot be read; an empty string if they can."""
        if self.needs_classes and not k:
            return "arguments: expected labels with either probs or logits, got confidence with correct"
        return ""

    def merge(self, other: Self) -> None:
        """Add the totals of another accumulator with the same settings, which does not change."""
        if type(other) is not type(self) or other._chosen() != self._chosen():
            got = other._title() if isinstance(other, Accumulator) else type(other).__name__
            raise InputError(f"merge: expected {self._title()}, got {got}")
        self._include(**other._totals)

    def state(self) -> dict[str, int | str | Tensor]:
        """Return a copy of settings and totals as a dictionary of plain values and tensors."""
        return {**self._chosen(), **{name: torch.tensor(total) for name, total in self._totals.items()}}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the accumulator that had this ``state``."""
        strange = sorted(set(cls.reductions).symmetric_difference(set(state) - set(cls.settings)))
        if strange:
            raise InputError(
                f"state: expected that of {cls.__name__} with {', '.join(cls.reductions)}, "
                f"got one that differs in {', '.join(strange)}"
            )
        new = cls(**{name: state[name] for name in cls.settings if name in state})
        for name, total in new._totals.items():
            stored = torch.as_tensor(state[name], device="cpu")
            if stored.shape != total.shape and (name not in cls.growing or stored.ndim != total.ndim):
                raise InputError(
                    f"state: expected {name} of shape {total.shape}, got shape {tuple(stored.shape)}"
                )
            if stored.is_complex() or (stored.is_floating_point() and total.dtype.kind == "i"):
                raise InputError(f"state: expected {name} of type {total.dtype}, got {stored.dtype}")
            new._totals[name] = stored.numpy().astype(total.dtype)
        if not 0 <= new._totals["n_weighted"] <= new._totals["n"]:
            raise InputError(f"state: expected n of at least n_weighted, and that of at least 0, got {new.n}")
        return new

    def _include(self, n: npt.ArrayLike, **sums: npt.ArrayLike) -> None:
        """Add the sums of ``n`` samples, of weight 1 by default; a plain sum becomes a compensated one."""
        given = {"n_weighted": 0, "weight": n, "squared_weight": n} | sums | {"n": n}
        totals = {}
        for name, own in self._totals.items():
            other = np.asarray(given[name], dtype=own.dtype)
            if self.reductions[name] is add_pairs and other.ndim < own.ndim:
                other = np.stack([other, np.zeros_like(other)])
            totals[name] = np.asarray(self.reductions[name](own, other))
        self._totals = totals

    def _seen(self) -> dict[str, Array]:
        """Return the totals of at least one sample, compensated sums as one number."""
        if self.n == 0:
            raise InputError("compute: expected at least one sample so far, got none; call update first")
        if self.weight == 0:
            raise no_weight()
        return {
            name: total.sum(axis=0) if self.reductions[name] is add_pairs else total
            for name, total in self._totals.items()
        }

    def _chosen(self) -> dict[str, int | str]:
        chosen = {name: getattr(self, name) for name in self.settings}
        return {name: value for name, value in chosen.items() if value is not None}

    def _title(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in self._chosen().items())
        return f"{type(self).__name__}({settings})"
