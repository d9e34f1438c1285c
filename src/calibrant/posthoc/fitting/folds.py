"""Folds of a fitting set, and predictions of each fold by a fit on the others."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from calibrant.inputs import check_seed


def shuffled(n: int, *, seed: int) -> Tensor:
    """Return the numbers from 0 to ``n - 1`` in random order."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(check_seed(seed)))


def deal(order: Tensor, n_folds: int) -> Tensor:
    """Return the fold of each sample when samples are dealt to the folds in turn, in the given order.

    Example:
        >>> deal(torch.tensor([4, 2, 0, 1, 3]), 2)
        tensor([0, 1, 1, 0, 0])
    """
    folds = torch.empty_like(order)
    folds[order] = torch.arange(len(order), device=order.device) % n_folds
    return folds


def random_folds(n: int, n_folds: int, *, seed: int) -> Tensor:
    """Return a fold for each of ``n`` samples, at random and evenly.

    Folds are not stratified by class. Then each held-out fold would have the class frequencies of the samples
    that a method was fitted on, and methods that learn these frequencies would look better than they are.
    """
    return deal(shuffled(n, seed=seed), n_folds)


def each_fold(folds: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, for each fold, the rows outside it and the rows inside it."""
    for fold in torch.unique(folds):
        inside = folds == fold
        yield (~inside).nonzero().squeeze(1), inside.nonzero().squeeze(1)


def cross_fit(folds: Tensor, predict: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Predict every sample by a fit that has not seen it.

    Args:
        folds: The fold of each sample, shape ``(n,)``.
        predict: Fits on the rows given first and returns predictions of those given second.

    Returns:
        One row of predictions for each sample.
    """
    parts = [(held_out, predict(rest, held_out)) for rest, held_out in each_fold(folds)]
    rows, predictions = (torch.cat(each) for each in zip(*parts, strict=True))
    return torch.empty_like(predictions).index_copy_(0, rows, predictions)
