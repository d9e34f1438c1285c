"""Outcomes of predictions: the confidence in the predicted class, and whether it was correct."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, check_confidence, check_correct, check_labelled_probs

#: Confidence score functions of probabilities, by the names that both the metrics and the losses use.
ProbabilityScore: TypeAlias = Literal["msp", "softmax_margin", "negative_entropy"]

# A block of keys fits into the processor's cache.
_BLOCK = 1 << 16


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Confidence in the predicted class and whether that class was correct, both of shape ``(n,)``."""

    confidence: Tensor
    correct: Tensor

    def __len__(self) -> int:
        return len(self.confidence)

    @classmethod
    def from_probs(cls, probs: Tensor, labels: Tensor) -> "Outcomes":
        """Return the confidence in the most probable class of each checked row; of equal ones the first."""
        predicted = probs.argmax(dim=1)
        confidence = probs.gather(1, predicted[:, None]).squeeze(1).clamp(max=1.0)
        return cls(confidence, predicted == labels)

    @classmethod
    def from_logits(cls, logits: Tensor, labels: Tensor, *, rows_at_once: int = 8192) -> "Outcomes":
        """Return the confidence in the most probable class of each checked row, in float64.

        Float32 rounds very high confidences to exactly 1, which loses their order. Rows are converted to
        float64 in blocks.
        """
        confidence = torch.empty(len(logits), dtype=torch.float64, device=logits.device)
        for rows in range(0, len(logits), rows_at_once):
            z = logits[rows : rows + rows_at_once].double()
            confidence[rows : rows + rows_at_once] = (
                (z - z.amax(dim=1, keepdim=True)).exp_().sum(dim=1).reciprocal_()
            )
        return cls(confidence, logits.argmax(dim=1) == labels)

    def sorted(self) -> "Outcomes":
        """Return the outcomes in ascending order of confidence, misses before hits in ties; on the CPU."""
        keys = self.sorted_keys()
        hits = np.empty(len(keys), dtype=bool)
        np.bitwise_and(keys, 1, out=hits, casting="unsafe")
        keys >>= 1
        values = keys.view(np.float32 if keys.dtype == np.uint32 else np.float64)
        return Outcomes(torch.from_numpy(values), torch.from_numpy(hits))

    def sorted_keys(self) -> npt.NDArray[np.unsignedinteger]:
        """Return an integer for each outcome, in ascending order: its lowest bit is the hit.

        A non-negative float has a zero sign bit. So its bits, shifted by one to make room for the hit, are an
        integer with the same order, and sorting integers is several times faster than an argsort.
        """
        values, hits = self.confidence.cpu().numpy(), self.correct.cpu().numpy()
        word = np.uint32 if values.dtype == np.float32 else np.uint64
        keys: npt.NDArray[np.unsignedinteger] = np.empty(len(values), dtype=word)
        for start in range(0, len(values), _BLOCK):
            block = keys[start : start + _BLOCK]
            # Adding zero turns -0.0, whose sign bit is set, into 0.0.
            np.add(values[start : start + _BLOCK], 0, out=block.view(values.dtype))
            block <<= 1
            block |= hits[start : start + _BLOCK]
        keys.sort()
        return keys


class Pairs(TypedDict, total=False):
    """Keyword arguments of measures instead of probabilities and labels: confidences and hits."""

    confidence: ArrayLike | None
    correct: ArrayLike | None


def check_outcomes(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    confidence: ArrayLike | None = None,
    correct: ArrayLike | None = None,
) -> Outcomes:
    """Return outcomes from either class probabilities with labels, or confidences with hits; never both.

    Every top-label measure takes these four arguments, so the same functions measure black-box models that
    give only confidences.
    """
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


def margin(scores: Tensor) -> Tensor:
    """Return how far the largest entry of each row is ahead of the second largest, shape ``(n,)``.

    The margin of logits is the distance to another class; unlike a probability, it does not saturate.

    Example:
        >>> margin(torch.tensor([[3.0, 1.0, 2.5], [1.0, 1.0, 0.0]]))
        tensor([0.5000, 0.0000])
    """
    first, second = scores.topk(2, dim=1).values.unbind(dim=1)
    return first - second
