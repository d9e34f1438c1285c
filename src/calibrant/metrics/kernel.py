"""Kernel calibration errors: how much similar predictions err in the same direction."""

import math
from typing import Literal, TypeAlias, Unpack, get_args

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, Floats, check_choice, check_labelled_probs, check_number, check_seed
from calibrant.metrics.counted import Counts, Ordered, Weighted
from calibrant.outcomes import Pairs, check_outcomes, refuse_weights

SKCEEstimator: TypeAlias = Literal["biased", "unbiased"]

# Sums of many terms of size exp(500) are still below the largest float64.
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
    r"""Return the maximum mean calibration error of the confidence (MMCE).

    .. math:: \mathrm{MMCE} = \Big( \frac{1}{n^2} \sum_{i,j} (a_i - p_i)(a_j - p_j)\,
        e^{-|p_i - p_j| / w} \Big)^{1/2}

    It is the largest mean of the error ``a - p`` times a function of the confidence with unit norm in the
    space of the kernel. The sum includes ``i = j``, as in the paper, so a calibrated model does not score
    zero but about ``sqrt(mean((a - p) ** 2) / n)``. The kernel factorises over sorted confidences, so the
    double sum is exact in O(n log n) time and O(n) memory.

    Args:
        probs: Class probabilities of shape ``(n, k)``; only the predicted class is measured.
        labels: Integer classes of shape ``(n,)``.
        confidence: Confidences of shape ``(n,)``, with ``correct``, instead of ``probs``.
        correct: Whether each prediction was right, shape ``(n,)``.
        width: The ``w`` of the kernel. Code that divides by ``2 * 0.2``, such as that of netcal and of
            several losses, has a width of 0.4.

    Returns:
        A number from 0 to 1.

    Example:
        >>> round(mmce(confidence=[0.75, 0.75, 0.75, 0.75], correct=[1, 1, 0, 0]), 6)
        0.25

    References:
        Kumar, Sarawagi and Jain, "Trainable calibration measures for neural networks from kernel mean
        embeddings", ICML 2018.
    """
    check_number(width, "width")
    if pairs.get("weights") is not None:
        return mmce_weights(probs, labels, width=width, **pairs).value
    ordered = check_outcomes(probs, labels, **pairs).sorted()
    p = ordered.confidence.numpy().astype(np.float64)
    return float(_kernel_norm(p, ordered.correct.numpy() - p, width)) / len(p)


def mmce_weights(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    width: float = 0.2,
    **pairs: Unpack[Pairs],
) -> Weighted:
    """Return :func:`mmce` as a function of counts."""
    ordered = Ordered.from_outcomes(check_outcomes(probs, labels, **pairs))
    p = ordered.values.astype(np.float64)

    def values(counts: Counts) -> Floats:
        return np.asarray(_kernel_norm(p, ordered.errors(counts), width) / counts.sum(axis=1))

    return Weighted(len(ordered), values, held=4 * len(ordered), weights=ordered.weights)


def _kernel_norm(p: Floats, error: Floats, width: float) -> Floats:
    """Return the root of the sum over all pairs of ``error_i error_j exp(-|p_i - p_j| / width)``.

    The points ``p`` ascend. Errors may have a leading dimension, which is preserved.
    """
    # Let L_i be the sum of error_j exp(-(p_i - p_j) / w) over j < i. Within a stretch of a few hundred widths
    # it is exp(-x_i) times a prefix sum of error_j exp(x_j), where x counts widths from the stretch's start;
    # all terms before the stretch enter as one number. No term is lost: the prefix sum grows no faster than
    # the factor that divides it.
    cross, before, start = np.zeros(error.shape[:-1]), np.zeros((*error.shape[:-1], 1)), 0
    while start < len(p):
        stop = int(np.searchsorted(p, p[start] + _REACH * width, side="right"))
        growth = np.exp((p[start:stop] - p[start]) / width)
        here = error[..., start:stop]
        prefix = np.cumsum(np.concatenate([before, here * growth], axis=-1), axis=-1)
        cross = cross + np.einsum("...i,...i->...", here / growth, prefix[..., :-1])
        if stop < len(p):
            before = prefix[..., -1:] * math.exp(-(p[stop] - p[start]) / width)
        start = stop
    # Rounding can make the sum slightly negative.
    total = np.einsum("...i,...i->...", error, error) + 2 * cross
    return np.asarray(np.sqrt(np.maximum(total, 0.0)))


