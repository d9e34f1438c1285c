"""Batches of a stream: read once as the one-shot functions do, or as logits, or found to be empty."""

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, check_labels, check_logits, check_probs, to_tensor
from calibrant.outcomes import Outcomes, check_outcomes


def read_outcomes(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    logits: ArrayLike | None = None,
    confidence: ArrayLike | None = None,
    correct: ArrayLike | None = None,
) -> Outcomes | None:
    """Read how sure each prediction was and whether it was right; none of them if the batch is empty."""
    if _is_empty(probs, labels, logits, confidence, correct):
        return None
    if logits is None:
        return check_outcomes(probs, labels, confidence=confidence, correct=correct)
    if labels is None or probs is not None or confidence is not None or correct is not None:
        raise InputError("arguments: expected logits with labels, got logits with other arguments")
    z = check_logits(logits)
    return Outcomes.from_logits(z, check_labels(labels, n=z.shape[0], k=z.shape[1]).to(z.device))


def read_probs(
    probs: ArrayLike | None, labels: ArrayLike | None, logits: ArrayLike | None
) -> tuple[Tensor, Tensor] | None:
    """Read class probabilities, or the softmax of logits, with labels; neither if the batch is empty."""
    if _is_empty(probs, labels, logits):
        return None
    if labels is not None and probs is not None and logits is None:
        p = check_probs(probs)
    elif labels is not None and logits is not None and probs is None:
        # In the precision of the logits, as the probabilities of Predictions.
        p = torch.softmax(check_logits(logits), dim=1)
    else:
        raise InputError("arguments: expected labels with either probs or logits, got other arguments")
    return p, check_labels(labels, n=p.shape[0], k=p.shape[1]).to(p.device)


def _is_empty(*arrays: ArrayLike | None) -> bool:
    """Say whether arrays were given and none has samples; a mixture is left to the checks, which name it."""
    given = [to_tensor(array, "batch") for array in arrays if array is not None]
    return bool(given) and all(array.shape[:1] == (0,) for array in given)
