"""The ROC curve of out-of-distribution detection: known inputs kept against foreign inputs let through."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrant.inputs import ArrayLike, check_count, check_score
from calibrant.metrics.ood import OODScores, ood_scores
from calibrant.metrics.ranking import Ranking


@dataclass(frozen=True, eq=False)
class OODCurve:
    """One point for each threshold, the strictest first; float64 on the CPU.

    Attributes:
        passed: Share of the foreign inputs that reach the threshold (false positive rate), from 0 to 1.
        kept: Share of the in-distribution inputs that reach it (true positive rate), from 0 to 1.
        scores: Area under the curve and the other measures of the same score.
    """

    passed: Tensor
    kept: Tensor
    scores: OODScores


def ood_curve(in_scores: ArrayLike, out_scores: ArrayLike, *, max_points: int | None = None) -> OODCurve:
    """Trace which share of either kind of inputs passes, threshold by threshold.

    Args:
        in_scores: Finite scores of in-distribution inputs, shape ``(n,)``; higher means more familiar.
        out_scores: Finite scores of foreign inputs, shape ``(m,)``.
        max_points: At most so many points are kept, if given, spread evenly along the curve; both ends stay.

    Example:
        >>> curve = ood_curve([0.9, 0.8, 0.6], [0.7, 0.2])
        >>> [round(x, 2) for x in curve.passed.tolist()], [round(y, 2) for y in curve.kept.tolist()]
        ([0.0, 0.0, 0.0, 0.5, 0.5, 1.0], [0.0, 0.33, 0.67, 0.67, 1.0, 1.0])

    References:
        Fawcett, "An introduction to ROC analysis", Pattern Recognition Letters 2006.
    """
    known, foreign = check_score(in_scores, name="in_scores"), check_score(out_scores, name="out_scores")
    is_known = torch.arange(len(known) + len(foreign)) < len(known)
    ranking = Ranking.from_scores(torch.cat([known.double().cpu(), foreign.double().cpu()]), is_known)
    kept = np.append(0, np.cumsum(ranking.hits)) / len(known)
    passed = np.append(0, np.cumsum(ranking.misses)) / len(foreign)
    if max_points is not None and len(kept) > check_count(max_points, "max_points", at_least=2):
        # Both shares rise, so their sum measures the way along the curve.
        chosen = np.unique(np.searchsorted(kept + passed, np.linspace(0, kept[-1] + passed[-1], max_points)))
        kept, passed = kept[chosen], passed[chosen]
    return OODCurve(torch.from_numpy(passed), torch.from_numpy(kept), ood_scores(known, foreign))
