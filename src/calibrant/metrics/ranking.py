"""Ranking by a score: right and wrong predictions at each distinct score, highest first.

Risk-coverage curves, AUROC, and the measures of out-of-distribution detection share this computation.
Equal scores form one group, so the order of the rows does not matter.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Unpack

import numpy as np
import numpy.typing as npt
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, Floats, check_correct, check_score
from calibrant.outcomes import Outcomes, Pairs, check_outcomes, checked_weights, refused_weights

# Groups of more equal keys than this are measured by a search.
_NEAR = 4
_BLOCK = 1 << 16


@dataclass(frozen=True, eq=False)
class Ranking:
    """Numbers of right and wrong predictions at each distinct score.

    Hits and misses may have a leading dimension of resamples, which the areas preserve.

    Attributes:
        score: The distinct scores in descending order, on the CPU.
        hits: Number of right predictions with each score, or their summed weights.
        misses: Number of wrong predictions with each score, or their summed weights.
    """

    score: npt.NDArray[np.floating]
    hits: npt.NDArray[Any]
    misses: npt.NDArray[Any]

    @classmethod
    def from_outcomes(cls, outcomes: Outcomes) -> "Ranking":
        """Rank by confidence; hits are sorted along with it. Weights are counts that need not be whole."""
        if outcomes.weights is not None:
            return cls._weighed(outcomes.confidence, outcomes.correct, outcomes.weights)
        ordered = outcomes.sorted()
        values, hits = ordered.confidence.numpy()[::-1], ordered.correct.numpy()[::-1]
        last = last_of_equals(values)
        right = np.cumsum(hits, dtype=np.int64)[last]
        return cls(values[last], np.diff(right, prepend=0), np.diff(last + 1 - right, prepend=0))

    @classmethod
    def _weighed(cls, score: Tensor, correct: Tensor, weights: Tensor) -> "Ranking":
        used = weights > 0
        values, place = np.unique(score[used].cpu().numpy(), return_inverse=True)
        hits, misses = (
            np.bincount(place, weights=(weights * kind)[used].cpu().numpy(), minlength=len(values))
            for kind in (correct, ~correct)
        )
        return cls(values[::-1], hits[::-1], misses[::-1])

    @classmethod
    def from_scores(cls, score: Tensor, correct: Tensor) -> "Ranking":
        """Rank by any real number, with two plain sorts and a merge instead of a slower argsort."""
        values = score.cpu().numpy()
        wrong = np.sort(values[~correct.cpu().numpy()])
        values = np.sort(values)
        last = last_of_equals(values)
        misses = np.diff(np.searchsorted(wrong, values[last], side="right"), prepend=0)
        hits = np.diff(last + 1, prepend=0) - misses
        return cls(values[last][::-1], hits[::-1], misses[::-1])

    @cached_property
    def count(self) -> npt.NDArray[Any]:
        """Number of predictions with each score."""
        return np.asarray(self.hits + self.misses)

    def whole(self, what: str) -> "Ranking":
        """Return the ranking if its counts are whole; ``what`` names what cannot take weights."""
        if self.count.dtype.kind == "f":
            raise refused_weights(what)
        return self

    @property
    def n(self) -> int:
        """Number of predictions."""
        return int(self.count.sum())

    @property
    def n_wrong(self) -> int:
        """Number of wrong predictions."""
        return int(self.misses.sum())

    def auroc(self) -> float:
        """Return the probability that a hit scores higher than a miss; ties count one half.

        It is NaN if there are no hits or no misses.
        """
        return float(self.aurocs())

    def aurocs(self) -> Floats:
        """Return the AUROC of each resample."""
        up_to = np.cumsum(self.misses, axis=-1)
        wrong, right = up_to[..., -1], self.hits.sum(axis=-1)
        pairs = np.asarray(right * wrong, dtype=np.float64)
        # A hit beats the misses that come later, and half of those with the same score.
        twice = self.hits * (2 * wrong[..., None] - 2 * up_to + self.misses)
        areas = np.full_like(pairs, math.nan)
        np.divide(twice.sum(axis=-1), 2 * pairs, out=areas, where=pairs > 0)
        return areas

    def expected_errors(self) -> npt.NDArray[np.float64]:
        """Return the expected number of errors among the ``j`` highest scores, for ``j`` from 1 to ``n``."""
        self.whole("a risk at a number of samples")
        errors = np.cumsum(self.misses, dtype=np.float64)
        if len(errors) == self.n:
            return errors
        # All orders of equal scores are equally likely, so the expected errors grow linearly within a group.
        ends = np.cumsum(self.count)
        steps = np.arange(1, self.n + 1)
        return np.asarray(np.interp(steps, np.append(0, ends), np.append(0.0, errors)), dtype=np.float64)


def wins(keys: npt.NDArray[np.unsignedinteger]) -> tuple[int, int]:
    """Return twice the number of pairs in which a hit is ahead of a miss, with ties as half, and the hits.

    The keys are those of :meth:`~calibrant.outcomes.Outcomes.sorted_keys`: of equal confidences, misses come
    first. Before the hit number ``j`` at place ``i`` there are ``i - j`` misses, so places are all it takes.
    """
    places, n_hits, shared, inside = 0, 0, 0, np.arange(_BLOCK, dtype=keys.dtype)
    for start in range(0, len(keys), _BLOCK):
        block = keys[start : start + _BLOCK + 1]
        hits = block[:_BLOCK] & 1
        here = int(hits.sum())
        n_hits, places = n_hits + here, places + start * here
        hits *= inside[: len(hits)]
        places += int(hits.sum())
        mixed = start + np.flatnonzero(block[1:] ^ block[:-1] == 1)
        if len(mixed):
            misses, equal_hits = equals(keys, mixed, -1), equals(keys, mixed + 1, 1)
            shared += int((misses * equal_hits).sum())
    return 2 * (places - n_hits * (n_hits - 1) // 2) - shared, n_hits


def equals(
    keys: npt.NDArray[np.unsignedinteger], place: npt.NDArray[np.intp], step: Literal[-1, 1]
) -> npt.NDArray[np.intp]:
    """Return how many equal keys there are from each place on, upwards or downwards."""
    value = keys[place]
    count = np.ones_like(place)
    active = np.arange(len(place))
    there = place
    for _ in range(_NEAR):
        there = there + step
        equal = np.flatnonzero(keys.take(there, mode="clip") == value)
        if not len(equal):
            break
        active, there, value = active[equal], there[equal], value[equal]
        count[active] += 1
    else:
        end = np.searchsorted(keys, value, side="left" if step < 0 else "right")
        count[active] = place[active] + 1 - end if step < 0 else end - place[active]
    # Beyond the first and the last key the same key was read again.
    return np.minimum(count, place + 1 if step < 0 else len(keys) - place)


class Ranked(Pairs, total=False):
    """Keyword arguments of measures that rank predictions: by confidence, or by a score instead."""

    score: ArrayLike | None


def check_ranking(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    score: ArrayLike | None = None,
    **pairs: Unpack[Pairs],
) -> Ranking:
    """Return the ranking by confidence, or by any score instead; arguments are those of ``check_ranked``."""
    ranked = check_ranked(probs, labels, score=score, **pairs)
    if score is None or ranked.weights is not None:
        return Ranking.from_outcomes(ranked)
    return Ranking.from_scores(ranked.confidence, ranked.correct)


def check_ranked(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    score: ArrayLike | None = None,
    **pairs: Unpack[Pairs],
) -> Outcomes:
    """Return the outcomes of :func:`~calibrant.outcomes.check_outcomes`, or any score with the hits.

    A score needs either ``correct``, or ``probs`` and ``labels``, which then only determine the hits. It
    takes the place of the confidence.
    """
    if score is None:
        return check_outcomes(probs, labels, **pairs)
    correct = pairs.get("correct")
    given = {"probs": probs, "labels": labels, "confidence": pairs.get("confidence"), "correct": correct}
    named = [name for name, value in given.items() if value is not None]
    if named not in (["correct"], ["probs", "labels"]):
        raise InputError(
            "arguments: expected score with either correct or probs and labels, "
            f"got score {'with ' + ', '.join(named) if named else 'alone'}"
        )
    s = check_score(score)
    if correct is not None:
        hits = check_correct(correct, n=len(s))
    else:
        hits = check_outcomes(probs, labels).correct
        if len(hits) != len(s):
            raise InputError(f"score: expected {len(hits)} entries, one per prediction, got {len(s)}")
    return Outcomes(s, hits).weighed(checked_weights(pairs.get("weights"), len(s)))


def last_of_equals(ordered: npt.NDArray[np.floating]) -> npt.NDArray[np.intp]:
    """Return the index of the last entry of each run of equal values."""
    return np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
