"""What top-label calibration is about: how sure each prediction was, and whether it was right."""

from dataclasses import dataclass

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
