"""Small boosted trees for one binary question, with known log-odds as the offset; stored as plain arrays.

A tree of depth 2 is complete: three nodes, each of which compares one input with a threshold, and four
leaves. Missing inputs (NaN) are never above a threshold. A node that does not split compares with infinity.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.inputs import Floats, Integers

DEPTH = 2
NODES, LEAVES = 2**DEPTH - 1, 2**DEPTH

# Candidates for thresholds of each input.
_BINS = 32
# Trees of a round, and the share of each tree's own correction that is made.
_TREES, _RATE = 10, 0.1
# A leaf has at least this many samples, and is pulled to 0 by as much as some others with no effect.
_FEWEST, _RIDGE = 20.0, 20.0
# The inputs that a round may use: those with the best single splits.
_MOST_INPUTS = 16
# How far a round may stretch or shrink the log-odds.
_LEAST_SCALE, _MOST_SCALE = 0.5, 2.0


class Round(NamedTuple):
    """The trees of one round, and by how much the sum of the old log-odds and theirs is multiplied.

    Attributes:
        inputs: The input that each node compares, shape ``(trees, nodes)``.
        limits: The threshold above which a sample goes to the right, shape ``(trees, nodes)``.
        leaves: What each leaf adds to the log-odds, shape ``(trees, leaves)``.
        scale: The factor, a single number.
    """

    inputs: Tensor
    limits: Tensor
    leaves: Tensor
    scale: Tensor

    def __call__(self, log_odds: Tensor, features: Tensor) -> Tensor:
        """Return new log-odds of shape ``(n,)``; the inputs are the features, then the old log-odds."""
        x = torch.cat([features.to(log_odds), log_odds[:, None]], dim=1)
        added = tree_sums(x, self.inputs, self.limits.to(x), self.leaves.to(x))
        return self.scale.to(x) * (log_odds + added)


def tree_sums(x: Tensor, inputs: Tensor, limits: Tensor, leaves: Tensor) -> Tensor:
    """Return the sum of what all trees say of each sample, shape ``(n,)``."""
    trees = torch.arange(len(inputs), device=x.device)
    node = torch.zeros(len(x), len(inputs), dtype=torch.int64, device=x.device)
    for _ in range(DEPTH):
        at = trees * NODES + node
        goes_right = x.gather(1, inputs.flatten()[at]) > limits.flatten()[at]
        node = 2 * node + 1 + goes_right.long()
    return leaves.flatten()[trees * LEAVES + node - NODES].sum(dim=1)


def grow_round(features: Tensor, log_odds: Tensor, answers: Tensor, weights: Tensor | None) -> Round:
    """Grow the trees of one round by Newton steps, each on what the trees before it leave.

    Args:
        features: Numbers about each sample, shape ``(n, d)``, NaN where missing.
        log_odds: The log-odds so far, shape ``(n,)``, which are also the last input.
        answers: 1 for yes and 0 for no, shape ``(n,)``.
        weights: How much each sample counts, shape ``(n,)``.
    """
    x = torch.cat([features.double(), log_odds.double()[:, None]], dim=1).cpu().numpy()
    s, y = log_odds.double().cpu().numpy(), answers.double().cpu().numpy()
    w = np.ones_like(s) if weights is None else weights.double().cpu().numpy()
    bins, edges = _binned(x)
    used = _best_inputs(bins, s, y, w)
    added, grown = np.zeros_like(s), []
    for _ in range(_TREES):
        p = 1 / (1 + np.exp(-(s + added)))
        tree, place = _grow(bins[:, used], w * (p - y), w * p * (1 - p), w)
        grown.append(tree)
        added += tree[1][place]
    columns = np.array([[used[column] for column, _ in splits] for splits, _ in grown])
    limits = np.array([[edges[used[c]][b] for c, b in splits] for splits, _ in grown])
    leaves = np.array([leaves for _, leaves in grown])
    return Round(
        torch.from_numpy(columns),
        torch.from_numpy(limits),
        torch.from_numpy(leaves),
        torch.tensor(_likeliest_scale(s + added, y, w), dtype=torch.float64),
    )


def _binned(x: Floats) -> tuple[npt.NDArray[np.int64], list[Floats]]:
    """Return the bin of each value, 0 for missing ones, and the upper end of each bin of each input.

    Ends are numbers of single precision, so that a graph in single precision splits alike. The last end is
    infinity, which no value exceeds.
    """
    bins, edges = np.empty(x.shape, dtype=np.int64), []
    for column, values in enumerate(x.T):
        present = values[~np.isnan(values)]
        inner = (
            np.unique(np.quantile(present, np.linspace(0, 1, _BINS + 1)[1:-1])) if len(present) else present
        )
        ends = np.unique(inner.astype(np.float32).astype(np.float64))
        bins[:, column] = np.where(np.isnan(values), 0, 1 + np.searchsorted(ends, values, side="left"))
        edges.append(np.concatenate([[-np.inf], ends, [np.inf]]))
    return bins, edges


def _best_inputs(bins: npt.NDArray[np.int64], s: Floats, y: Floats, w: Floats) -> Integers:
    """Return the inputs whose best single splits gain most, in their order; the log-odds are always one."""
    n_inputs = bins.shape[1]
    if n_inputs <= _MOST_INPUTS:
        return np.arange(n_inputs)
    p, node = 1 / (1 + np.exp(-s)), np.zeros(len(s), dtype=np.int64)
    gains = [
        _gains(_histograms(bins[:, [c]], node, 1, w * (p - y), w * p * (1 - p), w))[0].max()
        for c in range(n_inputs - 1)
    ]
    best = np.argsort(-np.array(gains), kind="stable")[: _MOST_INPUTS - 1]
    return np.append(np.sort(best), n_inputs - 1)


def _histograms(
    bins: npt.NDArray[np.int64], node: npt.NDArray[np.int64], n_nodes: int, *values: Floats
) -> list[Floats]:
    """Return the sums of values over samples by node, input and bin."""
    n_inputs, size = bins.shape[1], _BINS + 1
    at = ((node[:, None] * n_inputs + np.arange(n_inputs)) * size + bins).ravel()
    shape = (n_nodes, n_inputs, size)
    length = n_nodes * n_inputs * size
    return [
        np.bincount(at, np.repeat(each, n_inputs), minlength=length).astype(np.float64).reshape(shape)
        for each in values
    ]


def _gains(sums: list[Floats]) -> Floats:
    """Return what each split gains, ``-inf`` where a side has too few samples, by node, input and bin."""
    left = [each.cumsum(axis=2) for each in sums]
    whole = [each[:, :, -1:] for each in left]
    right = [total - part for total, part in zip(whole, left, strict=True)]
    scores = [g**2 / (h + _RIDGE) for g, h, _ in (left, right, whole)]
    allowed = (left[2] >= _FEWEST) & (right[2] >= _FEWEST)
    gains: Floats = np.where(allowed, scores[0] + scores[1] - scores[2], -np.inf)
    return gains


def _grow(
    bins: npt.NDArray[np.int64], gradient: Floats, curvature: Floats, w: Floats
) -> tuple[tuple[list[tuple[int, int]], Floats], npt.NDArray[np.int64]]:
    """Return the input and the bin of each split, the values of the leaves, and the leaf of each sample."""
    node, splits = np.zeros(len(bins), dtype=np.int64), []
    for level in range(DEPTH):
        gains = _gains(_histograms(bins, node, 2**level, gradient, curvature, w))
        flat = gains.reshape(2**level, -1)
        best = flat.argmax(axis=1)
        found = [
            (int(b // gains.shape[2]), int(b % gains.shape[2])) if flat[place, b] > 0 else (0, -1)
            for place, b in enumerate(best.tolist())
        ]
        splits += found
        column, limit = np.array(found).T[:, node]
        # The bin -1 stands for infinity: the last end of every input.
        right = (limit >= 0) & (bins[np.arange(len(bins)), column] > limit)
        node = 2 * node + right
    g, h = (np.bincount(node, each, minlength=LEAVES) for each in (gradient, curvature))
    return (splits, -_RATE * g / (h + _RIDGE)), node


def _likeliest_scale(s: Floats, y: Floats, w: Floats) -> float:
    """Return the factor of log-odds that makes the answers likeliest, within limits."""
    scale = 1.0
    for _ in range(20):
        p = 1 / (1 + np.exp(-scale * s))
        curvature = float((w * p * (1 - p) * s**2).sum())
        if curvature <= 0:
            break
        step = float((w * (p - y) * s).sum()) / curvature
        scale = min(max(scale - step, _LEAST_SCALE), _MOST_SCALE)
        if abs(step) < 1e-9:
            break
    return scale
