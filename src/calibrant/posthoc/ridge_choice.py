"""How strong a ridge to use: five-fold cross-validation by likelihood, simplest within one standard error."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from calibrant.posthoc.affine import AffineMap, Ridge, fit_affine

# Factors of the ridge that are tried, the strongest first.
STRENGTHS = (100.0, 10.0, 1.0, 0.1, 0.01)

_FOLDS = 5
# Above this many multiplications per pass one fold speaks for all: there the data are many.
_WORTH_ALL_FOLDS = 1 << 29


def fit_chosen(x: Tensor, y: Tensor, path: Sequence[Ridge], *, seed: int) -> AffineMap:
    """Fit the affine map with the ridge that cross-validation chooses from a path of falling prices.

    Chosen is the strongest ridge whose held-out likelihood is within one standard error (of the paired
    difference) of the best; the identity is the strongest of all. The search ends after two ridges that
    do worse than the best so far, so weak ones, which are slow to fit and overfit, are seldom tried.
    """
    diagonal = math.isinf(path[0].off_diagonal)
    identity = AffineMap.identity(x.shape[1], diagonal=diagonal, device=x.device)
    if len(x) < 2 * _FOLDS:
        return identity
    chosen = _strongest_within_error(_held_out(x, y, path, identity, seed))
    return fit_affine(x, y, path[chosen - 1]) if chosen else identity


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
