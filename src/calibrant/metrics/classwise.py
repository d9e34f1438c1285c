"""Classwise calibration error: are all class probabilities honest, not only the largest?"""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.bins import Binning, Bins, equal_mass_bins, equal_width_bins, equal_width_index
from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, check_count, check_labels, check_probs
from calibrant.outcomes import Outcomes

# Rows are taken in blocks of about this many entries, which stay in the processor's cache.
_BLOCK_ENTRIES = 1 << 20


def classwise_calibration_error(
    probs: ArrayLike, labels: ArrayLike, *, n_bins: int = 15, binning: Binning = "width"
) -> float:
    r"""Mean over classes of the binned gap between a class's probability and its frequency.

    .. math:: \mathrm{cwECE} = \frac{1}{k} \sum_c \sum_b \frac{n_{cb}}{n}\,
        |\mathrm{freq}_{cb} - \mathrm{prob}_{cb}|

    Also known as CECE, and as the static calibration error of Nixon et al. With many classes most
    probabilities are near 0 and so is this error: compare it only between models of the same classes.

    Args:
        probs: Class probabilities of shape ``(n, k)``.
        labels: Integer classes of shape ``(n,)``.
        n_bins: Number of bins of each class.
        binning: Right-closed bins of equal ``"width"``, or of equal ``"mass"`` for each class.

    Example:
        >>> round(classwise_calibration_error([[0.9, 0.1], [0.6, 0.4]], [0, 1], n_bins=10), 6)
        0.35

    References:
        Nixon et al., "Measuring Calibration in Deep Learning", CVPR workshops 2019.
        Kull et al., "Beyond temperature scaling", NeurIPS 2019.
    """
    return float(class_bins(probs, labels, n_bins=n_bins, binning=binning).expected_gap().mean())


def adaptive_calibration_error(probs: ArrayLike, labels: ArrayLike, *, n_bins: int = 15) -> float:
    r"""Mean gap over all classes and over bins of equal count, each bin counted once.

    .. math:: \mathrm{ACE} = \frac{1}{k R} \sum_c \sum_r |\mathrm{freq}_{cr} - \mathrm{prob}_{cr}|

    Without ties it is the classwise error with bins of equal mass, up to bins that differ by one sample;
    bins that ties leave empty are not counted.

    Example:
        >>> round(adaptive_calibration_error([[0.9, 0.1], [0.6, 0.4]], [0, 1], n_bins=2), 6)
        0.35

    References:
        Nixon et al., "Measuring Calibration in Deep Learning", CVPR workshops 2019.
    """
    return float(class_bins(probs, labels, n_bins=n_bins, binning="mass").average_gap().mean())


def static_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    n_bins: int = 15,
    definition: Literal["nixon", "true_class"] = "nixon",
) -> float:
    r"""Mean over classes of a binned calibration error, in one of the two definitions called SCE.

    ``"nixon"`` is :func:`classwise_calibration_error`: the probability of class ``c`` against ``[y = c]``
    over all samples. ``"true_class"`` is Eq. 17 of the SECA paper: the top-label error of the samples
    whose true class is ``c``, with their number as the denominator,

    .. math:: \mathrm{SCE} = \frac{1}{k} \sum_c \sum_b \frac{n_{bc}}{n_c}\,
        |\mathrm{acc}_{bc} - \mathrm{conf}_{bc}|,

    over classes that occur. The two differ by orders of magnitude, and tables often show either times
    100. Sorting samples by their true class conditions on the answer: even an honest model has a large
    error of the second kind, so use it only to compare with papers that do.

    Example:
        >>> probs, labels = [[0.9, 0.1], [0.6, 0.4]], [0, 1]
        >>> round(static_calibration_error(probs, labels, definition="true_class"), 6)
        0.35
    """
    if definition == "nixon":
        return classwise_calibration_error(probs, labels, n_bins=n_bins)
    if definition != "true_class":
        raise InputError(f"definition: expected 'nixon' or 'true_class', got {definition!r}")
    p = check_probs(probs)
    y = check_labels(labels, n=p.shape[0], k=p.shape[1]).to(p.device)
    outcomes = Outcomes.from_probs(p, y)
    n_bins = check_count(n_bins, "n_bins")
    errors = [
        equal_width_bins(
            Outcomes(outcomes.confidence[y == c], outcomes.correct[y == c]), n_bins
        ).expected_gap()
        for c in y.unique().tolist()
    ]
    return float(torch.stack(errors).mean())


def class_bins(probs: ArrayLike, labels: ArrayLike, *, n_bins: int = 15, binning: Binning = "width") -> Bins:
    """Group samples by each class's probability; the result has a leading dimension of classes.

    ``accuracy`` is then the frequency of the class and ``confidence`` the mean of its probability.

    Example:
        >>> class_bins([[0.9, 0.1], [0.6, 0.4]], [0, 1], n_bins=2).count.tolist()
        [[0, 2], [2, 0]]
    """
    p = check_probs(probs)
    y = check_labels(labels, n=p.shape[0], k=p.shape[1]).to(p.device)
    n_bins = check_count(n_bins, "n_bins")
    if binning == "width":
        return _equal_width_class_bins(p, y, n_bins)
    if binning != "mass":
        raise InputError(f"binning: expected 'width' or 'mass', got {binning!r}")
    per_class = [
        equal_mass_bins(Outcomes(p[:, c].clamp(0, 1).contiguous(), y == c), n_bins) for c in range(p.shape[1])
    ]
    return Bins(
        torch.stack([b.edges for b in per_class]),
        torch.stack([b.count for b in per_class]),
        torch.stack([b.confidence_sum for b in per_class]),
        torch.stack([b.correct_sum for b in per_class]),
    )


def _equal_width_class_bins(p: Tensor, y: Tensor, n_bins: int) -> Bins:
    """Place only the entries above the lowest bin, of which a row that sums to one has few.

    The lowest bin is what remains of the column's totals.
    """
    n, k = p.shape
    table, labels = np.ascontiguousarray(p.cpu().numpy()), y.cpu().numpy()
    lowest = _below(1 / n_bins, table.dtype)
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
    """Give the lowest bin of each class what the others leave of its total."""
    table = placed.reshape(len(totals), -1)
    table[:, 0] += totals - table.sum(axis=1)
    return torch.from_numpy(table)


def _below(edge: float, dtype: np.dtype[Any]) -> np.floating:
    """Return the largest number of the type that does not exceed the edge: comparisons stay exact."""
    rounded: np.floating = dtype.type(edge)
    return np.nextafter(rounded, dtype.type(0)) if float(rounded) > edge else rounded
