"""Selective prediction: the error that is left when the least confident predictions are rejected.

Every measure ranks predictions by confidence, or by a real-valued ``score`` (see
:mod:`calibrant.metrics.scores`) that is given with ``correct``, or with ``probs`` and ``labels``. Results for
tied scores are averaged over all orders of the tied samples, so the order of the rows does not matter.
"""

import math
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, Floats, check_count
from calibrant.metrics.counted import ranked_weights
from calibrant.metrics.ranking import Ranked, Ranking, check_ranked, check_ranking, equals, wins

# A smaller difference of areas is rounding.
_ROUNDING = 1e-13
_BLOCK = 1 << 15


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
    if ranked.get("score") is not None:
        return float(_risk_area(check_ranking(probs, labels, **ranked).whole("AURC")))
    return _risk_area_of_keys(check_ranked(probs, labels, **ranked).unweighed("AURC").sorted_keys())


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
    if ranked.get("score") is not None:
        return float(_excess_area(check_ranking(probs, labels, **ranked).whole("the excess AURC")))
    outcomes = check_ranked(probs, labels, **ranked).unweighed("the excess AURC")
    area, right = _risk_area_of_keys(outcomes.sorted_keys()), int(outcomes.correct.sum())
    return float(_above_oracle(np.array(area), np.array(len(outcomes)), np.array(len(outcomes) - right)))


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
    if ranked.get("score") is not None or ranked.get("weights") is not None:
        return float(_generalised_area(check_ranking(probs, labels, **ranked)))
    keys = check_ranked(probs, labels, **ranked).sorted_keys()
    (twice, right), n = wins(keys), len(keys)
    # Of all pairs of a miss and a sample that it is ahead of or beside, those of two misses count one half.
    return (2 * right * (n - right) - twice + (n - right) ** 2) / (2 * n * n)


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
        torch.from_numpy(accepted[shown] / accepted[-1]),
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


def _risk_area_of_keys(keys: npt.NDArray[np.unsignedinteger]) -> float:
    r"""Return the area of sorted keys of outcomes, in blocks: ten million need little more than a sort.

    A miss at rank ``r`` raises the error rates at ``r`` and all later ranks, so it adds
    :math:`1/r + \ldots + 1/n`, a difference of harmonic numbers.
    """
    n = len(keys)
    total, largest = 0.0, _harmonic_at(np.array([n]))
    for start in range(0, n, _BLOCK):
        block = keys[start : start + _BLOCK + 1]
        rank = n - start - np.flatnonzero((block[:_BLOCK] & 1) == 0)
        total += float((largest - _harmonic_at(rank - 1)).sum())
        # In the order of the keys, hits of equal confidence rank before misses; they differ by one bit.
        mixed = start + np.flatnonzero(block[1:] ^ block[:-1] == 1)
        if len(mixed):
            total += _shared_ranks(keys, mixed)
    return total / n


def _shared_ranks(keys: npt.NDArray[np.unsignedinteger], last_miss: npt.NDArray[np.intp]) -> float:
    """Return what changes if groups of misses and hits with equal confidence share their ranks.

    ``last_miss`` is the place of the last miss of each group in the sorted keys; its hits follow.
    """
    misses, hits = equals(keys, last_miss, -1), equals(keys, last_miss + 1, 1)
    size = hits + misses
    before = len(keys) - 1 - last_miss - hits
    # The expected errors exceed those of the keys by a triangle over the ranks of the group: its area is half
    # the product of hits and misses, and its centre of mass is a third of ``hits + size`` after the start.
    # Divided by the rank there, this is accurate to ten digits if the group is small compared with its rank.
    change = 0.5 * hits * misses / (before + (hits + size) / 3)
    wide = np.flatnonzero(before < 10_000 * size)
    if len(wide):
        before, hits, size = before[wide], hits[wide], size[wide]
        # The sum of the first a harmonic numbers, from that of 0, is a times that of a, minus a.
        start, middle, end = (a * (_harmonic_at(a) - 1) for a in (before, before + hits, before + size))
        change[wide] = end - middle - (size - hits) / size * (end - start)
    return float(change.sum())


def _excess_area(ranking: Ranking) -> Floats:
    return _above_oracle(_risk_area(ranking), ranking.count.sum(axis=-1), ranking.misses.sum(axis=-1))


def _above_oracle(area: Floats, n: npt.NDArray[np.integer], wrong: npt.NDArray[np.integer]) -> Floats:
    """Return the area above that of an oracle, which ranks all right predictions before wrong ones."""
    oracle = (wrong - (n - wrong) * (_harmonic_at(n) - _harmonic_at(n - wrong))) / n
    return np.where(area - oracle > _ROUNDING, area - oracle, 0.0)


def _generalised_area(ranking: Ranking) -> Floats:
    """Return the mean over all coverages of the share of samples that are accepted and wrong."""
    up_to = np.cumsum(ranking.misses, axis=-1)
    twice = (ranking.count * (2 * up_to - ranking.misses)).sum(axis=-1)
    return np.asarray(twice / (2 * ranking.count.sum(axis=-1).astype(np.float64) ** 2))


def _harmonic(n: int) -> Floats:
    """Return the harmonic numbers from 0 to ``n``."""
    return np.cumsum(np.append(0.0, 1 / np.arange(1, n + 1)))


def _harmonic_at(n: npt.NDArray[np.integer]) -> Floats:
    """Return the harmonic numbers of whole numbers."""
    x = np.asarray(n + 0.5)
    square = 1 / (x * x)
    # De Temple's series; its next term is below 1e-17 from the end of the table on.
    series = np.log(x) + (np.euler_gamma + square * (1 / 24 - square * (7 / 960)))
    if n.min(initial=len(_FIRST)) < len(_FIRST):
        small = n < len(_FIRST)
        series = np.where(small, _FIRST[np.where(small, n, 0)], series)
    return np.asarray(series)


_FIRST = _harmonic(255)

aurc_weights = ranked_weights(_risk_area)
excess_aurc_weights = ranked_weights(_excess_area)
augrc_weights = ranked_weights(_generalised_area)


def _check_share(value: float, name: str) -> float:
    if not isinstance(value, (int, float, np.number)) or not 0 <= value <= 1:
        raise InputError(f"{name}: expected a number between 0 and 1, got {value!r}")
    return float(value)
