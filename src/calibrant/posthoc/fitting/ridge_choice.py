"""How strong a ridge to use: five-fold cross-validation by likelihood, simplest within one standard error."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from calibrant.posthoc.fitting.affine import AffineMap, Ridge, fit_affine

# Factors of the ridge that are tried, the strongest first.
STRENGTHS = (100.0, 10.0, 1.0, 0.1, 0.01)

_FOLDS = 5
# Above this many multiplications per pass one fold speaks for all: there the data are many.
_WORTH_ALL_FOLDS = 1 << 29


def choose_ridge(x: Tensor, y: Tensor, path: Sequence[Ridge], *, seed: int) -> int | None:
    """Return which ridge of a path of falling prices cross-validation chooses; None is the identity.

    Chosen is the strongest ridge whose held-out likelihood is within one standard error (of the paired
    difference) of the best; the identity is the strongest of all. The search ends after two ridges that
    do worse than the best so far, so weak ones, which are slow to fit and overfit, are seldom tried.
    """
    if len(x) < 2 * _FOLDS:
        return None
    chosen = _strongest_within_error(_held_out(x, y, path, _identity(x, path[0]), seed))
    return chosen - 1 if chosen else None


def fit_chosen(x: Tensor, y: Tensor, path: Sequence[Ridge], *, seed: int) -> AffineMap:
    """Fit the affine map with the ridge of :func:`choose_ridge`."""
    chosen = choose_ridge(x, y, path, seed=seed)
    return _identity(x, path[0]) if chosen is None else fit_affine(x, y, path[chosen])


def _identity(x: Tensor, ridge: Ridge) -> AffineMap:
    return AffineMap.identity(x.shape[1], diagonal=ridge.is_diagonal, device=x.device)


def _held_out(x: Tensor, y: Tensor, path: Sequence[Ridge], identity: AffineMap, seed: int) -> Tensor:
    """Return the held-out NLL of each sample under the identity, then under each ridge tried, in rows."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).to(x.device)
    n_folds = _FOLDS if x.numel() * x.shape[1] <= _WORTH_ALL_FOLDS else 1
    outside = [order[i::_FOLDS] for i in range(n_folds)]
    inside = [order[torch.arange(len(x), device=x.device) % _FOLDS != i] for i in range(n_folds)]
    rows = torch.cat(outside)
    losses, maps = [identity.nll(x[rows], y[rows])], [identity] * n_folds
    for ridge in path:
        maps = [
            fit_affine(x[fold], y[fold], ridge, start=begin, tolerance=1e-5, max_steps=50)
            for fold, begin in zip(inside, maps, strict=True)
        ]
        losses.append(torch.cat([m.nll(x[fold], y[fold]) for m, fold in zip(maps, outside, strict=True)]))
        if int(torch.stack(losses).sum(dim=1).argmin()) < len(losses) - 2:
            break
    return torch.stack(losses)


def _strongest_within_error(losses: Tensor) -> int:
    best = int(losses.sum(dim=1).argmin())
    excess = losses[: best + 1] - losses[best]
    error = excess.std(dim=1) * math.sqrt(losses.shape[1])
    return int((excess.sum(dim=1) <= error).int().argmax())
