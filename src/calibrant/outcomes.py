"""Outcomes of predictions: the confidence in the predicted class, and whether it was correct."""

import math
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import (
    ArrayLike,
    check_confidence,
    check_correct,
    check_labelled_probs,
    check_weights,
    no_weight,
)

#: Confidence score functions of probabilities, by the names that both the metrics and the losses use.
ProbabilityScore: TypeAlias = Literal["msp", "softmax_margin", "negative_entropy"]

# A block of keys fits into the processor's cache.
_BLOCK = 1 << 16


def rows_in_cache(table: Tensor) -> int:
    """Return how many rows of a table to take at once, so that their float64 copy fits into the cache."""
    return max(1, 2 * _BLOCK // max(table.shape[1], 1))


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Confidence in the predicted class and whether that class was correct, both of shape ``(n,)``.

    Attributes:
        confidence: Confidence in the predicted class.
        correct: Whether that class was correct.
        weights: How much each sample counts, or None if all count the same. Their sum is the effective number
            of samples, so neither a common factor nor samples of weight 0 matter.
        units: A whole number for each sample; samples of equal number depend on each other. None if none do.
    """

    confidence: Tensor
    correct: Tensor
    weights: Tensor | None = None
    units: Tensor | None = None

    def __len__(self) -> int:
        return len(self.confidence)

    @classmethod
    def from_probs(cls, probs: Tensor, labels: Tensor) -> "Outcomes":
        """Return the confidence in the most probable class of each checked row; of equal ones the first."""
        predicted = probs.argmax(dim=1)
        confidence = probs.gather(1, predicted[:, None]).squeeze(1).clamp(max=1.0)
        return cls(confidence, predicted == labels)

    @classmethod
    def from_logits(cls, logits: Tensor, labels: Tensor) -> "Outcomes":
        """Return the confidence in the most probable class of each checked row, in float64.

        Float32 rounds very high confidences to exactly 1, which loses their order. Rows are converted to
        float64 in blocks.
        """
        confidence = torch.empty(len(logits), dtype=torch.float64, device=logits.device)
        size = rows_in_cache(logits)
        for into, block in zip(confidence.split(size), logits.split(size), strict=True):
            z = block.double()
            into.copy_((z - z.amax(dim=1, keepdim=True)).exp_().sum(dim=1).reciprocal_())
        return cls(confidence, logits.argmax(dim=1) == labels)

    def weighed(self, weights: Tensor | None) -> "Outcomes":
        """Return the outcomes with checked weights, scaled so that their sum is the effective number."""
        return self if weights is None else replace(self, weights=effective(weights))

    def unweighed(self, what: str) -> "Outcomes":
        """Return the outcomes if they have no weights; ``what`` names what cannot take any."""
        refuse_weights(self.weights, what)
        return self

    @property
    def counts(self) -> Tensor:
        """How much each sample counts: its weight, or 1 if there are no weights."""
        return torch.ones_like(self.confidence, dtype=torch.float64) if self.weights is None else self.weights

    def take(self, rows: Tensor) -> "Outcomes":
        """Return some of the outcomes; their weights are scaled to their own effective number."""
        units = None if self.units is None else self.units[rows]
        part = Outcomes(self.confidence[rows], self.correct[rows], units=units)
        return part if self.weights is None else part.weighed(self.weights[rows])

    def sorted(self) -> "Outcomes":
        """Return the outcomes in ascending order of confidence, misses before hits in ties; on the CPU."""
        return Outcomes.from_keys(self.sorted_keys())

    @classmethod
    def from_keys(cls, keys: npt.NDArray[np.unsignedinteger]) -> "Outcomes":
        """Return the outcomes with these keys, whose memory they take over."""
        hits = np.empty(len(keys), dtype=bool)
        np.bitwise_and(keys, 1, out=hits, casting="unsafe")
        keys >>= 1
        values = keys.view(np.float32 if keys.dtype == np.uint32 else np.float64)
        return cls(torch.from_numpy(values), torch.from_numpy(hits))

    def sorted_keys(self) -> npt.NDArray[np.unsignedinteger]:
        """Return the keys of the outcomes in ascending order."""
        keys = self.keys()
        keys.sort()
        return keys

    def keys(self) -> npt.NDArray[np.unsignedinteger]:
        """Return an integer for each outcome, whose lowest bit is the hit.

        A non-negative float has a zero sign bit. So its bits, shifted by one to make room for the hit, are an
        integer with the same order, and sorting integers is several times faster than an argsort.
        """
        self.unweighed("this measure")
        values, hits = self.confidence.cpu().numpy(), self.correct.cpu().numpy()
        word = np.uint32 if values.dtype == np.float32 else np.uint64
        keys: npt.NDArray[np.unsignedinteger] = np.empty(len(values), dtype=word)
        for start in range(0, len(values), _BLOCK):
            block = keys[start : start + _BLOCK]
            # Adding zero turns -0.0, whose sign bit is set, into 0.0.
            np.add(values[start : start + _BLOCK], 0, out=block.view(values.dtype))
            block <<= 1
            block |= hits[start : start + _BLOCK]
        return keys


class Pairs(TypedDict, total=False):
    """Keyword arguments of measures instead of probabilities and labels: confidences and hits."""

    confidence: ArrayLike | None
    correct: ArrayLike | None
    weights: ArrayLike | None


def effective(weights: Tensor) -> Tensor:
    r"""Return weights scaled so that their sum is the effective number of samples.

    .. math:: n_\mathrm{eff} = \frac{(\sum_i w_i)^2}{\sum_i w_i^2}

    So many samples of equal weight would have means of the same variance. It is at most the number of samples
    with a weight above 0.

    Example:
        >>> effective(torch.tensor([2.0, 2.0, 0.0])).tolist()
        [1.0, 1.0, 0.0]

    References:
        Kish, "Survey Sampling", 1965.
    """
    w = weights.double()
    if float(w.max()) == 0:
        raise no_weight()
    w = w / w.max()
    return w * (w.sum() / w.square().sum())


def checked_weights(weights: ArrayLike | None, n: int) -> Tensor | None:
    """Check the weights of ``n`` samples, if there are any, and scale them to their effective number."""
    return None if weights is None else effective(check_weights(weights, n=n))


def counts_of(weights: Tensor | None, n: int) -> Tensor:
    """Return how much each of ``n`` samples counts: its effective weight, or 1 if there are no weights."""
    return torch.ones(n, dtype=torch.float64) if weights is None else effective(weights)


def mean_of(values: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean of values of shape ``(n,)``, by weight if there are weights.

    Example:
        >>> float(mean_of(torch.tensor([1.0, 5.0]), torch.tensor([3.0, 1.0])))
        2.0
    """
    return values.mean() if weights is None else (weights.to(values.device) * values).sum() / weights.sum()


def weighted_like(n: float) -> str:
    """Say that samples have weights, and what their effective number is.

    Example:
        >>> weighted_like(1204.04)
        'weighted like 1,204 equal ones'
    """
    return f"weighted like {n:,.0f} equal ones"


def refused_weights(what: str) -> InputError:
    """Return the error of something that cannot take weights."""
    return InputError(
        f"weights: expected none for {what}, got some; it needs whole samples, so leave the weights out, "
        "or repeat rows"
    )


def refuse_weights(weights: ArrayLike | None, what: str) -> None:
    """Refuse weights if there are any; ``what`` names what cannot take them."""
    if weights is not None:
        raise refused_weights(what)


def check_outcomes(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    confidence: ArrayLike | None = None,
    correct: ArrayLike | None = None,
    weights: ArrayLike | None = None,
) -> Outcomes:
    """Return outcomes from either class probabilities with labels, or confidences with hits; never both.

    Every top-label measure takes these arguments, so the same functions measure black-box models that give
    only confidences. Weights say how much each sample counts.
    """
    if weights is not None:
        outcomes = check_outcomes(probs, labels, confidence=confidence, correct=correct)
        w = check_weights(weights, n=len(outcomes))
        return outcomes.weighed(w.to(outcomes.confidence.device))
    if probs is not None and labels is not None and confidence is None and correct is None:
        return Outcomes.from_probs(*check_labelled_probs(probs, labels))
    if confidence is not None and correct is not None and probs is None and labels is None:
        c = check_confidence(confidence)
        return Outcomes(c, check_correct(correct, n=len(c)).to(c.device))
    given = {"probs": probs, "labels": labels, "confidence": confidence, "correct": correct}
    named = [name for name, value in given.items() if value is not None]
    raise InputError(
        "arguments: expected either probs with labels or confidence with correct, "
        f"got {' with '.join(named) if named else 'none of them'}"
    )


#: Class probabilities count as at least this wherever a logarithm is taken of them.
LEAST_PROB = 1e-12


def log_probs(probs: Tensor) -> Tensor:
    """Return the logarithm of given class probabilities; those below one in a trillion count as that.

    A probability of 0 in a file is one that was rounded. This gives it the same logarithm in every format and
    number type, far below that of probabilities that were stored, and finite.

    Example:
        >>> log_probs(torch.tensor([1.0, 0.0]))
        tensor([  0.0000, -27.6310])
    """
    return probs.clamp(LEAST_PROB, 1.0).log()


#: Confidences count as at least this far from 0 and 1 wherever a logarithm is taken of them.
LEAST_DOUBT = 1e-6


def log_odds(confidence: Tensor) -> Tensor:
    """Return the log-odds of confidences, in float64; 0 and 1 count as one in a million away from them.

    Confidences are rounded to as many digits, so that 0.95 is the same number in float32 and in float64, and
    equal confidences stay equal.

    Example:
        >>> log_odds(torch.tensor([0.5, 1.0])).round(decimals=3)
        tensor([ 0.0000, 13.8160], dtype=torch.float64)
    """
    rounded = (confidence.double() / LEAST_DOUBT).round() * LEAST_DOUBT
    return torch.logit(rounded, eps=LEAST_DOUBT)


def log_odds_of(confidence: float) -> float:
    """Return the log-odds of one confidence, as :func:`log_odds` does.

    Example:
        >>> round(log_odds_of(1.0), 3)
        13.816
    """
    rounded = min(max(round(confidence / LEAST_DOUBT) * LEAST_DOUBT, LEAST_DOUBT), 1 - LEAST_DOUBT)
    return math.log(rounded / (1 - rounded))


def margin(scores: Tensor) -> Tensor:
    """Return how far the largest entry of each row is ahead of the second largest, shape ``(n,)``.

    The margin of logits is the distance to another class; unlike a probability, it does not saturate.

    Example:
        >>> margin(torch.tensor([[3.0, 1.0, 2.5], [1.0, 1.0, 0.0]]))
        tensor([0.5000, 0.0000])
    """
    first, second = scores.topk(2, dim=1).values.unbind(dim=1)
    return first - second


def has_runner_up(logits: Tensor) -> Tensor:
    """Return which rows have a second class that is not masked, shape ``(n,)``; the others have no margin.

    If no row has one, this is refused.
    """
    several = logits.topk(2, dim=1).values[:, 1] > -torch.inf
    if not bool(several.any()):
        raise InputError("logits: expected two classes that are not masked in some row, got one in every row")
    return several
