"""Binned calibration errors: the distance between confidence and accuracy."""

from calibrant.bins import Binning, top_label_bins
from calibrant.inputs import ArrayLike


def expected_calibration_error(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    confidence: ArrayLike | None = None,
    correct: ArrayLike | None = None,
    n_bins: int = 15,
    binning: Binning = "width",
) -> float:
    r"""Mean gap between confidence and accuracy over bins of confidence.

    .. math:: \mathrm{ECE} = \sum_b \frac{n_b}{n}\,|\mathrm{acc}_b - \mathrm{conf}_b|

    Args:
        probs: Class probabilities of shape ``(n, k)``; rows sum to one. Logits are refused.
        labels: Integer classes of shape ``(n,)``.
        confidence: Confidences of shape ``(n,)``, with ``correct``, instead of ``probs``.
        correct: Whether each prediction was right, shape ``(n,)``.
        n_bins: Number of bins.
        binning: ``"width"``: right-closed bins of equal width over the unit interval. ``"mass"``: bins
            of equal count (AdaECE); equal confidences share a bin.

    Example:
        >>> round(expected_calibration_error([[0.9, 0.1], [0.6, 0.4]], [0, 1], n_bins=10), 6)
        0.35

    References:
        Naeini et al., "Obtaining Well Calibrated Probabilities Using Bayesian Binning", AAAI 2015.
        Nguyen and O'Connor, "Posterior calibration and exploratory analysis", EMNLP 2015 (equal count).
    """
    bins = top_label_bins(
        probs, labels, confidence=confidence, correct=correct, n_bins=n_bins, binning=binning
    )
    return float(bins.expected_gap())


def maximum_calibration_error(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    confidence: ArrayLike | None = None,
    correct: ArrayLike | None = None,
    n_bins: int = 15,
    binning: Binning = "width",
) -> float:
    r"""Largest gap between confidence and accuracy in any bin that is not empty.

    .. math:: \mathrm{MCE} = \max_b |\mathrm{acc}_b - \mathrm{conf}_b|

    A bin of one sample counts as much as a bin of thousands: read it beside the counts. Arguments are
    those of :func:`expected_calibration_error`.

    Example:
        >>> round(maximum_calibration_error([[0.9, 0.1], [0.6, 0.4]], [0, 1], n_bins=10), 6)
        0.6

    References:
        Naeini et al., "Obtaining Well Calibrated Probabilities Using Bayesian Binning", AAAI 2015.
    """
    bins = top_label_bins(
        probs, labels, confidence=confidence, correct=correct, n_bins=n_bins, binning=binning
    )
    return float(bins.largest_gap())


def rms_calibration_error(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    confidence: ArrayLike | None = None,
    correct: ArrayLike | None = None,
    n_bins: int = 15,
    binning: Binning = "width",
) -> float:
    r"""Root mean square gap between confidence and accuracy over bins of confidence.

    .. math:: \mathrm{RMSCE} = \sqrt{\sum_b \frac{n_b}{n}\,(\mathrm{acc}_b - \mathrm{conf}_b)^2}

    Weighs large gaps more than :func:`expected_calibration_error`, whose arguments it shares.

    Example:
        >>> round(rms_calibration_error([[0.9, 0.1], [0.6, 0.4]], [0, 1], n_bins=10), 6)
        0.430116

    References:
        Hendrycks et al., "Deep Anomaly Detection with Outlier Exposure", ICLR 2019.
    """
    bins = top_label_bins(
        probs, labels, confidence=confidence, correct=correct, n_bins=n_bins, binning=binning
    )
    return float(bins.root_mean_square_gap())


def average_calibration_error(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    confidence: ArrayLike | None = None,
    correct: ArrayLike | None = None,
    n_bins: int = 15,
    binning: Binning = "width",
) -> float:
    r"""Mean gap between confidence and accuracy over bins that are not empty, each counted once.

    .. math:: \mathrm{ACE} = \frac{1}{|\{b: n_b > 0\}|} \sum_b |\mathrm{acc}_b - \mathrm{conf}_b|

    The same letters stand for the adaptive error of Nixon et al. elsewhere:
    :func:`~calibrant.metrics.adaptive_calibration_error`. Arguments are those of
    :func:`expected_calibration_error`.

    Example:
        >>> round(average_calibration_error([[0.9, 0.1], [0.6, 0.4]], [0, 1], n_bins=10), 6)
        0.35

    References:
        Neumann, Zisserman and Vedaldi, "Relaxed Softmax", NeurIPS workshops 2018.
    """
    bins = top_label_bins(
        probs, labels, confidence=confidence, correct=correct, n_bins=n_bins, binning=binning
    )
    return float(bins.average_gap())
