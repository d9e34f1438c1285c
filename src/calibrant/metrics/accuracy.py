"""How often a classifier is right, and how often it believes to be."""

from typing import Unpack

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, check_count, check_labels, check_probs
from calibrant.outcomes import Pairs, check_outcomes


def accuracy(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    **pairs: Unpack[Pairs],
) -> float:
    """Share of samples whose most probable class is the true one; the first of equal classes counts.

    Example:
        >>> accuracy([[0.9, 0.1], [0.6, 0.4]], [0, 1])
        0.5
    """
    outcomes = check_outcomes(probs, labels, **pairs)
    return float(outcomes.correct.mean(dtype=torch.float64))


def mean_confidence(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    **pairs: Unpack[Pairs],
) -> float:
    """Share of samples that the classifier expects to be right; above the accuracy it is overconfident.

    Example:
        >>> mean_confidence([[0.9, 0.1], [0.6, 0.4]], [0, 1])
        0.75
    """
    outcomes = check_outcomes(probs, labels, **pairs)
    return float(outcomes.confidence.mean(dtype=torch.float64))


def top_k_error(probs: ArrayLike, labels: ArrayLike, *, k: int = 5) -> float:
    """Share of samples whose true class is not among the ``k`` most probable ones.

    Among equal probabilities the class with the lower number ranks first, as in :func:`accuracy`.

    Example:
        >>> top_k_error([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]], [1, 2], k=2)
        0.5
    """
    return float(top_k_misses(probs, labels, k=k).mean(dtype=torch.float64))


def hits(**outcomes: ArrayLike) -> Tensor:
    """Whether each sample is classified correctly, from the arguments of :func:`accuracy`."""
    return check_outcomes(**outcomes).correct


def confidences(**outcomes: ArrayLike) -> Tensor:
    """Confidence of each sample, from the arguments of :func:`mean_confidence`."""
    return check_outcomes(**outcomes).confidence


def top_k_misses(probs: ArrayLike, labels: ArrayLike, *, k: int = 5) -> Tensor:
    """Whether each true class is missing among the ``k`` most probable ones."""
    p = check_probs(probs)
    y = check_labels(labels, n=p.shape[0], k=p.shape[1]).to(p.device)
    if check_count(k, "k") > p.shape[1]:
        raise InputError(f"k: expected at most the {p.shape[1]} classes of probs, got {k}")
    of_label = p.gather(1, y[:, None])
    classes = torch.arange(p.shape[1], device=p.device)
    ahead = (p > of_label) | ((p == of_label) & (classes < y[:, None]))
    return ahead.sum(dim=1) >= k
