"""Classwise calibration errors: are all class probabilities calibrated, not only the largest?"""

import dataclasses
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import Tensor

from calibrant.bins import (
    Binning,
    Bins,
    check_bins,
    equal_mass_bins,
    equal_width_bins,
    equal_width_index,
    rounded_down,
)
from calibrant.inputs import ArrayLike, Floats, check_choice, check_labelled_probs
from calibrant.metrics.counted import Counts, Weighted
from calibrant.metrics.counted_classes import class_table, mass_class_weights, width_class_weights
from calibrant.outcomes import Outcomes, checked_weights

# Rows are processed in blocks of about this many entries, which fit into the processor's cache.
_BLOCK_ENTRIES = 1 << 20


def classwise_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    n_bins: int = 15,
    binning: Binning = "width",
    weights: ArrayLike | None = None,
) -> float:
    r"""Return the binned gap between the probability and the frequency of each class, averaged (cwECE).

    .. math:: \mathrm{cwECE} = \frac{1}{k} \sum_c \sum_b \frac{n_{cb}}{n}\,
        |\mathrm{freq}_{cb} - \mathrm{prob}_{cb}|

    Also known as CECE, and as the static calibration error of Nixon et al. With many classes most
    probabilities are near 0 and so is this error: compare only models with the same classes.

    Args:
        probs: Class probabilities of shape ``(n, k)``.
        labels: Integer classes of shape ``(n,)``.
        n_bins: Number of bins of each class.
        binning: Right-closed bins of equal ``"width"``, or of equal ``"mass"`` for each class.
        weights: How much each sample counts, shape ``(n,)``; only their ratios matter.

    Example:
        >>> round(classwise_calibration_error([[0.9, 0.1], [0.6, 0.4]], [0, 1], n_bins=10), 6)
        0.35

    References:
        Nixon et al., "Measuring Calibration in Deep Learning", CVPR workshops 2019.
        Kull et al., "Beyond temperature scaling", NeurIPS 2019.
    """
    if weights is not None:
        return classwise_weights(probs, labels, n_bins=n_bins, binning=binning, weights=weights).value
    return float(class_bins(probs, labels, n_bins=n_bins, binning=binning).expected_gap().mean())


def adaptive_calibration_error(
    probs: ArrayLike, labels: ArrayLike, *, n_bins: int = 15, weights: ArrayLike | None = None
) -> float:
    r"""Return the mean gap over all classes and their bins of equal count (ACE of Nixon et al.).

    .. math:: \mathrm{ACE} = \frac{1}{k R} \sum_c \sum_r |\mathrm{freq}_{cr} - \mathrm{prob}_{cr}|

    Every bin has the same weight. Without ties this is the classwise error with bins of equal mass, except
    that counts may differ by one sample. Bins that are empty because of ties are not counted.

    Args:
        probs: Class probabilities of shape ``(n, k)``.
        labels: Integer classes of shape ``(n,)``.
        n_bins: Number of bins of equal count of each class.
        weights: One weight per sample.

    Example:
        >>> round(adaptive_calibration_error([[0.9, 0.1], [0.6, 0.4]], [0, 1], n_bins=2), 6)
        0.35

    References:
        Nixon et al., "Measuring Calibration in Deep Learning", CVPR workshops 2019.
    """
    if weights is not None:
        return adaptive_weights(probs, labels, n_bins=n_bins, weights=weights).value
    return float(class_bins(probs, labels, n_bins=n_bins, binning="mass").average_gap().mean())


def static_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    n_bins: int = 15,
    definition: Literal["nixon", "true_class"] = "nixon",
    weights: ArrayLike | None = None,
) -> float:
    r"""Return the mean over classes of a binned calibration error, by either of two definitions of SCE.

    ``"nixon"`` is :func:`classwise_calibration_error`: the probability of class ``c`` against ``[y = c]``
    over all samples. ``"true_class"`` is Eq. 17 of the SECA paper: the top-label error of the samples
    whose true class is ``c``, with their number as the denominator,

    .. math:: \mathrm{SCE} = \frac{1}{k} \sum_c \sum_b \frac{n_{bc}}{n_c}\,
        |\mathrm{acc}_{bc} - \mathrm{conf}_{bc}|,

    over classes that occur. The two differ by orders of magnitude, and tables often show either of them
    times 100. Grouping samples by their true class conditions on the outcome: even a calibrated model has a
    large error of the second kind, so use it only to compare with papers that do. If classes are equally
    frequent, the second is at least the top-label ECE. The numbers in the tables of SECA are smaller than its
    ECE: they fit the first definition times 1,000.

    Args:
        probs: Class probabilities of shape ``(n, k)``.
        labels: Integer classes of shape ``(n,)``.
        n_bins: Number of bins of equal width.
        definition: ``"nixon"`` or ``"true_class"``.
        weights: One weight per sample.

    Example:
        >>> probs, labels = [[0.9, 0.1], [0.6, 0.4]], [0, 1]
        >>> round(static_calibration_error(probs, labels, definition="true_class"), 6)
        0.35
    """
    if check_choice(definition, "definition", ("nixon", "true_class")) == "nixon":
        return classwise_calibration_error(probs, labels, n_bins=n_bins, weights=weights)
    return static_weights(probs, labels, n_bins=n_bins, definition=definition, weights=weights).value


