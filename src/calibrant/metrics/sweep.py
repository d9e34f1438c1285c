"""ECE-sweep: as many bins as the data allow before accuracy stops rising with confidence."""

from typing import Literal, Unpack

import numpy as np
import numpy.typing as npt

from calibrant.bins import Binning
from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, check_count
from calibrant.outcomes import Pairs, check_outcomes

_Floats = npt.NDArray[np.float64]


def sweep_calibration_error(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    binning: Binning = "mass",
    norm: Literal["l1", "l2"] = "l1",
    max_bins: int = 2000,
    **pairs: Unpack[Pairs],
) -> float:
    r"""Binned calibration error with the number of bins chosen by the data.

    Accuracy should rise with confidence. Starting from one bin, bins are added while the accuracy of
    those that are not empty does not fall from one to the next; the error is that of the last number of
    bins for which this held.

    Args:
        probs: Class probabilities of shape ``(n, k)``, with ``labels``.
        labels: Integer classes of shape ``(n,)``.
        confidence: Confidences of shape ``(n,)``, with ``correct``, instead of ``probs``.
        correct: Whether each prediction was right, shape ``(n,)``.
        binning: Bins of equal ``"mass"`` (equal confidences share a bin) or of equal ``"width"``.
        norm: ``"l1"`` for the mean gap, ``"l2"`` for the root mean square gap.
        max_bins: Stop here at the latest; data whose accuracy never falls would otherwise be swept to
            one bin per sample.

    Example:
        >>> confidence, correct = [0.6, 0.7, 0.8, 0.9], [False, True, False, True]
        >>> round(sweep_calibration_error(confidence=confidence, correct=correct), 6)
        0.25

    References:
        Roelofs et al., "Mitigating Bias in Calibration Error Estimation", AISTATS 2022.
    """
    if binning not in ("mass", "width"):
        raise InputError(f"binning: expected 'width' or 'mass', got {binning!r}")
    if norm not in ("l1", "l2"):
        raise InputError(f"norm: expected 'l1' or 'l2', got {norm!r}")
    max_bins = check_count(max_bins, "max_bins")
    ordered = check_outcomes(probs, labels, **pairs).sorted()
    values, hits = ordered.confidence.numpy(), ordered.correct.numpy()
    confidence_below = np.append(0.0, np.cumsum(values, dtype=np.float64))
    hits_below = np.append(0, np.cumsum(hits, dtype=np.int64))

    count, gap = _sums(_cuts(values, 1, binning), confidence_below, hits_below)[:2]
    for n_bins in range(2, min(max_bins, len(values)) + 1):
        finer_count, finer_gap, accuracy = _sums(_cuts(values, n_bins, binning), confidence_below, hits_below)
        if (np.diff(accuracy) < 0).any():
            break
        count, gap = finer_count, finer_gap
    if norm == "l1":
        return float(np.abs(gap).sum() / len(values))
    return float(np.sqrt((gap**2 / count).sum() / len(values)))


def _cuts(values: npt.NDArray[np.floating], n_bins: int, binning: Binning) -> npt.NDArray[np.intp]:
    """Return where each bin ends among the sorted confidences."""
    if binning == "mass":
        uppers = values[-(-np.arange(1, n_bins + 1) * len(values) // n_bins) - 1]
    else:
        uppers = np.arange(1, n_bins + 1) / n_bins
    return np.searchsorted(values, uppers, side="right")


def _sums(
    cuts: npt.NDArray[np.intp], confidence_below: _Floats, hits_below: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], _Floats, _Floats]:
    """Return count, summed gap and accuracy of the bins that are not empty."""
    cuts = np.unique(np.append(0, cuts))
    count = np.diff(cuts)
    hits = np.diff(hits_below[cuts])
    return count, hits - np.diff(confidence_below[cuts]), hits / count
