"""Calibration error by kernel density estimation: compare each prediction with outcomes near it."""

from collections.abc import Iterator
from typing import Literal, TypeAlias, Unpack, get_args

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, check_choice, check_labelled_probs, check_number
from calibrant.metrics.ranking import Ranking
from calibrant.outcomes import Pairs, check_outcomes

KDEMode: TypeAlias = Literal["top_label", "canonical"]

# The grid in the authors' code.
_BANDWIDTHS: tuple[float, ...] = (
    *torch.logspace(-5, -1, 15, dtype=torch.float64).tolist(),
    0.2,
    0.4,
    0.6,
    0.8,
    1.0,
)
_ROWS_FOR_BANDWIDTH = 1024
_ENTRIES_AT_ONCE = 1 << 21


def kde_calibration_error(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    p: float = 1.0,
    bandwidth: float | None = None,
    mode: KDEMode = "top_label",
    **pairs: Unpack[Pairs],
) -> float:
    r"""Return the :math:`L_p` distance between predictions and the outcomes of their neighbours (KDE-ECE).

    .. math:: \mathrm{CE}_p = \Big( \frac{1}{n} \sum_j \Big\|
        \frac{\sum_{i \ne j} k(x_j; x_i)\, y_i}{\sum_{i \ne j} k(x_j; x_i)} - x_j \Big\|_p^p \Big)^{1/p}

    ``k(x; c)`` is the density at ``x`` of the Dirichlet distribution with parameters ``c / bandwidth + 1``;
    for the confidence in the top label it is the beta density. The estimate is biased upwards in small
    samples. Time is quadratic, about four seconds for 20,000 samples; memory is bounded.

    Args:
        probs: Class probabilities of shape ``(n, k)``.
        labels: Integer classes of shape ``(n,)``.
        confidence: Confidences of shape ``(n,)``, with ``correct``, instead of ``probs``.
        correct: Whether each prediction was right, shape ``(n,)``.
        p: The order of the error, at least 1.
        bandwidth: Width of the kernel. The default has the highest leave-one-out likelihood of twenty values
            from 1e-5 to 1, on at most 1024 samples. Many equal or nearly certain predictions
            make it small and the result too high: to compare models, use the same bandwidth for all.
        mode: ``"top_label"`` measures the predicted class, ``"canonical"`` the whole distribution, which
            needs ``probs`` and ``labels``.

    Returns:
        A number in the unit of a probability, because of the p-th root: from 0 to 1 for the top label, and to
        ``2 ** (1 / p)`` for the whole distribution.

    Example:
        >>> round(kde_calibration_error(confidence=[0.75, 0.75, 0.75], correct=[1, 1, 1]), 6)
        0.25

    References:
        Popordanoska, Sayer and Blaschko, "A consistent and differentiable Lp canonical calibration error
        estimator", NeurIPS 2022.
    """
    check_number(p, "p", at_least=1)
    if bandwidth is not None:
        check_number(bandwidth, "bandwidth")
    if check_choice(mode, "mode", get_args(KDEMode)) == "top_label":
        ordered = check_outcomes(probs, labels, **pairs).sorted()
        n, all_points = len(ordered), _with_rest(ordered.confidence.double())
        ranking = Ranking.from_outcomes(ordered)
        hits, count = (torch.from_numpy(each.astype(np.float64)) for each in (ranking.hits, ranking.count))
        points, seen = _with_rest(torch.from_numpy(ranking.score.astype(np.float64))), hits[:, None]
        stated = points[:, :1]
        # What samples at a point have seen, and how many of them.
        kinds = [(torch.ones_like(stated), hits), (torch.zeros_like(stated), count - hits)]
    else:
        stated, seen = _read_distributions(
            probs, labels, pairs_given=any(value is not None for value in pairs.values())
        )
        n, points, all_points, count = len(stated), stated, stated, stated.new_ones(len(stated))
        kinds = [(seen, count)]
    if n < 2:
        raise InputError("samples: expected at least two, as each is compared with the others, got 1")
    if bandwidth is None:
        bandwidth = _likeliest_bandwidth(all_points)
    total = 0.0
    mean = seen / count[:, None]
    for rows, log_kernel in _leave_one_out(points, count, bandwidth):
        share = torch.softmax(log_kernel, dim=1)
        own = share.diagonal(rows.start)[:, None]
        others, rest = share @ mean - own * mean[rows], (count[rows] - 1).clamp(min=1)[:, None]
        for outcome, number in kinds:
            accuracy = others + own * (seen[rows] - outcome[rows]) / rest
            away = (accuracy - stated[rows]).abs().pow(p).sum(dim=1)
            total += float((number[rows] * away).sum())
    return float((total / n) ** (1 / p))


def _with_rest(confidence: Tensor) -> Tensor:
    """Return the distributions of being right and of being wrong, shape ``(n, 2)``."""
    return torch.stack([confidence, 1 - confidence], dim=1)


def _read_distributions(
    probs: ArrayLike | None, labels: ArrayLike | None, *, pairs_given: bool
) -> tuple[Tensor, Tensor]:
    """Return distributions, normalised to sum to one, and one-hot labels, both in float64."""
    if probs is None or labels is None or pairs_given:
        raise InputError("arguments: expected probs with labels for mode='canonical', got something else")
    q, y = check_labelled_probs(probs, labels)
    q = q.double()
    return q / q.sum(dim=1, keepdim=True), torch.nn.functional.one_hot(y, q.shape[1]).double()


def _likeliest_bandwidth(points: Tensor) -> float:
    """Return the bandwidth with the highest leave-one-out likelihood; the smallest of equals."""
    if len(points) > _ROWS_FOR_BANDWIDTH:
        # Evenly spaced rows of sorted confidences would be more regular than a random sample.
        order = torch.randperm(len(points), generator=torch.Generator().manual_seed(0))
        points = points[order[:_ROWS_FOR_BANDWIDTH]]
    points, count = torch.unique(points, dim=0, return_counts=True)
    count = count.double()

    def log_likelihood(bandwidth: float) -> float:
        blocks = _leave_one_out(points, count, bandwidth)
        return sum(float(count[rows] @ torch.logsumexp(log_kernel, dim=1)) for rows, log_kernel in blocks)

    return max(_BANDWIDTHS, key=log_likelihood)


def _leave_one_out(points: Tensor, count: Tensor, bandwidth: float) -> Iterator[tuple[slice, Tensor]]:
    """Yield blocks of points ``j``, and the log of ``k(x_j; x_i)`` times the count of others at ``i``."""
    alpha = points / bandwidth + 1
    log_norm = torch.lgamma(alpha).sum(dim=1) - torch.lgamma(alpha.sum(dim=1)) - count.log()
    # At the border of the simplex the kernel is the limit from inside, which is never 0 / 0.
    log_points = points.clamp(min=1e-15).log()
    step = max(1, _ENTRIES_AT_ONCE // len(points))
    for start in range(0, len(points), step):
        rows = slice(start, min(start + step, len(points)))
        log_kernel = log_points[rows] @ (alpha - 1).T - log_norm
        log_kernel.diagonal(start).add_((count[rows] - 1).log() - count[rows].log())
        yield rows, log_kernel
