"""Samples of equal score as one, and neighbours pooled until rates rise: the ground of isotonic methods."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from calibrant.inputs import Floats


@dataclass(frozen=True, eq=False)
class ScoreGroups:
    """Runs of neighbouring scores, ordered by column and then by score.

    Attributes:
        column: Which binary question a run belongs to.
        low: Its lowest score.
        high: Its highest score.
        count: Its number of samples.
        hits: How many of them are positive.
    """

    column: npt.NDArray[np.int64]
    low: Floats
    high: Floats
    count: Floats
    hits: Floats

    def __len__(self) -> int:
        return len(self.column)

    def pooled(self, rates: Floats) -> "ScoreGroups":
        """Join neighbours of one column until rates rise: isotonic regression with counts as weights."""
        from scipy.optimize import isotonic_regression

        # Rates lie between 0 and 1, so columns that are two apart cannot be pooled with each other.
        fit = isotonic_regression(rates + 2.0 * self.column, weights=self.count)
        return self.joined(fit.blocks[:-1])

    def joined(self, starts: npt.NDArray[np.int64]) -> "ScoreGroups":
        """Join all runs from each start to the next."""
        ends = np.append(starts[1:], len(self)) - 1
        sums = (np.add.reduceat(each, starts) for each in (self.count, self.hits))
        return ScoreGroups(self.column[starts], self.low[starts], self.high[ends], *sums)


def group_scores(scores: Tensor, answers: Tensor) -> ScoreGroups:
    """Sort each column of scores, shape ``(n, m)``, and join equal ones."""
    ordered, order = scores.T.contiguous().sort(dim=1)
    hits = answers.T.gather(1, order).cpu().numpy().astype(np.float64)
    flat = ordered.double().cpu().numpy()
    m, n = flat.shape
    one_each = ScoreGroups(
        np.repeat(np.arange(m), n),
        flat.ravel(),
        flat.ravel(),
        np.ones(m * n),
        hits.ravel(),
    )
    new = np.ones((m, n), dtype=bool)
    new[:, 1:] = flat[:, 1:] != flat[:, :-1]
    return one_each.joined(np.flatnonzero(new))
