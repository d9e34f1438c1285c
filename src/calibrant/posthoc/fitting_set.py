"""The samples that a method is fitted on: one checked value, which fits hand on to each other.

A comparison fits many methods on the same folds, and many of them begin alike: with the likeliest
temperature, a table of log-sum-exps, or structured scaling. A function decorated with :func:`remembered`
computes such a result once for each set and each part of it, also if several threads ask for it.
"""

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Concatenate, ParamSpec, TypedDict, TypeVar, Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.errors import FitError, InputError
from calibrant.inputs import (
    ArrayLike,
    check_features,
    check_label_exists,
    check_labels,
    check_logits,
    check_seed,
    check_units,
    check_weights,
    masked_classes,
)
from calibrant.outcomes import effective, mean_of
from calibrant.posthoc.fitting.folds import random_folds, shuffled
from calibrant.posthoc.fitting.masked import within_reach
from calibrant.posthoc.fitting.weighing import design_effect, size_of, sum_of
from calibrant.threads import few_threads

P = ParamSpec("P")
R = TypeVar("R")

# A set has this many folds; with more logits three are enough, because each leaves many samples to fit on.
FOLDS = 5
MANY_LOGITS = 1 << 23


class Rows(TypedDict, total=False):
    """What every ``fit`` takes beside logits and labels; a method uses what it needs.

    Attributes:
        features: Penultimate activations, or signals of a black box, of shape ``(n, d)``.
        weights: How much each sample counts, shape ``(n,)``; only their ratios matter. Samples of weight 0
            are left out. A few methods refuse weights.
        units: A whole number for each sample, shape ``(n,)``; samples of equal number depend on each other,
            so they stay together in folds, and chance is judged by units.
        seed: Seed of whatever is random: folds, first weights, random starts.
    """

    features: ArrayLike | None
    weights: ArrayLike | None
    units: ArrayLike | None
    seed: int


