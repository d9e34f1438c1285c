"""CORP reliability: accuracy as the best nondecreasing function of confidence, without bins."""

from dataclasses import dataclass
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from calibrant.inputs import ArrayLike
from calibrant.metrics.decomposition import Decomposition, decompose_brier
from calibrant.metrics.ranking import Ranking
from calibrant.outcomes import Pairs, check_outcomes


@dataclass(frozen=True, eq=False)
class CorpReliability:
    """Groups of neighbouring confidences with the same recalibrated accuracy, in ascending order.

    Attributes:
        low: Lowest confidence of each group.
        high: Highest confidence of each group.
        accuracy: Share of right predictions in each group, which rises from group to group.
        count: Number of predictions in each group.
        parts: Brier score of the confidences, split into miscalibration, refinement and uncertainty.
    """

    low: Tensor
    high: Tensor
    accuracy: Tensor
    count: Tensor
    parts: Decomposition

    @property
    def curve(self) -> tuple[Tensor, Tensor]:
        """Confidence and accuracy at both ends of each group: the points of the line in the diagram."""
        return torch.stack([self.low, self.high], dim=1).flatten(), self.accuracy.repeat_interleave(2)

    def at(self, confidence: Tensor) -> Tensor:
        """Return the accuracy at other confidences: linear between groups, constant beyond the ends."""
        x, y = self.curve
        return torch.from_numpy(np.interp(confidence.numpy(), x.numpy(), y.numpy()))


def corp_reliability(
    probs: ArrayLike | None = None, labels: ArrayLike | None = None, **pairs: Unpack[Pairs]
) -> CorpReliability:
    """Return accuracy as a function of confidence, by isotonic regression.

    Neighbouring confidences are pooled until the share of right predictions rises with the confidence. No
    other nondecreasing function of the confidence has a lower Brier score; the reduction of the Brier score
    is the miscalibration.

    Args:
        probs: Class probabilities of shape ``(n, k)``, with ``labels``.
        labels: Integer classes of shape ``(n,)``.
        confidence: Confidences of shape ``(n,)``, with ``correct``, instead of ``probs``.
        correct: Whether each prediction was right, shape ``(n,)``.

    Example:
        >>> found = corp_reliability(confidence=[0.2, 0.4, 0.6, 0.9], correct=[0, 1, 0, 1])
        >>> found.low.tolist(), found.high.tolist(), found.accuracy.tolist()
        ([0.2, 0.4, 0.9], [0.2, 0.6, 0.9], [0.0, 0.5, 1.0])

    References:
        Dimitriadis, Gneiting and Jordan, "Stable reliability diagrams for probabilistic classifiers", PNAS
        2021.
    """
    from scipy.optimize import isotonic_regression  # a slow import that only CORP needs

    outcomes = check_outcomes(probs, labels, **pairs)
    ranking = Ranking.from_outcomes(outcomes)
    score, hits, count = ranking.score[::-1], ranking.hits[::-1], ranking.count[::-1]
    starts = isotonic_regression(hits / count, weights=count).blocks
    hits, count = np.add.reduceat(hits, starts[:-1]), np.add.reduceat(count, starts[:-1])
    ends = (score[starts[:-1]], score[starts[1:] - 1])
    low, high = (torch.from_numpy(end.astype(np.float64)) for end in ends)
    parts = decompose_brier(
        confidence=outcomes.confidence, correct=outcomes.correct, weights=outcomes.weights, method="corp"
    )
    return CorpReliability(low, high, torch.from_numpy(hits / count), torch.from_numpy(count), parts)
