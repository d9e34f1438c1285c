"""Kernel calibration errors: how far predictions that resemble each other err in the same direction."""

import math
from typing import Literal, TypeAlias, Unpack

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, check_labels, check_probs
from calibrant.outcomes import Pairs, check_outcomes

SKCEEstimator: TypeAlias = Literal["biased", "unbiased", "linear"]

# exp(500) leaves room for sums of many terms below the largest float64.
_REACH = 500.0
_ENTRIES_AT_ONCE = 1 << 22
_ROWS_FOR_WIDTH = 1024


def mmce(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    width: float = 0.2,
    **pairs: Unpack[Pairs],
) -> float:
    r"""Largest correlation of the error with a unit function of the confidence in a kernel space (MMCE).

    .. math:: \mathrm{MMCE} = \Big( \frac{1}{n^2} \sum_{i,j} (a_i - p_i)(a_j - p_j)\,
        e^{-|p_i - p_j| / w} \Big)^{1/2}

    The sum includes ``i = j``, as in the paper, so a calibrated model does not reach zero: it comes to
    about ``sqrt(mean((a - p) ** 2) / n)``. Over sorted confidences the kernel factorises, so the double
    sum is exact in O(n log n) time and O(n) memory.

    Args:
        probs: Class probabilities of shape ``(n, k)``; the most probable class is judged.
        labels: Integer classes of shape ``(n,)``.
        confidence: Instead of ``probs``: stated probabilities of being right, shape ``(n,)``.
        correct: Instead of ``labels``: whether each prediction was right, shape ``(n,)``.
        width: The ``w`` of the kernel. Code that divides by ``2 * 0.2``, as that of several losses and
            of netcal does, has a width of 0.4.

    Returns:
        A number from 0 to 1.

    Example:
        >>> round(mmce(confidence=[0.75, 0.75, 0.75, 0.75], correct=[1, 1, 0, 0]), 6)
        0.25

    References:
        Kumar, Sarawagi and Jain, "Trainable calibration measures for neural networks from kernel mean
        embeddings", ICML 2018.
    """
    _check_width(width)
    ordered = check_outcomes(probs, labels, **pairs).sorted()
    p = ordered.confidence.numpy().astype(np.float64)
    error = ordered.correct.numpy() - p
    # Let L_i be the sum of error_j exp(-(p_i - p_j) / w) over j < i. Within a stretch of a few hundred widths
    # it is exp(-x_i) times a prefix sum of error_j exp(x_j), where x counts widths from the stretch's start;
    # what came before the stretch enters as one number. No term is lost: the prefix sum grows no faster
    # than the factor that divides it.
    cross, before, start = 0.0, 0.0, 0
    while start < len(p):
        stop = int(np.searchsorted(p, p[start] + _REACH * width, side="right"))
        growth = np.exp((p[start:stop] - p[start]) / width)
        prefix = np.cumsum(np.append(before, error[start:stop] * growth))
        cross += float((error[start:stop] / growth) @ prefix[:-1])
        if stop < len(p):
            before = float(prefix[-1]) * math.exp(-(p[stop] - p[start]) / width)
        start = stop
    # Rounding may leave a sum of squares slightly below zero.
    return math.sqrt(max(float(error @ error) + 2 * cross, 0.0)) / len(p)