@dataclass(frozen=True, eq=False)
class FittingSet:
    """Samples that a method is fitted on; equal sets give equal calibrators.

    Made by :meth:`of`, which checks. Weights are positive, and their sum is the effective number of samples;
    equal weights are None. Rows that teach nothing are left out: those of weight 0, and those in which all
    classes but one are masked.

    Attributes:
        logits: Scores of shape ``(n, k)``.
        labels: Integer classes of shape ``(n,)``.
        features: Numbers about each sample, shape ``(n, d)``; NaN where one is missing.
        weights: How much each sample counts, shape ``(n,)``.
        units: A number for each sample, from 0 in the order of first appearance: samples of equal number are
            in the same fold. None if each sample is a unit of its own.
        seed: Seed of whatever is random in a fit.
        rows: The place of each sample among those that were given; None if all are used.
        rows_masked: Whether classes are masked in any row that was given, used or not.
    """

    logits: Tensor
    labels: Tensor
    features: Tensor | None = None
    weights: Tensor | None = None
    units: Tensor | None = None
    seed: int = 0
    rows: Tensor | None = None
    rows_masked: bool = False
    _given_folds: Tensor | None = None
    _left_out: frozenset[int] = frozenset()
    _memory: "_Memory" = field(default_factory=lambda: _Memory(), repr=False)

    @classmethod
    def of(
        cls,
        logits: "ArrayLike | FittingSet",
        labels: ArrayLike | None = None,
        **rows: Unpack[Rows],
    ) -> "FittingSet":
        """Check arrays and return them as one value; a fitting set is returned as it is.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1; or a fitting set.
            labels: Integer classes of shape ``(n,)``.
            **rows: Features, weights, units and a seed.

        Example:
            >>> data = FittingSet.of([[2.0, 0.0], [1.0, 3.0], [0.0, 1.0]], [0, 1, 1], weights=[1, 0, 1])
            >>> len(data), data.weights, data.rows.tolist()
            (2, None, [0, 2])
        """
        for name in rows.keys() - Rows.__annotations__.keys():
            raise TypeError(f"fit() got an unexpected keyword argument {name!r}")
        if isinstance(logits, FittingSet):
            if labels is not None or rows:
                raise TypeError("logits: expected no other arguments beside a FittingSet, got some")
            return logits
        if labels is None:
            raise InputError("labels: expected integer classes of shape (n,), got none")
        z = _in_order(within_reach(check_logits(logits)))
        n, k = z.shape
        y = check_labels(labels, n=n, k=k).to(z.device)
        check_label_exists(z, y)
        features, weights, units = rows.get("features"), rows.get("weights"), rows.get("units")
        every = cls(
            z,
            y,
            None if features is None else _in_order(check_features(features, n=n, missing=True)).to(z.device),
            None if weights is None else _in_order(check_weights(weights, n=n)).to(z.device),
            None if units is None else _numbered(check_units(units, n=n)),
            check_seed(rows.get("seed", 0)),
            rows_masked=masked_classes(z) is not None,
        )
        teaches = _teaches(z, every.weights)
        if bool(teaches.all()):
            return replace(every, weights=_effective(every.weights))
        used = teaches.nonzero().squeeze(1)
        return replace(every.take(used), rows=used)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def n_classes(self) -> int:
        """The number of classes."""
        return self.logits.shape[1]

    @property
    def n_units(self) -> int:
        """The number of units; each sample is one if there are no others."""
        return len(self) if self.units is None else int(self.units.max()) + 1

    @property
    def size(self) -> float:
        """The number of samples, or the effective number if they have weights."""
        return size_of(self.labels, self.weights)

    def total(self, values: Tensor) -> Tensor:
        """Return the sum over the samples of values of shape ``(n,)``, each times its weight, in float64."""
        return sum_of(values, self.weights)

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over the samples of values of shape ``(n,)``, by weight."""
        return mean_of(values, self.weights)

    def evidence(self, residuals: Tensor) -> Tensor | None:
        """Return how many independent samples each row stands for; None if each is one.

        That is its weight, divided by the design effect of residuals if samples depend on each other.
        """
        if self.units is None:
            return self.weights
        each = torch.ones_like(residuals) if self.weights is None else self.weights
        return each / design_effect(residuals, self.weights, self.units)

    @cached_property
    def masked(self) -> bool:
        """Whether classes are masked by logits of ``-inf``."""
        return masked_classes(self.logits) is not None

    @cached_property
    def folds(self) -> Tensor:
        """The fold of each sample, shape ``(n,)``: random, even, and whole units."""
        if self._given_folds is not None:
            return self._given_folds
        return self.dealt(FOLDS if self.logits.numel() <= MANY_LOGITS else 3)

    def in_folds(self, n_folds: int) -> "FittingSet":
        """Return the same samples in this many folds, with a memory of its own."""
        return replace(self, _given_folds=self.dealt(n_folds), _memory=_Memory())

    def dealt(self, n_folds: int) -> Tensor:
        """Return a fold for each sample, at random and evenly; a unit is never split."""
        n = self.n_units
        dealt = random_folds(n, min(n_folds, n), seed=self.seed).to(self.labels.device)
        return dealt if self.units is None else dealt[self.units]

    def check_can_hold_out(self) -> None:
        """Refuse a set of which nothing can be held out, because it is one sample or one unit."""
        if self.n_units < 2:
            what = "logits: expected at least two samples" if self.units is None else "units: expected two"
            raise InputError(f"{what}, one to hold out, got one")

    def without(self, fold: int) -> "FittingSet":
        """Return the samples outside a fold, in the other folds; they share the memory of this set.

        A rest of one fold alone is dealt anew.
        """
        rest = (self.folds != fold).nonzero().squeeze(1)
        part, folds = self.take(rest), self.folds[rest]
        if len(folds.unique()) < 2:
            return part
        return replace(part, _given_folds=folds, _left_out=self._left_out | {fold}, _memory=self._memory)

    def take(self, rows: Tensor) -> "FittingSet":
        """Return some samples as a set of its own, with its own effective number and folds."""
        at = rows if rows.dtype != torch.bool else rows.nonzero().squeeze(1)
        return FittingSet(
            self.logits[at],
            self.labels[at],
            None if self.features is None else self.features[at],
            None if self.weights is None else _effective(self.weights[at]),
            None if self.units is None else _numbered(self.units[at]),
            self.seed,
            at if self.rows is None else self.rows[at],
            self.rows_masked,
        )

    def names_of(self, groups: ArrayLike) -> npt.NDArray[np.str_]:
        """Return the name of each sample's group, from the names of all rows that were given."""
        given: npt.NDArray[np.str_] = np.asarray(groups).astype(str)
        if self.rows is None:
            return given
        if given.ndim != 1 or len(given) <= int(self.rows.max()):
            raise InputError(f"groups: expected a name for each row of logits, got shape {given.shape}")
        used: npt.NDArray[np.str_] = given[self.rows.cpu().numpy()]
        return used

    def thinned(self, most: int) -> "FittingSet":
        """Return this set, or of a larger one this many samples at random, in their order."""
        if len(self) <= most:
            return self
        return self.take(shuffled(len(self), seed=self.seed)[:most].sort().values.to(self.labels.device))

    def with_logits(self, logits: Tensor) -> "FittingSet":
        """Return the same samples and folds with other logits, such as those of a first step."""
        return replace(self, logits=logits, _memory=_Memory())

    def forget(self, *folds: int) -> None:
        """Drop what was remembered of this set, or of this set without some folds."""
        self._memory.forget(self._left_out | set(folds))

    def forget_everything(self) -> None:
        """Drop what was remembered of this set and of all its parts."""
        self._memory.clear()


