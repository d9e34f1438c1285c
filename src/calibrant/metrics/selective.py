"""Selective prediction: how much error is left when the least confident predictions are refused.

Every measure ranks by the confidence, or by any real-valued ``score`` (see
:mod:`calibrant.metrics.scores`) that goes with ``correct``, or with ``probs`` and ``labels``. Predictions
of equal score count as the average over their orders, so the order of the rows never matters.
"""

import math
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, check_count
from calibrant.metrics.ranking import Ranking, check_ranking
from calibrant.outcomes import Pairs


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """Risk-coverage curve: one point for each threshold, the strictest first; float64 on the CPU.

    Attributes:
        coverage: Share of the predictions whose score reaches the threshold.
        risk: Share of these that are wrong.
        threshold: The lowest score that is still answered.
    """

    coverage: Tensor
    risk: Tensor
    threshold: Tensor


def aurc(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    score: ArrayLike | None = None,
    **pairs: Unpack[Pairs],
) -> float:
    r"""Mean error rate over all coverages, answering the most confident samples first.

    .. math:: \mathrm{AURC} = \frac{1}{n} \sum_{j=1}^{n} \frac{1}{j} \sum_{i \le j} [\hat y_i \ne y_i]

    Samples of equal confidence count as the average over their orders, so the order of the rows does
    not matter and a constant confidence gives the error rate.

    Args:
        probs: Class probabilities of shape ``(n, k)``, with ``labels``.
        labels: Integer classes of shape ``(n,)``.
        confidence: Confidences of shape ``(n,)``, with ``correct``, instead of ``probs``.
        correct: Whether each prediction was right, shape ``(n,)``.
        score: Any finite numbers of shape ``(n,)`` to rank by instead of the confidence.

    Example:
        >>> round(aurc(confidence=[0.9, 0.8, 0.7], correct=[True, False, True]), 6)
        0.277778
        >>> round(aurc(score=[-2.0, -2.0, -2.0], correct=[True, False, True]), 6)
        0.333333

    References:
        Geifman, Uziel and El-Yaniv, "Bias-reduced uncertainty estimation for deep neural classifiers",
        ICLR 2019.
    """
    return _aurc(check_ranking(probs, labels, score=score, **pairs))


def excess_aurc(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    score: ArrayLike | None = None,
    **pairs: Unpack[Pairs],
) -> float:
    r"""AURC above that of an oracle which ranks every right prediction before every wrong one (E-AURC).

    .. math:: \mathrm{E\text{-}AURC} = \mathrm{AURC} - \frac{1}{n} \sum_{j = n - w + 1}^{n}
        \frac{j - (n - w)}{j}

    with ``w`` wrong predictions: the oracle is exact, not its limit ``r + (1 - r) log(1 - r)`` for many
    samples, under which a perfect ranking would not get 0. Arguments are those of :func:`aurc`.

    Example:
        >>> excess_aurc(confidence=[0.9, 0.8, 0.7], correct=[True, True, False])
        0.0
        >>> round(excess_aurc(confidence=[0.9, 0.8, 0.7], correct=[True, False, True]), 6)
        0.166667

    References:
        Geifman, Uziel and El-Yaniv, "Bias-reduced uncertainty estimation for deep neural classifiers",
        ICLR 2019.
    """
    ranking = check_ranking(probs, labels, score=score, **pairs)
    n_right = ranking.n - ranking.n_wrong
    late = np.arange(n_right + 1, ranking.n + 1)
    oracle = float(((late - n_right) / late).sum() / ranking.n)
    return max(0.0, _aurc(ranking) - oracle)


def augrc(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    score: ArrayLike | None = None,
    **pairs: Unpack[Pairs],
) -> float:
    r"""Mean share, over all coverages, of samples that are answered and wrong.

    .. math:: \mathrm{AUGRC} = \int_0^1 R(c)\, dc, \quad
        R\left(\tfrac{j}{n}\right) = \frac{1}{n} \sum_{i \le j} [\hat y_i \ne y_i], \quad R(0) = 0

    ``R`` is linear between these points (the trapezoidal rule), as in the authors' own code. Then, for
    any number of samples and with ties, for error rate ``r`` and the AUROC of correctness ``A``,

    .. math:: \mathrm{AUGRC} = (1 - A)\, r (1 - r) + \tfrac{1}{2} r^2,

    so that a perfect ranking gives ``r**2 / 2`` and a constant score ``r / 2``. torch-uncertainty leaves
    out the first of the ``n`` trapezoids and divides by ``1 - 1 / n``, which differs by at most
    ``1 / n``; under ties its value depends on the order of the rows. Arguments are those of :func:`aurc`.

    Example:
        >>> augrc(confidence=[0.9, 0.8, 0.7, 0.6], correct=[True, False, True, False])
        0.1875
        >>> augrc(confidence=[0.9, 0.9, 0.9, 0.9], correct=[True, False, True, False])
        0.25

    References:
        Traub et al., "Overcoming Common Flaws in the Evaluation of Selective Classification Systems",
        NeurIPS 2024.
    """
    ranking = check_ranking(probs, labels, score=score, **pairs)
    errors_before = np.cumsum(ranking.misses) - ranking.misses
    return float((ranking.count * (errors_before + 0.5 * ranking.misses)).sum() / ranking.n**2)


