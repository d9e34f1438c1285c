"""Sorted scores with running sums: the counts of any binning without another pass over the samples."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class BinCounts:
    """What fell into each bin, one row per column of scores; all of shape ``(m, b)`` in float64."""

    count: Tensor
    hits: Tensor


@dataclass(frozen=True, eq=False)
class SortedScores:
    """Scores of each column in ascending order, shape ``(m, n)``, and sums over the first ``i`` of them.

    Attributes:
        scores: Log-odds of shape ``(m, n)``.
        hits: Positive answers among the first ``i`` samples, shape ``(m, n + 1)``.
    """

    scores: Tensor
    hits: Tensor

    @classmethod
    def of(cls, scores: Tensor, answers: Tensor) -> Self:
        """Sort each column of scores and answers of shape ``(n, m)``."""
        ordered, order = scores.T.contiguous().sort(dim=1)
        hits = answers.T.gather(1, order).cumsum(dim=1)
        return cls(ordered.double(), torch.cat([hits.new_zeros(len(hits), 1), hits], dim=1))

    def equal_mass(self, n_bins: int) -> tuple[Tensor, BinCounts]:
        """Return thresholds ``(m, n_bins - 1)`` that put equally many samples in each bin, and counts.

        Thresholds lie midway between neighbouring scores. Equal scores are never parted: they share the
        lowest bin that reaches them, and thresholds that no sample exceeds are infinite.
        """
        m, n = self.scores.shape
        inner = torch.arange(1, n_bins, device=self.scores.device)
        last = (inner * n + n_bins - 1) // n_bins - 1
        stops = torch.searchsorted(self.scores, self.scores[:, last].contiguous(), right=True)
        beyond = torch.cat([self.scores, self.scores.new_full((m, 1), torch.inf)], dim=1)
        return (beyond.gather(1, stops - 1) + beyond.gather(1, stops)) / 2, self._between(stops)

    def equal_width(self, n_bins: int) -> tuple[Tensor, BinCounts]:
        """Return thresholds that are evenly spaced as probabilities, and counts; scores on one lie below."""
        edges = torch.arange(1, n_bins, dtype=torch.float64, device=self.scores.device) / n_bins
        thresholds = torch.logit(edges).repeat(len(self.scores), 1)
        return thresholds, self._between(torch.searchsorted(self.scores, thresholds, right=True))

    def _between(self, stops: Tensor) -> BinCounts:
        m, n = self.scores.shape
        bounds = torch.cat([stops.new_zeros(m, 1), stops, stops.new_full((m, 1), n)], dim=1)
        return BinCounts(bounds.diff(dim=1).double(), self.hits.gather(1, bounds).diff(dim=1).double())