def _in_order(values: Tensor) -> Tensor:
    """Return values row after row from an aligned address: sums depend on both in their last bits."""
    if values.is_contiguous() and values.data_ptr() % 64 == 0:
        return values
    return values.clone(memory_format=torch.contiguous_format)


def _teaches(z: Tensor, weights: Tensor | None) -> Tensor:
    """Return which samples a fit can learn from: those with a weight and with two classes at least."""
    teaches = torch.ones(len(z), dtype=torch.bool, device=z.device) if weights is None else weights > 0
    masked = masked_classes(z)
    if masked is not None:
        teaches = teaches & ((~masked).sum(dim=1) > 1)
    if not bool(teaches.any()):
        raise FitError("logits: expected two classes that are not masked in some row, got one in every row")
    return teaches


def _effective(weights: Tensor | None) -> Tensor | None:
    """Return positive weights with the effective number of samples as their sum; None if all are equal."""
    return None if weights is None or float(weights.min()) == float(weights.max()) else effective(weights)


def _numbered(units: Tensor | None) -> Tensor | None:
    """Return units numbered from 0 in the order of their first appearance; None if each sample is a unit."""
    if units is None:
        return None
    names, place = torch.unique(units, return_inverse=True)
    if len(names) == len(units):
        return None
    rows = torch.arange(len(units), device=units.device)
    first = torch.full_like(names, len(units)).scatter_reduce(0, place, rows, "amin")
    return first.argsort().argsort()[place]


def remembered(
    function: Callable[Concatenate[FittingSet, P], R],
) -> Callable[Concatenate[FittingSet, P], R]:
    """Decorate a function of a fitting set and hashable options: it computes once for each set and part.

    Example:
        >>> calls = []
        >>> @remembered
        ... def mean(data):
        ...     calls.append(len(data))
        ...     return float(data.logits.mean())
        >>> data = FittingSet.of(torch.tensor([[1.0, 1.0], [2.0, 2.0], [6.0, 6.0]]), [0, 1, 1])
        >>> rest = data.without(int(data.folds[0]))
        >>> mean(data), mean(data), mean(rest), mean(data.without(int(data.folds[0]))), calls
        (3.0, 3.0, 4.0, 4.0, [3, 2])
    """

    @functools.wraps(function)
    def remembering(data: FittingSet, /, *args: P.args, **options: P.kwargs) -> R:
        key = function, args, tuple(sorted(options.items()))
        return data._memory.once((data._left_out, key), lambda: function(data, *args, **options))

    return remembering


def sparing_threads(fit: Callable[P, R]) -> Callable[P, R]:
    """Decorate a ``fit``: few logits use one thread, because threads of small operations wait for each other.

    So the result does not depend on the number of threads either, unless the user chose it.
    """

    @functools.wraps(fit)
    def fit_on_few_threads(*args: P.args, **options: P.kwargs) -> R:
        given = args[1] if len(args) > 1 else options.get("logits")
        logits = given.logits if isinstance(given, FittingSet) else given
        shape = getattr(logits, "shape", ())
        with few_threads(torch.Size(shape).numel()):
            return fit(*args, **options)

    return fit_on_few_threads


class _Thread(threading.local):
    borrowed = 0.0


_thread = _Thread()


@contextmanager
def borrowed_seconds() -> Iterator[Callable[[], float]]:
    """Yield a function that returns how much time results took that this block used but did not compute.

    Time that was spent waiting for them is not counted again.
    """
    before = _thread.borrowed
    yield lambda: _thread.borrowed - before


class _Memory:
    """Results that were computed from a fitting set and its parts."""

    def __init__(self) -> None:
        self._results: dict[Any, _Result] = {}
        self._lock = threading.Lock()

    def once(self, key: tuple[frozenset[int], Any], compute: Callable[[], R]) -> R:
        """Return the result of a computation, which the first caller does while others wait."""
        with self._lock:
            result = self._results.setdefault(key, _Result())
        asked = time.perf_counter()
        with result.lock:
            begun = time.perf_counter()
            if result.known:
                _thread.borrowed += result.seconds - (begun - asked)
            else:
                with borrowed_seconds() as borrowed:
                    result.value = compute()
                result.seconds = time.perf_counter() - begun + borrowed()
                result.known = True
        value: R = result.value
        return value

    def forget(self, left_out: frozenset[int]) -> None:
        """Drop the results of a part."""
        with self._lock:
            self._results = {key: value for key, value in self._results.items() if key[0] != left_out}

    def clear(self) -> None:
        """Drop all results."""
        with self._lock:
            self._results = {}


@dataclass(eq=False)
class _Result:
    lock: threading.RLock = field(default_factory=threading.RLock)
    known: bool = False
    value: Any = None
    seconds: float = 0.0
