"""Accuracy, mean confidence and top-k error."""

from typing import Unpack

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, check_count, check_labelled_probs
from calibrant.outcomes import Pairs, check_outcomes, checked_weights, mean_of

# A block of rows and its mask fit into the processor's cache.
_ROWS = 256


def accuracy(
    probs: ArrayLike | None = None, labels: ArrayLike | None = None, **pairs: Unpack[Pairs]
) -> float:
    """Return the share of samples whose most probable class is the true one.

    Of equally probable classes the first is the prediction.

    Example:
        >>> accuracy([[0.9, 0.1], [0.6, 0.4]], [0, 1])
        0.5
    """
    outcomes = check_outcomes(probs, labels, **pairs)
    return mean(outcomes.correct, outcomes.weights)


def mean_confidence(
    probs: ArrayLike | None = None, labels: ArrayLike | None = None, **pairs: Unpack[Pairs]
) -> float:
    """Return the mean confidence in the predicted class; above the accuracy, the model is overconfident.

    Example:
        >>> mean_confidence([[0.9, 0.1], [0.6, 0.4]], [0, 1])
        0.75
    """
    outcomes = check_outcomes(probs, labels, **pairs)
    return mean(outcomes.confidence, outcomes.weights)


def top_k_error(
    probs: ArrayLike, labels: ArrayLike, *, k: int = 5, weights: ArrayLike | None = None
) -> float:
    """Return the share of samples whose true class is not among the ``k`` most probable classes.

    Equally probable classes are ranked by class number, as in :func:`accuracy`.

    Args:
        probs: Class probabilities of shape ``(n, k)``.
        labels: Integer classes of shape ``(n,)``.
        k: How many classes count as predicted.
        weights: One weight per sample.

    Example:
        >>> top_k_error([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]], [1, 2], k=2)
        0.5
    """
    misses = top_k_misses(probs, labels, k=k)
    return mean(misses, checked_weights(weights, len(misses)))


def mean(terms: Tensor, weights: Tensor | None) -> float:
    """Return the mean of one number for each sample, in float64; with weights, their weighted mean."""
    return float(mean_of(terms.double(), weights))


def hits(**outcomes: ArrayLike) -> Tensor:
    """Return whether each sample is classified correctly: the terms of :func:`accuracy`."""
    return check_outcomes(**outcomes).correct


def confidences(**outcomes: ArrayLike) -> Tensor:
    """Return the confidence of each sample: the terms of :func:`mean_confidence`."""
    return check_outcomes(**outcomes).confidence


def top_k_misses(probs: ArrayLike, labels: ArrayLike, *, k: int = 5) -> Tensor:
    """Return whether each true class is missing from the ``k`` most probable classes."""
    p, y = check_labelled_probs(probs, labels)
    if check_count(k, "k") > p.shape[1]:
        raise InputError(f"k: expected at most the {p.shape[1]} classes of probs, got {k}")
    of_label = p.gather(1, y[:, None])
    blocks = zip(p.split(_ROWS), of_label.split(_ROWS), strict=True)
    # If at most k classes are at least as probable as the true one, it is among the first k. Ties can matter
    # only in the other rows.
    misses = torch.cat([(block >= true).sum(dim=1) > k for block, true in blocks])
    p, of_label, y = p[misses], of_label[misses], y[misses]
    classes = torch.arange(p.shape[1], device=p.device)
    ahead = (p > of_label) | ((p == of_label) & (classes < y[:, None]))
    misses[misses.clone()] = ahead.sum(dim=1) >= k
    return misses
