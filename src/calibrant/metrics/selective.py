"""Selective prediction: the error that is left when the least confident predictions are rejected.

Every measure ranks predictions by confidence, or by a real-valued ``score`` (see
:mod:`calibrant.metrics.scores`) that is given with ``correct``, or with ``probs`` and ``labels``. Results for
tied scores are averaged over all orders of the tied samples, so the order of the rows does not matter.
"""

import math
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, Floats, check_count
from calibrant.metrics.ranking import Ranked, Ranking, check_ranking
from calibrant.metrics.resampling.ordered import ranked_weights

# Areas are sums of numbers of about this precision.
_ROUNDING = 1e-15


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """Risk-coverage curve: one point per threshold, strictest first; float64 on the CPU.

    Attributes:
        coverage: Share of the predictions whose score reaches the threshold.
        risk: Share of wrong predictions among these.
        threshold: The lowest score that is still accepted.
    """

    coverage: Tensor
    risk: Tensor
    threshold: Tensor


def aurc(probs: ArrayLike | None = None, labels: ArrayLike | None = None, **ranked: Unpack[Ranked]) -> float:
    r"""Return the area under the risk-coverage curve: the mean error rate over all coverages (AURC).

    .. math:: \mathrm{AURC} = \frac{1}{n} \sum_{j=1}^{n} \frac{1}{j} \sum_{i \le j} [\hat y_i \ne y_i]

    Samples are accepted in order of decreasing confidence. Ties are averaged over all their orders, so the
    order of the rows does not matter and a constant confidence gives the error rate.

    Args:
        probs: Class probabilities of shape ``(n, k)``, with ``labels``.
        labels: Integer classes of shape ``(n,)``.
        confidence: Confidences of shape ``(n,)``, with ``correct``, instead of ``probs``.
        correct: Whether each prediction was right, shape ``(n,)``.
        score: Finite numbers of shape ``(n,)`` to rank by instead of the confidence.

    Example:
        >>> round(aurc(confidence=[0.9, 0.8, 0.7], correct=[True, False, True]), 6)
        0.277778
        >>> round(aurc(score=[-2.0, -2.0, -2.0], correct=[True, False, True]), 6)
        0.333333

    References:
        Geifman, Uziel and El-Yaniv, "Bias-reduced uncertainty estimation for deep neural classifiers",
        ICLR 2019.
    """
    return float(_risk_area(check_ranking(probs, labels, **ranked)))


def excess_aurc(
    probs: ArrayLike | None = None, labels: ArrayLike | None = None, **ranked: Unpack[Ranked]
) -> float:
    r"""Return the AURC minus that of an oracle, which ranks all right predictions before wrong ones (E-AURC).

    .. math:: \mathrm{E\text{-}AURC} = \mathrm{AURC} - \frac{1}{n} \sum_{j = n - w + 1}^{n}
        \frac{j - (n - w)}{j}

    with ``w`` wrong predictions. The oracle is exact for any number of samples. With its large-sample limit
    ``r + (1 - r) log(1 - r)`` a perfect ranking would not score 0. Arguments are those of :func:`aurc`.

    Example:
        >>> excess_aurc(confidence=[0.9, 0.8, 0.7], correct=[True, True, False])
        0.0
        >>> round(excess_aurc(confidence=[0.9, 0.8, 0.7], correct=[True, False, True]), 6)
        0.166667

    References:
        Geifman, Uziel and El-Yaniv, "Bias-reduced uncertainty estimation for deep neural classifiers",
        ICLR 2019.
    """
    return float(_excess_area(check_ranking(probs, labels, **ranked)))


