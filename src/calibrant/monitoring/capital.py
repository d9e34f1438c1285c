"""Capital of many bettors against one hypothesis: it grows without bound only if the hypothesis is wrong."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from calibrant.inputs import Floats
from calibrant.monitoring.reference import DriftReference

Integers = npt.NDArray[np.intp]

# Shares of the largest bet that cannot lose everything; each has an equal part of the capital.
BET_SHARES = (1 / 2, 1 / 6, 1 / 18, 1 / 54)


@dataclass(frozen=True, eq=False)
class Block:
    """How the capital went over some samples; what costs time is computed only when asked for.

    Attributes:
        n: Number of samples.
        paths: Of each group that had samples, by its number: which they were, and the logarithms of the
            group's capitals after each of them, by direction, size of bet and sample.
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
        """Return what no e-value exceeded, by group, overconfident and underconfident, as logarithms."""
        highest = np.full((len(self.before), 2), -np.inf)
        for g, (_, path) in self.paths.items():
            highest[g] = path.max(axis=(1, 2))
        bounds: Floats = np.logaddexp(highest, self.log_kept)
        return bounds

    def total_bound(self, bounds: Floats) -> float:
        """Return what the e-value of all groups together did not exceed, as a logarithm."""
        highest = np.maximum(np.logaddexp(bounds[:, 0], bounds[:, 1]), self.before)
        return float(log_sum(highest + self.log_weight, axis=0))

    def evidence(self) -> tuple[Floats, Floats]:
        """Return logarithms of e-values: of all groups after each sample, and the highest of each group."""
        parts = np.repeat(self.before[:, None], self.n, axis=1)
        peaks = np.full((len(self.before), 2), -np.inf)
        for g, (rows, path) in self.paths.items():
            of_group = np.logaddexp(log_mean(path, axis=1), self.log_kept)
            peaks[g] = of_group.max(axis=1)
            # Between its samples a group keeps what it has.
            known = np.append(self.before[g], log_sum(of_group, axis=0))
            parts[g] = np.repeat(known, np.diff(rows, prepend=0, append=self.n))
        return log_sum(parts + self.log_weight[:, None], axis=0), peaks


class Capital:
    """Logarithms of what each bettor has: one per group, direction and size of bet, some of it to start late.

    To begin with, every level of groups has the same capital, within a level every group, within a group
    both directions, and within a direction every size of bet.

    Args:
        reference: The regions to bet against.
        restart_every: Number of samples after which another share of the capital starts to bet, or None.
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
        """Return how many samples may come in one block, which a restart ends."""
        every = self._restart_every
        return most if every is None else min(most, every - self.n % every)

    def bet(self, x: Floats, bins: Integers) -> Block:
        """Bet on a block of samples, not more than there is room for, in their order.

        Args:
            x: ``correct - confidence`` of each sample.
            bins: The bin of each sample.
        """
        if self._restart_every is not None and self.n > 0 and self.n % self._restart_every == 0:
            share = self._share(self.n // self._restart_every + 1)
            self.log_capital = np.logaddexp(self.log_capital, math.log(share))
        log_kept = self._log_kept(self.n + 1)
        before = log_sum(self._evidence(log_kept), axis=1)
        signed = np.stack([-x, x])
        paths = {}
        for g, (first, last) in enumerate(self._ranges):
            rows = np.flatnonzero((bins >= first) & (bins <= last))
            if len(rows) == 0:
                continue
            win = signed[:, rows] - self._offset[g][:, None]
            path = win[:, None] * self._bets[g][:, :, None]
            np.log1p(path, out=path)
            path[:, :, 0] += self.log_capital[g]
            np.cumsum(path, axis=2, out=path)
            self.log_capital[g] = path[:, :, -1]
            paths[g] = rows, path
        self.n += len(x)
        return Block(len(x), paths, before, log_kept, self.log_weight)

    def _evidence(self, log_kept: float) -> Floats:
        log_e: Floats = np.logaddexp(log_mean(self.log_capital, axis=2), log_kept)
        return log_e

    def _log_kept(self, n: int) -> float:
        """Return the logarithm of the capital that has not started to bet after ``n`` samples."""
        if self._restart_every is None:
            return -math.inf
        starts = max(n - 1, 0) // self._restart_every + 1
        return -math.log(math.log2(starts + 2))

    def _share(self, start: int) -> float:
        """Return the capital of the ``start``-th start; all shares together make one."""
        if self._restart_every is None:
            return 1.0
        return 1 / math.log2(start + 1) - 1 / math.log2(start + 2)


def log_sum(logs: Floats, axis: int) -> Floats:
    """Return the logarithm of a sum of which logarithms are known, without overflow."""
    largest = logs.max(axis=axis, keepdims=True)
    total: Floats = np.log(np.exp(logs - largest).sum(axis=axis)) + largest.squeeze(axis)
    return total


def log_mean(logs: Floats, axis: int) -> Floats:
    """Return the logarithm of a mean of which logarithms are known, without overflow."""
    return log_sum(logs, axis) - math.log(logs.shape[axis])