def skce(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    estimator: SKCEEstimator = "unbiased",
    width: float | None = None,
) -> float:
    r"""Squared kernel calibration error of whole distributions, not only of the predicted class.

    .. math:: h_{ij} = (e_{y_i} - p_i)^\top (e_{y_j} - p_j)\; e^{-\mathrm{TV}(p_i, p_j) / w}

    ``"biased"`` is the mean of ``h`` over all pairs, never negative; ``"unbiased"`` the mean over pairs of
    two different samples, which for a calibrated model is zero on average and may be negative. Both take
    O(k n^2) time in blocks of bounded memory. ``"linear"`` is the mean over the samples 1 and 2, 3 and 4
    and so on: unbiased, O(k n) time, more noise, and it depends on the order of the rows.

    Args:
        probs: Class probabilities of shape ``(n, k)``, or ``(n,)`` for the probability of class 1.
        labels: Integer classes of shape ``(n,)``.
        estimator: ``"biased"``, ``"unbiased"`` or ``"linear"``.
        width: The ``w`` of the kernel. By default the median of the distances in total variation that are
            not zero, over at most 1024 rows at even steps.

    Example:
        >>> round(skce([[0.75, 0.25], [0.75, 0.25]], [0, 1]), 6)
        -0.375
        >>> round(skce([[0.75, 0.25], [0.75, 0.25]], [0, 1], estimator="biased"), 6)
        0.125

    References:
        Widmann, Lindsten and Zachariah, "Calibration tests in multi-class classification: a unifying
        framework", NeurIPS 2019.
    """
    if estimator == "linear":
        return float(skce_pairs(probs, labels, width=width).mean())
    if estimator not in ("biased", "unbiased"):
        raise InputError(f"estimator: expected 'biased', 'unbiased' or 'linear', got {estimator!r}")
    p, y, width = _read(probs, labels, width, at_least=1 if estimator == "biased" else 2)
    p, n = p.double(), len(p)
    residual = _residual(p, y)
    different = 0.0
    rows = max(1, _ENTRIES_AT_ONCE // n)
    for start in range(0, n, rows):
        h = residual[start : start + rows] @ residual[start:].T
        h *= (torch.cdist(p[start : start + rows], p[start:], p=1) / (-2 * width)).exp_()
        different += 2 * float(h.triu_(1).sum())
    if estimator == "unbiased":
        return different / (n * (n - 1))
    return (different + float(residual.square().sum())) / n**2


def skce_pairs(probs: ArrayLike, labels: ArrayLike, *, width: float | None = None) -> Tensor:
    """Independent terms whose mean is the linear estimator of :func:`skce`, for a test of calibration.

    Entry ``i`` is ``h`` of the samples ``2i`` and ``2i + 1``; an odd last sample is left out. For rows in
    random order, a given width and a calibrated model the terms are independent with mean zero.

    Returns:
        A float64 tensor of shape ``(n // 2,)``.

    Example:
        >>> skce_pairs([[0.75, 0.25], [0.75, 0.25], [0.5, 0.5]], [0, 1, 0]).tolist()
        [-0.375]
    """
    p, y, width = _read(probs, labels, width, at_least=2)
    n = len(p) // 2 * 2
    rows = 2 * max(1, _ENTRIES_AT_ONCE // (2 * p.shape[1]))
    terms = []
    for start in range(0, n, rows):
        here = slice(start, min(start + rows, n))
        block = p[here].double()
        residual = _residual(block, y[here])
        distance = (block[0::2] - block[1::2]).abs().sum(dim=1) / 2
        terms.append((residual[0::2] * residual[1::2]).sum(dim=1) * torch.exp(-distance / width))
    return torch.cat(terms)


def _read(
    probs: ArrayLike, labels: ArrayLike, width: float | None, *, at_least: int
) -> tuple[Tensor, Tensor, float]:
    """Distributions, classes, and the width to use."""
    p = check_probs(probs)
    y = check_labels(labels, n=p.shape[0], k=p.shape[1]).to(p.device)
    if len(p) < at_least:
        raise InputError(f"probs: expected at least {at_least} samples for this estimator, got {len(p)}")
    if width is None:
        width = _median_distance(p)
    _check_width(width)
    return p, y, width


def _residual(p: Tensor, y: Tensor) -> Tensor:
    """One-hot labels minus distributions."""
    residual = -p
    residual[torch.arange(len(p), device=p.device), y] += 1
    return residual


def _median_distance(p: Tensor) -> float:
    """Median distance in total variation of rows that differ; 1 if none do."""
    rows = p[:: -(-len(p) // _ROWS_FOR_WIDTH)].double()
    distance = torch.nn.functional.pdist(rows, p=1) / 2
    distance = distance[distance > 0]
    return float(distance.quantile(0.5)) if len(distance) else 1.0


def _check_width(width: float) -> None:
    if not 0 < width < math.inf:
        raise InputError(f"width: expected a positive number, got {width}")