def augrc(probs: ArrayLike | None = None, labels: ArrayLike | None = None, **ranked: Unpack[Ranked]) -> float:
    r"""Return the mean, over all coverages, of the share of samples that are accepted and wrong (AUGRC).

    .. math:: \mathrm{AUGRC} = \int_0^1 R(c)\, dc, \quad
        R\left(\tfrac{j}{n}\right) = \frac{1}{n} \sum_{i \le j} [\hat y_i \ne y_i], \quad R(0) = 0

    ``R`` is linear between these points (trapezoidal rule), as in the authors' code. For any number of
    samples, with or without ties, error rate ``r`` and AUROC of correctness ``A``,

    .. math:: \mathrm{AUGRC} = (1 - A)\, r (1 - r) + \tfrac{1}{2} r^2,

    so a perfect ranking gives ``r**2 / 2`` and a constant score ``r / 2``. torch-uncertainty omits the first
    of the ``n`` trapezoids and divides by ``1 - 1 / n``, which differs by at most ``1 / n``; with ties its
    value depends on the order of the rows. Arguments are those of :func:`aurc`.

    Example:
        >>> augrc(confidence=[0.9, 0.8, 0.7, 0.6], correct=[True, False, True, False])
        0.1875
        >>> augrc(confidence=[0.9, 0.9, 0.9, 0.9], correct=[True, False, True, False])
        0.25

    References:
        Traub et al., "Overcoming Common Flaws in the Evaluation of Selective Classification Systems",
        NeurIPS 2024.
    """
    return float(_generalised_area(check_ranking(probs, labels, **ranked)))


def risk_at_coverage(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    coverage: float,
    **ranked: Unpack[Ranked],
) -> float:
    r"""Return the error rate among the most confident samples at a given coverage.

    .. math:: \frac{1}{j} \sum_{i \le j} [\hat y_i \ne y_i], \quad j = \lceil \mathrm{coverage} \cdot n \rceil

    The coverage is the share of accepted samples, above 0 and at most 1; it is rounded up to a whole number
    of samples. Other arguments are those of :func:`aurc`.

    Example:
        >>> risk_at_coverage(confidence=[0.9, 0.8, 0.7, 0.6], correct=[1, 0, 1, 1], coverage=0.5)
        0.5
    """
    share = _check_share(coverage, "coverage")
    if share == 0:
        raise InputError(f"coverage: expected a number above 0, got {coverage!r}; no answer has no risk")
    ranking = check_ranking(probs, labels, **ranked)
    # Floating point must not round a whole number such as 0.07 * 100 up to the next one.
    accepted = math.ceil(share * ranking.n * (1 - 1e-15))
    return float(ranking.expected_errors()[accepted - 1] / accepted)


def coverage_at_risk(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    risk: float,
    **ranked: Unpack[Ranked],
) -> float:
    r"""Return the largest share of samples that can be accepted with an error rate of at most ``risk``.

    .. math:: \max \left\{ \tfrac{j}{n} : \tfrac{1}{j} \sum_{i \le j} [\hat y_i \ne y_i] \le
        \mathrm{risk} \right\}

    The error rate may be higher at smaller coverages. The result is 0 if every coverage has a higher error
    rate. A group of equal scores may be accepted in part, with the expected risk of a random part;
    :func:`risk_coverage_curve` has only the points that a threshold can reach. Other arguments are those of
    :func:`aurc`.

    Example:
        >>> coverage_at_risk(confidence=[0.9, 0.8, 0.7, 0.6], correct=[1, 0, 1, 0], risk=0.4)
        0.75
    """
    limit = _check_share(risk, "risk")
    ranking = check_ranking(probs, labels, **ranked)
    accepted = np.arange(1, ranking.n + 1)
    # The tolerance allows for rounding of the expected errors inside a group.
    safe = np.flatnonzero(ranking.expected_errors() <= (limit + 1e-12) * accepted)
    return float(accepted[safe[-1]] / ranking.n) if len(safe) else 0.0


