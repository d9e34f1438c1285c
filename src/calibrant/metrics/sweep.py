"""ECE-sweep: the binned error with as many bins as possible while accuracy still rises with confidence."""

from typing import Literal, Unpack, get_args

import numpy as np

from calibrant.bins import Binning, Bins
from calibrant.inputs import ArrayLike, Floats, check_choice, check_count
from calibrant.metrics.counted import Counts, Ordered, Weighted
from calibrant.outcomes import Pairs, check_outcomes


def sweep_calibration_error(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    binning: Binning = "mass",
    norm: Literal["l1", "l2"] = "l1",
    max_bins: int = 2000,
    **pairs: Unpack[Pairs],
) -> float:
    r"""Return the binned calibration error with the number of bins chosen from the data.

    Accuracy should rise with confidence. Starting from one bin, the number of bins grows as long as accuracy
    never falls from one non-empty bin to the next. The result is the error with the last such number.

    Args:
        probs: Class probabilities of shape ``(n, k)``, with ``labels``.
        labels: Integer classes of shape ``(n,)``.
        confidence: Confidences of shape ``(n,)``, with ``correct``, instead of ``probs``.
        correct: Whether each prediction was right, shape ``(n,)``.
        binning: Bins of equal ``"mass"`` (equal confidences always share a bin) or of equal ``"width"``.
        norm: ``"l1"`` for the mean gap, ``"l2"`` for the root mean square gap.
        max_bins: Largest number of bins. Without this limit, data whose accuracy never falls would end with
            one bin per sample.

    Example:
        >>> confidence, correct = [0.6, 0.7, 0.8, 0.9], [False, True, False, True]
        >>> round(sweep_calibration_error(confidence=confidence, correct=correct), 6)
        0.25

    References:
        Roelofs et al., "Mitigating Bias in Calibration Error Estimation", AISTATS 2022.
    """
    check_choice(binning, "binning", get_args(Binning))
    check_choice(norm, "norm", ("l1", "l2"))
    max_bins = check_count(max_bins, "max_bins")
    return sweep_weights(probs, labels, binning=binning, norm=norm, max_bins=max_bins, **pairs).value


def sweep_weights(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    binning: Binning = "mass",
    norm: Literal["l1", "l2"] = "l1",
    max_bins: int = 2000,
    **pairs: Unpack[Pairs],
) -> Weighted:
    """Return :func:`sweep_calibration_error` as a function of counts."""
    ordered = Ordered.from_outcomes(check_outcomes(probs, labels, **pairs))
    error = Bins.expected_gap if norm == "l1" else Bins.root_mean_square_gap

    def values(counts: Counts) -> Floats:
        sums = ordered.sums(counts)
        # Sums of weights are rounded, and a sample is one whatever its weight.
        rounding = 1e-12 if counts.dtype.kind == "f" else 0.0
        n = (counts > 0).sum(axis=1) if rounding else counts.sum(axis=1)
        most = np.minimum(n, max_bins)
        if len(sums.values) < most.max():  # with ties more bins may make no difference
            most = np.minimum(most, sums.enough(binning))
        result = error(sums.bins(1, binning)).numpy()
        active = np.arange(len(counts))
        for n_bins in range(2, int(most.max()) + 1):
            active = active[n_bins <= most[active]]
            if not len(active):
                break
            bins = sums.occupied(n_bins, binning, active)
            # Empty bins are NaN and do not count; the others must reach all accuracies before them.
            accuracy = bins.accuracy.numpy()
            rises = ~(accuracy < np.fmax.accumulate(accuracy, axis=1) - rounding).any(axis=1)
            active = active[rises]
            result[active] = error(bins).numpy()[rises]
        return result

    return Weighted(len(ordered), values, held=4 * len(ordered), weights=ordered.weights)
