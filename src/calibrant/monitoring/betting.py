"""Bets against the hypothesis of no drift: their capital is expected to grow only if it is wrong.

There is one bet for each sample or, if rows depend on each other, one for each unit.
"""

import math
from dataclasses import dataclass

import numpy as np

from calibrant.inputs import Floats, Integers
from calibrant.monitoring.reference import DriftReference

# Bets as shares of the largest one that cannot lose everything; the capital is divided equally among them.
BET_SHARES = (1 / 2, 1 / 6, 1 / 18, 1 / 54)


@dataclass(frozen=True, eq=False)
class Block:
    """The capital after each sample or unit of a block; what takes time is computed only when needed.

    Attributes:
        n: Number of samples or units.
        paths: For each group with samples, by its number: the indices of these samples or units, and the
            logarithms of the group's capital after each of them, by direction, size of bet and sample.
        before: Logarithm of each group's evidence before the block, both directions added.
        log_kept: Logarithm of the capital that has not started to bet.
        log_weight: Logarithm of the share of each group in either direction.
    """

    n: int
    paths: dict[int, tuple[Integers, Floats]]
    before: Floats
    log_kept: float
    log_weight: Floats

    def bounds(self) -> Floats:
        """Return upper bounds on the log e-values, by group, overconfident and underconfident."""
        highest = np.full((len(self.before), 2), -np.inf)
        for g, (_, path) in self.paths.items():
            highest[g] = path.max(axis=(1, 2))
        bounds: Floats = np.logaddexp(highest, self.log_kept)
        return bounds

    def total_bound(self, bounds: Floats) -> float:
        """Return an upper bound on the log e-value of all groups together."""
        highest = np.maximum(np.logaddexp(bounds[:, 0], bounds[:, 1]), self.before)
        return float(log_sum(highest + self.log_weight, axis=0))

    def evidence(self) -> tuple[Floats, Floats]:
        """Return the log e-value of all groups after each sample, and the highest of each group."""
        parts = np.repeat(self.before[:, None], self.n, axis=1)
        peaks = np.full((len(self.before), 2), -np.inf)
        for g, (rows, path) in self.paths.items():
            of_group = np.logaddexp(log_mean(path, axis=1), self.log_kept)
            peaks[g] = of_group.max(axis=1)
            # Between its samples the capital of a group does not change.
            known = np.append(self.before[g], log_sum(of_group, axis=0))
            parts[g] = np.repeat(known, np.diff(rows, prepend=0, append=self.n))
        return log_sum(parts + self.log_weight[:, None], axis=0), peaks


