"""What top-label calibration is about: how sure each prediction was, and whether it was right."""

from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, check_confidence, check_correct, check_labels, check_probs


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Confidence in the predicted class and whether that class was the true one, both of shape ``(n,)``."""

    confidence: Tensor
    correct: Tensor

    def __len__(self) -> int:
        return len(self.confidence)

    @classmethod
    def from_probs(cls, probs: Tensor, labels: Tensor) -> "Outcomes":
        """Take the most probable class of each checked row; the first of equals."""
        predicted = probs.argmax(dim=1)
        confidence = probs.gather(1, predicted[:, None]).squeeze(1).clamp(max=1.0)
        return cls(confidence, predicted == labels)

    @classmethod
    def from_logits(cls, logits: Tensor, labels: Tensor, *, rows_at_once: int = 8192) -> "Outcomes":
        """Take the most probable class of each checked row, with confidence in float64.

        Float32 rounds a very sure softmax to exactly 1 and so forgets which sample was surest; here
        only a block of rows at a time is widened.
        """
        confidence = torch.empty(len(logits), dtype=torch.float64, device=logits.device)
        for rows in range(0, len(logits), rows_at_once):
            z = logits[rows : rows + rows_at_once].double()
            confidence[rows : rows + rows_at_once] = (
                (z - z.amax(dim=1, keepdim=True)).exp_().sum(dim=1).reciprocal_()
            )
        return cls(confidence, logits.argmax(dim=1) == labels)

    def sorted(self) -> "Outcomes":
        """Order by confidence, lowest first, on the CPU; among equals, misses come before hits.

        A non-negative float has a zero sign bit, so its bits, shifted by one to make room for the hit,
        are an integer key of the same order: sorting keys is several times faster than an argsort.
        """
        # Adding zero turns -0.0, whose sign bit is set, into 0.0.
        values = self.confidence.cpu().numpy() + 0
        word = np.uint32 if values.dtype == np.float32 else np.uint64
        keys: npt.NDArray[np.unsignedinteger] = values.view(word)
        keys <<= 1
        keys |= self.correct.cpu().numpy()
        keys.sort()
        hits = (keys & 1).astype(bool)
        keys >>= 1
        return Outcomes(torch.from_numpy(keys.view(values.dtype)), torch.from_numpy(hits))


class Pairs(TypedDict, total=False):
    """What measures take instead of probabilities and labels: confidences, and whether each was right."""

    confidence: ArrayLike | None
    correct: ArrayLike | None


def check_outcomes(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    confidence: ArrayLike | None = None,
    correct: ArrayLike | None = None,
) -> Outcomes:
    """Read either class probabilities with labels, or confidences with hits, never both.

    Every top-label measure takes these four arguments, so that a black box of which only
    (confidence, correct) is known is measured by the same functions.
    """
    if probs is not None and labels is not None and confidence is None and correct is None:
        p = check_probs(probs)
        return Outcomes.from_probs(p, check_labels(labels, n=p.shape[0], k=p.shape[1]).to(p.device))
    if confidence is not None and correct is not None and probs is None and labels is None:
        c = check_confidence(confidence)
        return Outcomes(c, check_correct(correct, n=len(c)).to(c.device))
    given = {"probs": probs, "labels": labels, "confidence": confidence, "correct": correct}
    named = [name for name, value in given.items() if value is not None]
    raise InputError(
        "arguments: expected either probs with labels or confidence with correct, "
        f"got {' with '.join(named) if named else 'none of them'}"
    )