def risk_at_coverage(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    coverage: float,
    confidence: ArrayLike | None = None,
    correct: ArrayLike | None = None,
    score: ArrayLike | None = None,
) -> float:
    r"""Error rate among the most confident samples when a given share of all is answered.

    .. math:: \frac{1}{j} \sum_{i \le j} [\hat y_i \ne y_i], \quad j = \lceil \mathrm{coverage} \cdot n \rceil

    The coverage is above 0 and at most 1, and is rounded up to a whole number of samples. Other arguments
    are those of :func:`aurc`.

    Example:
        >>> risk_at_coverage(confidence=[0.9, 0.8, 0.7, 0.6], correct=[1, 0, 1, 1], coverage=0.5)
        0.5
    """
    share = _check_share(coverage, "coverage")
    if share == 0:
        raise InputError(f"coverage: expected a number above 0, got {coverage!r}; no answer has no risk")
    ranking = check_ranking(probs, labels, confidence=confidence, correct=correct, score=score)
    # Rounding must not lift a whole number, 0.07 * 100 say, to the next one.
    answered = math.ceil(share * ranking.n * (1 - 1e-15))
    return float(ranking.expected_errors()[answered - 1] / answered)


def coverage_at_risk(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    risk: float,
    confidence: ArrayLike | None = None,
    correct: ArrayLike | None = None,
    score: ArrayLike | None = None,
) -> float:
    r"""Largest share of samples that can be answered with an error rate of at most ``risk``.

    .. math:: \max \left\{ \tfrac{j}{n} : \tfrac{1}{j} \sum_{i \le j} [\hat y_i \ne y_i] \le
        \mathrm{risk} \right\}

    The error rate may be higher at smaller coverages. It is 0 when every coverage is too risky. A group of
    equal scores may be answered in part, with the risk expected of a random part; the points that a
    threshold can reach are those of :func:`risk_coverage_curve`. Other arguments are those of :func:`aurc`.

    Example:
        >>> coverage_at_risk(confidence=[0.9, 0.8, 0.7, 0.6], correct=[1, 0, 1, 0], risk=0.4)
        0.75
    """
    limit = _check_share(risk, "risk")
    ranking = check_ranking(probs, labels, confidence=confidence, correct=correct, score=score)
    answered = np.arange(1, ranking.n + 1)
    # The expected errors inside a group are rounded.
    safe = np.flatnonzero(ranking.expected_errors() <= (limit + 1e-12) * answered)
    return float(answered[safe[-1]] / ranking.n) if len(safe) else 0.0


def risk_coverage_curve(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    score: ArrayLike | None = None,
    max_points: int | None = None,
    **pairs: Unpack[Pairs],
) -> RiskCoverage:
    """Error rate against the share of answered samples, at every threshold that makes a difference.

    At most ``max_points`` are kept, if given, spread evenly over the coverage; both ends stay. Other
    arguments are those of :func:`aurc`.

    Example:
        >>> curve = risk_coverage_curve(confidence=[0.9, 0.8, 0.8, 0.6], correct=[1, 1, 0, 0])
        >>> curve.coverage.tolist(), curve.risk[-1].item(), curve.threshold.tolist()
        ([0.25, 0.75, 1.0], 0.5, [0.9, 0.8, 0.6])

    References:
        El-Yaniv and Wiener, "On the Foundations of Noise-free Selective Classification", JMLR 2010.
    """
    ranking = check_ranking(probs, labels, score=score, **pairs)
    answered, errors = np.cumsum(ranking.count), np.cumsum(ranking.misses)
    kept = np.arange(len(answered))
    if max_points is not None and len(kept) > check_count(max_points, "max_points", at_least=2):
        kept = np.unique(np.searchsorted(answered, np.linspace(answered[0], answered[-1], max_points)))
    return RiskCoverage(
        torch.from_numpy(answered[kept] / ranking.n),
        torch.from_numpy(errors[kept] / answered[kept]),
        torch.from_numpy(ranking.score[kept].astype(np.float64)),
    )


def _aurc(ranking: Ranking) -> float:
    return float((ranking.expected_errors() / np.arange(1, ranking.n + 1)).mean())


def _check_share(value: float, name: str) -> float:
    if not isinstance(value, (int, float, np.number)) or not 0 <= value <= 1:
        raise InputError(f"{name}: expected a number between 0 and 1, got {value!r}")
    return float(value)
