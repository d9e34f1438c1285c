"""Sorted scores: counts of any binning in one pass over the samples, pooled neighbours, smoothed rates."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.bins import mass_ends
from calibrant.inputs import Floats


@dataclass(frozen=True, eq=False)
class BinCounts:
    """How many samples and hits each bin holds, one row per column of scores; shape ``(m, b)`` in float64.

    Samples with weights count as much as their weight.
    """

    count: Tensor
    hits: Tensor


@dataclass(frozen=True, eq=False)
class SortedScores:
    """Scores of each column in ascending order, shape ``(m, n)``, and sums over the first ``i`` of them.

    Attributes:
        scores: Log-odds of shape ``(m, n)``.
        hits: Positive answers among the first ``i`` samples, shape ``(m, n + 1)``.
        weights: The sum of the weights of the first ``i`` samples, shape ``(m, n + 1)``; None if all count
            the same.
    """

    scores: Tensor
    hits: Tensor
    weights: Tensor | None = None

    @classmethod
    def of(cls, scores: Tensor, answers: Tensor, weights: Tensor | None = None) -> Self:
        """Sort each column of scores and answers of shape ``(n, m)``."""
        ordered, order = scores.T.contiguous().sort(dim=1)
        sorted_answers = answers.T.gather(1, order)
        if weights is None:
            return cls(ordered.double(), _running(sorted_answers))
        return cls(ordered.double(), _running(weights[order] * sorted_answers), _running(weights[order]))

    def equal_mass(self, n_bins: int) -> tuple[Tensor, BinCounts]:
        """Return thresholds ``(m, n_bins - 1)`` that put equally many samples in each bin, and the counts.

        Thresholds lie midway between neighbouring scores. Equal scores always share a bin, the lowest that
        reaches them, and thresholds that no sample exceeds are infinite.
        """
        m, n = self.scores.shape
        if self.weights is None:
            inner = torch.arange(1, n_bins, device=self.scores.device)
            ends = self.scores[:, (inner * n + n_bins - 1) // n_bins - 1]
        else:
            rows = self.weights[:, 1:].cpu().numpy()
            last = torch.from_numpy(np.stack([mass_ends(row, n_bins)[:-1] for row in rows]))
            ends = self.scores.gather(1, last.to(self.scores.device))
        stops = torch.searchsorted(self.scores, ends.contiguous(), right=True)
        beyond = torch.cat([self.scores, self.scores.new_full((m, 1), torch.inf)], dim=1)
        return (beyond.gather(1, stops - 1) + beyond.gather(1, stops)) / 2, self._between(stops)

    def equal_width(self, n_bins: int) -> tuple[Tensor, BinCounts]:
        """Return thresholds that are evenly spaced as probabilities, and the counts.

        A score that equals a threshold falls in the bin below it.
        """
        edges = torch.arange(1, n_bins, dtype=torch.float64, device=self.scores.device) / n_bins
        thresholds = torch.logit(edges).repeat(len(self.scores), 1)
        return thresholds, self._between(torch.searchsorted(self.scores, thresholds, right=True))

    def _between(self, stops: Tensor) -> BinCounts:
        m, n = self.scores.shape
        bounds = torch.cat([stops.new_zeros(m, 1), stops, stops.new_full((m, 1), n)], dim=1)
        count = bounds if self.weights is None else self.weights.gather(1, bounds)
        return BinCounts(count.diff(dim=1).double(), self.hits.gather(1, bounds).diff(dim=1).double())


@dataclass(frozen=True, eq=False)
class ScoreGroups:
    """Runs of neighbouring scores, ordered by column and then by score.

    Attributes:
        column: The binary question that a run belongs to.
        low: Its lowest score.
        high: Its highest score.
        count: Its number of samples, or the sum of their weights.
        hits: How many of them are positive, or the sum of the weights of those.
        total: The sum of their scores, each times its weight.
    """

    column: npt.NDArray[np.int64]
    low: Floats
    high: Floats
    count: Floats
    hits: Floats
    total: Floats

    @classmethod
    def of(cls, scores: Tensor, answers: Tensor, counts: Tensor | None = None) -> "ScoreGroups":
        """Sort each column of scores and answers, shape ``(n, m)``, and join samples of equal score.

        Args:
            scores: Log-odds of shape ``(n, m)``.
            answers: The true answers, shape ``(n, m)``.
            counts: How much each answer counts, shape ``(n, m)``; those that count 0 are left out. All count
                the same by default.
        """
        ordered, order = scores.T.contiguous().sort(dim=1)
        sorted_answers = answers.T.gather(1, order)
        hits = sorted_answers.cpu().numpy().astype(np.float64).ravel()
        flat = ordered.double().cpu().numpy()
        m, n = flat.shape
        each = flat.ravel()
        count = np.ones(m * n) if counts is None else counts.T.gather(1, order).cpu().numpy().ravel()
        counted = count > 0
        column, each = np.repeat(np.arange(m), n)[counted], each[counted]
        count, hits = count[counted], hits[counted]
        new = (np.diff(column) != 0) | (np.diff(each) != 0)
        one_each = cls(column, each, each, count, count * hits, count * each)
        return one_each.joined(np.flatnonzero(np.append(True, new)))

    def __len__(self) -> int:
        return len(self.column)

    @property
    def mean(self) -> Floats:
        """The mean score of each run."""
        # Rounding must not move it out of the run.
        return np.clip(self.total / self.count, self.low, self.high)

    def pooled(self, rates: Floats) -> "ScoreGroups":
        """Join neighbours of one column until rates rise: isotonic regression with counts as weights."""
        from scipy.optimize import isotonic_regression

        # Rates lie between 0 and 1, so columns that are two apart cannot be pooled with each other.
        fit = isotonic_regression(rates + 2.0 * self.column, weights=self.count)
        return self.joined(fit.blocks[:-1])

    def joined(self, starts: npt.NDArray[np.int64]) -> "ScoreGroups":
        """Join all runs from each start to the next."""
        ends = np.append(starts[1:], len(self)) - 1
        sums = (np.add.reduceat(each, starts) for each in (self.count, self.hits, self.total))
        return ScoreGroups(self.column[starts], self.low[starts], self.high[ends], *sums)


def _running(values: Tensor) -> Tensor:
    """Return the sum of the first ``i`` values of each row, shape ``(m, n + 1)``."""
    sums = values.cumsum(dim=1)
    return torch.cat([sums.new_zeros(len(sums), 1), sums], dim=1)


def smoothed_log_odds(hits: Tensor, count: Tensor, smoothing: float) -> Tensor:
    r"""Return the log-odds of the rate :math:`(\mathrm{hits} + s/2) / (\mathrm{count} + s)`.

    That is, :math:`s` samples are added, half of them hits: 0 gives the plain rate, 1 the rule of Jeffreys, 2
    that of Laplace. Rates of 0 and 1, which only the plain rate can give, become the smallest normal float32
    and its complement; a bin without samples has even odds.
    """
    tiny = torch.finfo(torch.float32).tiny
    total = (count + smoothing).clamp(min=tiny)
    yes, no = (hits + smoothing / 2) / total, (count - hits + smoothing / 2) / total
    return yes.clamp(min=tiny).log() - no.clamp(min=tiny).log()


def balanced_quantiles(
    scores: Tensor, answers: Tensor, levels: Sequence[float], counts: Tensor | None = None
) -> Tensor:
    """Return quantiles of all scores, shape ``(n, m)``, with the same total weight for yes and no.

    With many classes nearly all answers are no, so nearly all plain quantiles would lie below the scores of
    the few that are yes. Each answer counts as much as ``counts``, of the same shape, says; one by default.

    Example:
        >>> scores, answers = torch.tensor([[-3.0, -2.0, -1.0, 5.0]]), torch.tensor([[0, 0, 0, 1]])
        >>> balanced_quantiles(scores, answers, [0.4, 0.6])
        tensor([-1.,  5.], dtype=torch.float64)
    """
    ordered, order = scores.reshape(-1).sort()
    yes = answers.reshape(-1)[order].double()
    each = torch.ones_like(yes) if counts is None else counts.reshape(-1)[order]
    parts = [each * yes, each * (1 - yes)]
    shares = [part / torch.where(part.any(), part.sum(), 1.0) for part in parts]
    reached = (shares[0] + shares[1]).cumsum(dim=0)
    at = torch.tensor(levels, dtype=torch.float64, device=scores.device) * reached[-1]
    return ordered[torch.searchsorted(reached, at).clamp(max=len(ordered) - 1)].double()