def risk_coverage_curve(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    max_points: int | None = None,
    **ranked: Unpack[Ranked],
) -> RiskCoverage:
    """Return the error rate and the coverage at every distinct threshold.

    If ``max_points`` is given, the curve has at most that many points, evenly spread over the coverage and
    including both ends. Other arguments are those of :func:`aurc`.

    Example:
        >>> curve = risk_coverage_curve(confidence=[0.9, 0.8, 0.8, 0.6], correct=[1, 1, 0, 0])
        >>> curve.coverage.tolist(), curve.risk[-1].item(), curve.threshold.tolist()
        ([0.25, 0.75, 1.0], 0.5, [0.9, 0.8, 0.6])

    References:
        El-Yaniv and Wiener, "On the Foundations of Noise-free Selective Classification", JMLR 2010.
    """
    ranking = check_ranking(probs, labels, **ranked)
    accepted, errors = np.cumsum(ranking.count), np.cumsum(ranking.misses)
    shown = np.arange(len(accepted))
    if max_points is not None and len(shown) > check_count(max_points, "max_points", at_least=2):
        shown = np.unique(np.searchsorted(accepted, np.linspace(accepted[0], accepted[-1], max_points)))
    return RiskCoverage(
        torch.from_numpy(accepted[shown] / ranking.n),
        torch.from_numpy(errors[shown] / accepted[shown]),
        torch.from_numpy(ranking.score[shown].astype(np.float64)),
    )


def _risk_area(ranking: Ranking) -> Floats:
    """Return the mean over ``j`` of the expected error rate among the ``j`` highest scores."""
    ends, errors = np.cumsum(ranking.count, axis=-1), np.cumsum(ranking.misses, axis=-1)
    # Within a group of m equal scores after s others, w misses among them and e before them, the expected
    # errors grow linearly: the sum of (e + (j - s) w / m) / j over the group is w + (e - s w / m) times
    # a difference of harmonic numbers.
    size = ranking.count
    share = ranking.misses / np.maximum(size, 1)
    before = errors - ranking.misses - (ends - size) * share
    harmonic = _harmonic(int(ends[..., -1].max()))
    inside = np.where(size == 1, 1 / np.maximum(ends, 1), harmonic[ends] - harmonic[ends - size])
    return np.asarray((errors[..., -1] + (before * inside).sum(axis=-1)) / ends[..., -1])


def _excess_area(ranking: Ranking) -> Floats:
    """Return the area above that of an oracle, which ranks all right predictions before wrong ones."""
    n, wrong = ranking.count.sum(axis=-1), ranking.misses.sum(axis=-1)
    largest = int(n.max())
    # Sums of 1 / j from the largest j downwards: differences of nearby sums lose no digits.
    tail = np.cumsum(np.append(0.0, 1 / np.arange(largest, 0, -1)))
    oracle = (wrong - (n - wrong) * (tail[largest - n + wrong] - tail[largest - n])) / n
    excess = _risk_area(ranking) - oracle
    return np.where(excess > _ROUNDING, excess, 0.0)


def _generalised_area(ranking: Ranking) -> Floats:
    """Return the mean over all coverages of the share of samples that are accepted and wrong."""
    up_to = np.cumsum(ranking.misses, axis=-1)
    twice = (ranking.count * (2 * up_to - ranking.misses)).sum(axis=-1)
    return np.asarray(twice / (2 * ranking.count.sum(axis=-1).astype(np.float64) ** 2))


def _harmonic(n: int) -> Floats:
    """Return the harmonic numbers from 0 to ``n``."""
    return np.cumsum(np.append(0.0, 1 / np.arange(1, n + 1)))


aurc_weights = ranked_weights(_risk_area)
excess_aurc_weights = ranked_weights(_excess_area)
augrc_weights = ranked_weights(_generalised_area)


def _check_share(value: float, name: str) -> float:
    if not isinstance(value, (int, float, np.number)) or not 0 <= value <= 1:
        raise InputError(f"{name}: expected a number between 0 and 1, got {value!r}")
    return float(value)