def skce(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    estimator: SKCEEstimator = "unbiased",
    width: float | None = None,
    weights: ArrayLike | None = None,
) -> float:
    r"""Return the squared kernel calibration error of whole distributions (SKCE).

    .. math:: h_{ij} = (e_{y_i} - p_i)^\top (e_{y_j} - p_j)\; e^{-\mathrm{TV}(p_i, p_j) / w}

    ``"biased"`` is the mean of ``h`` over all pairs and is never negative. ``"unbiased"`` is the mean over
    pairs of different samples; for a calibrated model it is zero on average and may be negative. Both take
    O(k n^2) time and bounded memory.

    Args:
        probs: Class probabilities of shape ``(n, k)``, or ``(n,)`` for the probability of class 1.
        labels: Integer classes of shape ``(n,)``.
        estimator: ``"biased"`` or ``"unbiased"``.
        width: The ``w`` of the kernel. The default is the median of the nonzero distances in total variation
            between at most 1024 evenly spaced rows.
        weights: Refused, because a mean over pairs of different samples needs whole samples.

    Example:
        >>> round(skce([[0.75, 0.25], [0.75, 0.25]], [0, 1]), 6)
        -0.375
        >>> round(skce([[0.75, 0.25], [0.75, 0.25]], [0, 1], estimator="biased"), 6)
        0.125

    References:
        Widmann, Lindsten and Zachariah, "Calibration tests in multi-class classification: a unifying
        framework", NeurIPS 2019.
    """
    refuse_weights(weights, "SKCE")
    check_choice(estimator, "estimator", get_args(SKCEEstimator))
    p, y = _read(probs, labels, at_least=1 if estimator == "biased" else 2)
    width = _width(width, p[:: -(-len(p) // _ROWS_FOR_WIDTH)])
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


def skce_pairs(
    probs: ArrayLike, labels: ArrayLike, *, width: float | None = None, seed: int | None = 0
) -> Tensor:
    """Return terms whose mean estimates :func:`skce` in linear time, for a calibration test.

    Each entry is ``h`` of two samples. They are paired by a random permutation, because an order that depends
    on the labels would look like miscalibration; of an odd number one sample is left out. For a calibrated
    model and a given width, the terms are independent with mean zero.

    Args:
        probs: Class probabilities of shape ``(n, k)``, or ``(n,)`` for the probability of class 1.
        labels: Integer classes of shape ``(n,)``.
        width: The width of the kernel, as in :func:`skce`; by default from random rows.
        seed: Equal seeds give equal pairs of row numbers. None: each row is paired with the next one.

    Returns:
        A float64 tensor of shape ``(n // 2,)``.

    Example:
        >>> skce_pairs([[0.75, 0.25], [0.75, 0.25]], [0, 1]).tolist()
        [-0.375]
    """
    p, y = _read(probs, labels, at_least=2)
    shuffled = np.random.default_rng(0 if seed is None else check_seed(seed)).permutation(len(p))
    order = torch.from_numpy(shuffled).to(p.device)
    width = _width(width, p[order[:_ROWS_FOR_WIDTH]])
    order = torch.arange(len(p), device=p.device) if seed is None else order
    n = len(p) // 2 * 2
    rows = 2 * max(1, _ENTRIES_AT_ONCE // (2 * p.shape[1]))
    terms = []
    for start in range(0, n, rows):
        here = order[start : min(start + rows, n)]
        block = p[here].double()
        residual = _residual(block, y[here])
        distance = (block[0::2] - block[1::2]).abs().sum(dim=1) / 2
        terms.append((residual[0::2] * residual[1::2]).sum(dim=1) * torch.exp(-distance / width))
    return torch.cat(terms)


def _read(probs: ArrayLike, labels: ArrayLike, *, at_least: int) -> tuple[Tensor, Tensor]:
    """Return checked distributions and classes."""
    p, y = check_labelled_probs(probs, labels)
    if len(p) < at_least:
        raise InputError(f"probs: expected at least {at_least} samples for this estimator, got {len(p)}")
    return p, y


def _residual(p: Tensor, y: Tensor) -> Tensor:
    """Return one-hot labels minus distributions."""
    residual = -p
    residual[torch.arange(len(p), device=p.device), y] += 1
    return residual


def _width(width: float | None, rows: Tensor) -> float:
    """Return the width to use: by default the median distance in total variation of rows that differ."""
    if width is not None:
        return check_number(width, "width")
    distance = torch.nn.functional.pdist(rows.double(), p=1) / 2
    distance = distance[distance > 0]
    return float(distance.quantile(0.5)) if len(distance) else 1.0
