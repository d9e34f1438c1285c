"""Work that several fits have in common, done once.

A comparison fits many methods on the same folds, and many of them begin alike: with the likeliest
temperature, a table of log-sum-exps, or structured scaling. :func:`in_folds` marks logits as a set in folds,
and :func:`without_fold` returns the marked logits of a part of it. A function decorated with
:func:`once_per_part` computes its result once per part, also if several threads ask for it. It ignores logits
without a mark.
"""

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

_MARK = "_calibrant_part"


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


class _Whole:
    """A fitting set in folds, and the results that were computed from its parts."""

    def __init__(self, folds: Tensor) -> None:
        self.folds = folds
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


@dataclass(eq=False)
class _Result:
    lock: threading.RLock = field(default_factory=threading.RLock)
    known: bool = False
    value: Any = None
    seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class Part:
    """The samples outside some folds of a fitting set.

    Attributes:
        whole: The set that this is a part of.
        left_out: The folds that are left out.
        folds: The fold of each sample of this part.
        weights: How much each sample of this part counts, or None if all count the same.
    """

    whole: _Whole
    left_out: frozenset[int]
    folds: Tensor
    weights: Tensor | None = None

    def forget(self, *folds: int) -> None:
        """Drop what was remembered of this part, or of this part without some folds."""
        self.whole.forget(self.left_out | set(folds))


def in_folds(logits: Tensor, folds: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the logits, marked as a fitting set with these folds; logits with a mark keep theirs.

    Weights go with their samples into every part, as ``part_of(logits).weights``.
    """
    return logits if part_of(logits) else _marked(logits, Part(_Whole(folds), frozenset(), folds, weights))


def without_fold(logits: Tensor, labels: Tensor, fold: int) -> tuple[Tensor, Tensor]:
    """Return marked logits and labels of the samples outside one more fold."""
    part = part_of(logits)
    assert part is not None
    rows = (part.folds != fold).nonzero().squeeze(1)
    weights = None if part.weights is None else part.weights[rows.to(part.weights.device)]
    smaller = Part(part.whole, part.left_out | {fold}, part.folds[rows], weights)
    rows = rows.to(logits.device)
    return _marked(logits[rows], smaller), labels[rows]


def part_of(logits: Tensor) -> Part | None:
    """Return the part that these logits are marked as; None without a mark."""
    return getattr(logits, _MARK, None)


def _marked(logits: Tensor, part: Part) -> Tensor:
    logits = logits.view_as(logits)  # the caller's own tensor is not marked
    setattr(logits, _MARK, part)
    return logits


def once_per_part(
    function: Callable[Concatenate[Tensor, Tensor, P], R],
) -> Callable[Concatenate[Tensor, Tensor, P], R]:
    """Decorate a function of logits, labels and hashable options: it computes once per part.

    The samples of a part have the same weights for everyone, so of ``weights`` it only matters whether they
    are given.

    Example:
        >>> import torch
        >>> calls = []
        >>> @once_per_part
        ... def mean(logits, labels):
        ...     calls.append(len(logits))
        ...     return float(logits.mean())
        >>> z = in_folds(torch.tensor([[1.0], [2.0], [6.0]]), torch.tensor([0, 0, 1]))
        >>> mean(z, None), mean(z, None), mean(without_fold(z, torch.zeros(3), 1)[0], None), calls
        (3.0, 3.0, 1.5, [3, 2])
    """

    @functools.wraps(function)
    def remembering(logits: Tensor, labels: Tensor, /, *args: P.args, **options: P.kwargs) -> R:
        part = part_of(logits)
        if part is None:
            return function(logits, labels, *args, **options)
        of_key = {**options, "weights": options.get("weights") is not None}
        key = function, args, tuple(sorted(of_key.items()))
        return part.whole.once((part.left_out, key), lambda: function(logits, labels, *args, **options))

    return remembering