def classwise_weights(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    n_bins: int = 15,
    binning: Binning = "width",
    weights: ArrayLike | None = None,
) -> Weighted:
    """Return :func:`classwise_calibration_error` as a function of counts."""
    p, y = check_labelled_probs(probs, labels)
    w, n_bins = checked_weights(weights, len(p)), check_bins(n_bins)
    if check_choice(binning, "binning", get_args(Binning)) == "width":
        return width_class_weights(p, y, n_bins, weights=w)
    return mass_class_weights(p, y, n_bins, Bins.expected_gap, weights=w)


def adaptive_weights(
    probs: ArrayLike, labels: ArrayLike, *, n_bins: int = 15, weights: ArrayLike | None = None
) -> Weighted:
    """Return :func:`adaptive_calibration_error` as a function of counts."""
    p, y = check_labelled_probs(probs, labels)
    w, n_bins = checked_weights(weights, len(p)), check_bins(n_bins)
    return mass_class_weights(p, y, n_bins, Bins.average_gap, weights=w)


def static_weights(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    n_bins: int = 15,
    definition: str = "nixon",
    weights: ArrayLike | None = None,
) -> Weighted:
    """Return :func:`static_calibration_error` as a function of counts."""
    if definition == "nixon":
        return classwise_weights(probs, labels, n_bins=n_bins, weights=weights)
    p, y = check_labelled_probs(probs, labels)
    n_bins = check_bins(n_bins)
    (n, k), outcomes, true_class = p.shape, Outcomes.from_probs(p, y), y.cpu().numpy()
    confidence = outcomes.confidence.cpu().numpy()
    error = outcomes.correct.cpu().numpy() - confidence.astype(np.float64)
    place = true_class * n_bins + equal_width_index(confidence, n_bins)
    in_bin = scipy.sparse.csr_array((error, (place, np.arange(n))), shape=(k * n_bins, n))
    in_class = class_table(y, k)

    def values(counts: Counts) -> Floats:
        across = counts.T.astype(np.float64)
        gaps, size = np.abs(in_bin @ across).reshape(k, n_bins, -1).sum(axis=1), in_class @ across
        return np.asarray((gaps / np.where(size > 0, size, 1)).sum(axis=0) / (size > 0).sum(axis=0))

    return Weighted(n, values, held=k * n_bins, weights=checked_weights(weights, n))


def class_bins(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    n_bins: int = 15,
    binning: Binning = "width",
    weights: ArrayLike | None = None,
) -> Bins:
    """Group samples by the probability of each class; the result has a leading dimension of classes.

    ``accuracy`` is then the frequency of the class, and ``confidence`` the mean of its probability. With
    weights, counts are sums of weights.

    Example:
        >>> class_bins([[0.9, 0.1], [0.6, 0.4]], [0, 1], n_bins=2).count.tolist()
        [[0, 2], [2, 0]]
    """
    p, y = check_labelled_probs(probs, labels)
    n_bins, w = check_bins(n_bins), checked_weights(weights, len(p))
    bins_of = equal_mass_bins
    if check_choice(binning, "binning", get_args(Binning)) == "width":
        if w is None:
            return _equal_width_class_bins(p, y, n_bins)
        bins_of = equal_width_bins
    per_class = [
        bins_of(Outcomes(p[:, c].clamp(0, 1).contiguous(), y == c, w), n_bins) for c in range(p.shape[1])
    ]
    fields = ([getattr(bins, field.name) for bins in per_class] for field in dataclasses.fields(Bins))
    bins = Bins(*(torch.stack(values) for values in fields))
    # Bins of equal width have the same edges for all classes.
    return dataclasses.replace(bins, edges=bins.edges[0]) if binning == "width" else bins


def _equal_width_class_bins(p: Tensor, y: Tensor, n_bins: int) -> Bins:
    """Fill the bins of all classes; only entries above the lowest bin are placed, few per row.

    The lowest bin is the rest of the total of each column.
    """
    n, k = p.shape
    table, labels = np.ascontiguousarray(p.cpu().numpy()), y.cpu().numpy()
    lowest = rounded_down(np.array([1 / n_bins]), table.dtype)
    size = k * n_bins
    count, hits = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    placed, totals = np.zeros(size), np.zeros(k)
    step = max(1, _BLOCK_ENTRIES // k)
    for start in range(0, n, step):
        block = table[start : start + step]
        above = np.flatnonzero(block > lowest)
        rows = above // k
        columns = above - rows * k
        values = block.ravel()[above]
        place = columns * n_bins + equal_width_index(values, n_bins)
        count += np.bincount(place, minlength=size)
        placed += np.bincount(place, values, minlength=size)
        hits += np.bincount(place[labels[start + rows] == columns], minlength=size)
        totals += block.sum(axis=0, dtype=np.float64)
    return Bins(
        torch.arange(n_bins + 1, dtype=torch.float64) / n_bins,
        _with_lowest(count, np.full(k, n)),
        _with_lowest(placed, totals),
        _with_lowest(hits, np.bincount(labels, minlength=k)),
    )


def _with_lowest(placed: npt.NDArray[Any], totals: npt.NDArray[Any]) -> Tensor:
    """Add the rest of the total of each class to its lowest bin."""
    table = placed.reshape(len(totals), -1)
    table[:, 0] += totals - table.sum(axis=1)
    return torch.from_numpy(table)