class Capital:
    """Logarithms of the capital of each group, direction and size of bet; part of it starts to bet later.

    At first the capital is divided equally among levels of groups, then among the groups of a level, among
    both directions, and among sizes of bet.

    Args:
        reference: The regions to bet against.
        restart_every: Number of bets after which another share of the capital starts to bet, or None.

    Attributes:
        n: Number of bets so far.
    """

    def __init__(self, reference: DriftReference, restart_every: int | None) -> None:
        groups, slack = reference.groups, reference.tolerance
        self._ranges = [(group.first, group.last) for group in groups]
        self._restart_every = restart_every
        # A bet on overconfidence wins low - x per unit, one on underconfidence x - high.
        self._offset = np.array([[slack - group.region[0], group.region[1] + slack] for group in groups])
        worst_loss = np.array([[1 - group.low, group.high] for group in groups]) + self._offset
        self._bets = np.array(BET_SHARES) / worst_loss[:, :, None]
        level = np.array([group.level for group in groups])
        self.log_weight: Floats = -np.log((level.max() + 1) * np.bincount(level)[level] * 2.0)
        self.n = 0
        self.log_capital: Floats = np.full(self._bets.shape, math.log(self._share(1)))

    def log_e_values(self) -> Floats:
        """Return the evidence of each group, overconfident and underconfident, shape ``(groups, 2)``."""
        return self._evidence(self._log_kept(self.n))

    def log_e_value(self) -> float:
        """Return the evidence of all groups together."""
        return float(log_sum(log_sum(self.log_e_values(), axis=1) + self.log_weight, axis=0))

    def room(self, most: int) -> int:
        """Return the number of bets that fit into one block, at most ``most``; a restart ends a block."""
        every = self._restart_every
        return most if every is None else min(most, every - self.n % every)

    def bet(self, x: Floats, bins: Integers) -> Block:
        """Bet on a block of samples in their order; there must be ``room`` for them.

        Args:
            x: ``correct - confidence`` of each sample.
            bins: The bin of each sample.
        """
        return self._bet(len(x), {g: (rows, x[rows]) for g, rows in self.rows_of(bins).items()})

    def bet_on_units(self, count: Integers, gap_sum: Floats) -> Block:
        """Bet on a block of units in their order, on the mean of a unit's samples in each group.

        Whatever the samples of a unit have to do with each other, their mean is within the region on average
        if each of them is; and it is bounded as they are.

        Args:
            count: Number of samples of each unit in each bin, shape ``(units, bins)``.
            gap_sum: Their sums of ``correct - confidence``.
        """
        means = {}
        for g, (first, last) in enumerate(self._ranges):
            n = count[:, first : last + 1].sum(axis=1)
            some = np.flatnonzero(n)
            if len(some):
                means[g] = some, gap_sum[some, first : last + 1].sum(axis=1) / n[some]
        return self._bet(len(count), means)

    def rows_of(self, bins: Integers) -> dict[int, Integers]:
        """Return the samples of each group that has some, by their bins."""
        found = {
            g: np.flatnonzero((bins >= low) & (bins <= high)) for g, (low, high) in enumerate(self._ranges)
        }
        return {g: rows for g, rows in found.items() if len(rows)}

    def _bet(self, n: int, means: dict[int, tuple[Integers, Floats]]) -> Block:
        if self._restart_every is not None and self.n > 0 and self.n % self._restart_every == 0:
            share = self._share(self.n // self._restart_every + 1)
            self.log_capital = np.logaddexp(self.log_capital, math.log(share))
        log_kept = self._log_kept(self.n + 1)
        before = log_sum(self._evidence(log_kept), axis=1)
        paths = {}
        for g, (rows, x) in means.items():
            win = np.stack([-x, x]) - self._offset[g][:, None]
            path = win[:, None] * self._bets[g][:, :, None]
            np.log1p(path, out=path)
            path[:, :, 0] += self.log_capital[g]
            np.cumsum(path, axis=2, out=path)
            self.log_capital[g] = path[:, :, -1]
            paths[g] = rows, path
        self.n += n
        return Block(n, paths, before, log_kept, self.log_weight)

    def _evidence(self, log_kept: float) -> Floats:
        log_e: Floats = np.logaddexp(log_mean(self.log_capital, axis=2), log_kept)
        return log_e

    def _log_kept(self, n: int) -> float:
        """Return the logarithm of the capital that has not started to bet after ``n`` bets."""
        if self._restart_every is None:
            return -math.inf
        starts = max(n - 1, 0) // self._restart_every + 1
        return -math.log(math.log2(starts + 2))

    def _share(self, start: int) -> float:
        """Return the share of the capital of the ``start``-th start; all shares add up to one."""
        if self._restart_every is None:
            return 1.0
        return 1 / math.log2(start + 1) - 1 / math.log2(start + 2)


def log_sum(logs: Floats, axis: int) -> Floats:
    """Return the logarithm of a sum from the logarithms of its terms, without overflow."""
    largest = logs.max(axis=axis, keepdims=True)
    total: Floats = np.log(np.exp(logs - largest).sum(axis=axis)) + largest.squeeze(axis)
    return total


def log_mean(logs: Floats, axis: int) -> Floats:
    """Return the logarithm of a mean from the logarithms of its terms, without overflow."""
    return log_sum(logs, axis) - math.log(logs.shape[axis])
