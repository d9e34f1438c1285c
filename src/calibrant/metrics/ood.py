"""Out-of-distribution detection: does a score separate in-distribution from out-of-distribution inputs?"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.inputs import ArrayLike, Floats, check_count, check_score
from calibrant.metrics.ranking import Ranking


@dataclass(frozen=True)
class OODScores:
    """How well a score separates in-distribution inputs, which should score higher, from others.

    Attributes:
        auroc: Probability that an in-distribution input scores higher than an out-of-distribution input; ties
            count one half.
        aupr_in: Average precision with in-distribution inputs as the positives.
        aupr_out: Average precision with out-of-distribution inputs as the positives, ranked from the lowest
            score.
        fpr95: Share of out-of-distribution inputs that are accepted at the strictest threshold that accepts
            at least 95 % of the in-distribution inputs; 0 is best.
    """

    auroc: float
    aupr_in: float
    aupr_out: float
    fpr95: float


def ood_scores(in_scores: ArrayLike, out_scores: ArrayLike) -> OODScores:
    r"""Measure how well one score separates in-distribution from out-of-distribution inputs.

    .. math:: \mathrm{AUROC} = P(s_\mathrm{in} > s_\mathrm{out}) + \tfrac12 P(s_\mathrm{in} = s_\mathrm{out}),
        \quad \mathrm{FPR95} = \min_{t:\, P(s_\mathrm{in} \ge t) \ge 0.95} P(s_\mathrm{out} \ge t)

    Equal scores pass every threshold together. The average precisions (sums of precision times the step
    in recall) depend on the numbers of inputs of both kinds; AUROC and FPR95 do not.

    Args:
        in_scores: Finite scores of in-distribution inputs, shape ``(n,)``; higher means more familiar, as
            for :func:`~calibrant.metrics.scores.confidence_score`.
        out_scores: Finite scores of out-of-distribution inputs, shape ``(m,)``.

    Example:
        >>> scores = ood_scores([0.9, 0.8, 0.6], [0.7, 0.2])
        >>> round(scores.auroc, 4), round(scores.aupr_in, 4), scores.fpr95
        (0.8333, 0.9167, 0.5)

    References:
        Hendrycks and Gimpel, "A Baseline for Detecting Misclassified and Out-of-Distribution Examples in
        Neural Networks", ICLR 2017.
        Liang, Li and Srikant, "Enhancing The Reliability of Out-of-distribution Image Detection in Neural
        Networks", ICLR 2018 (FPR at 95 % TPR).
    """
    return _scores(*_ranked(in_scores, out_scores))


def _ranked(in_scores: ArrayLike, out_scores: ArrayLike) -> tuple[Ranking, Floats, Floats]:
    """Rank both kinds of inputs together; also return the share of each kind that reaches each threshold."""
    inside, outside = check_score(in_scores, name="in_scores"), check_score(out_scores, name="out_scores")
    is_inside = torch.arange(len(inside) + len(outside)) < len(inside)
    ranking = Ranking.from_scores(torch.cat([inside.double().cpu(), outside.double().cpu()]), is_inside)
    return ranking, np.cumsum(ranking.hits) / len(inside), np.cumsum(ranking.misses) / len(outside)


def _scores(ranking: Ranking, kept: Floats, passed: Floats) -> OODScores:
    return OODScores(
        auroc=ranking.auroc(),
        aupr_in=_average_precision(ranking.hits, ranking.misses),
        aupr_out=_average_precision(ranking.misses[::-1], ranking.hits[::-1]),
        fpr95=float(passed[np.argmax(kept >= 0.95)]),
    )


def _average_precision(positives: npt.NDArray[np.int64], negatives: npt.NDArray[np.int64]) -> float:
    """Return the mean precision at the positives, from the counts at each threshold, strictest first."""
    accepted = np.cumsum(positives)
    precision = accepted / (accepted + np.cumsum(negatives))
    return float((positives * precision).sum() / accepted[-1])


@dataclass(frozen=True, eq=False)
class OODCurve:
    """ROC curve: one point per threshold, strictest first; float64 on the CPU.

    Attributes:
        passed: Share of out-of-distribution inputs that reach the threshold: the false positive rate.
        kept: Share of in-distribution inputs that reach it: the true positive rate. Both go from 0 to 1.
        scores: Area under the curve and the other measures.
    """

    passed: Tensor
    kept: Tensor
    scores: OODScores


def ood_curve(in_scores: ArrayLike, out_scores: ArrayLike, *, max_points: int | None = None) -> OODCurve:
    """Compute the ROC curve: the share of both kinds of inputs that reach each threshold.

    Args:
        in_scores: Finite scores of in-distribution inputs, shape ``(n,)``; higher means more familiar.
        out_scores: Finite scores of out-of-distribution inputs, shape ``(m,)``.
        max_points: Largest number of points, evenly spread along the curve and including both ends.

    Example:
        >>> curve = ood_curve([0.9, 0.8, 0.6], [0.7, 0.2])
        >>> [round(x, 2) for x in curve.passed.tolist()], [round(y, 2) for y in curve.kept.tolist()]
        ([0.0, 0.0, 0.0, 0.5, 0.5, 1.0], [0.0, 0.33, 0.67, 0.67, 1.0, 1.0])

    References:
        Fawcett, "An introduction to ROC analysis", Pattern Recognition Letters 2006.
    """
    ranking, kept, passed = _ranked(in_scores, out_scores)
    scores = _scores(ranking, kept, passed)
    kept, passed = np.append(0, kept), np.append(0, passed)
    if max_points is not None and len(kept) > check_count(max_points, "max_points", at_least=2):
        # Both shares rise, so their sum measures the distance along the curve.
        chosen = np.unique(np.searchsorted(kept + passed, np.linspace(0, kept[-1] + passed[-1], max_points)))
        kept, passed = kept[chosen], passed[chosen]
    return OODCurve(torch.from_numpy(passed), torch.from_numpy(kept), scores)
