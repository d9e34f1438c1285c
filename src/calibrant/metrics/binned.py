"""Binned calibration errors: the distance between confidence and accuracy, and its direction."""

from typing import Literal, TypeAlias, Unpack, get_args

from torch import Tensor

from calibrant.bins import Binning, BinOptions, top_label_bins
from calibrant.inputs import ArrayLike, check_choice
from calibrant.metrics.accuracy import mean
from calibrant.outcomes import Outcomes, Pairs, check_outcomes


def expected_calibration_error(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    n_bins: int = 15,
    binning: Binning = "width",
    **pairs: Unpack[Pairs],
) -> float:
    r"""Return the mean gap between confidence and accuracy over bins of confidence (ECE).

    .. math:: \mathrm{ECE} = \sum_b \frac{n_b}{n}\,|\mathrm{acc}_b - \mathrm{conf}_b|

    Args:
        probs: Class probabilities of shape ``(n, k)``; rows sum to one. Logits are refused.
        labels: Integer classes of shape ``(n,)``.
        confidence: Confidences of shape ``(n,)``, with ``correct``, instead of ``probs``.
        correct: Whether each prediction was right, shape ``(n,)``.
        n_bins: Number of bins.
        binning: ``"width"``: right-closed bins of equal width over the unit interval. ``"mass"``: bins
            of equal count (AdaECE); equal confidences always share a bin.

    Example:
        >>> round(expected_calibration_error([[0.9, 0.1], [0.6, 0.4]], [0, 1], n_bins=10), 6)
        0.35

    References:
        Naeini et al., "Obtaining Well Calibrated Probabilities Using Bayesian Binning", AAAI 2015.
        Nguyen and O'Connor, "Posterior calibration and exploratory analysis", EMNLP 2015 (equal count).
    """
    return float(top_label_bins(probs, labels, n_bins=n_bins, binning=binning, **pairs).expected_gap())


def maximum_calibration_error(
    probs: ArrayLike | None = None, labels: ArrayLike | None = None, **options: Unpack[BinOptions]
) -> float:
    r"""Return the largest gap between confidence and accuracy in any bin that is not empty (MCE).

    .. math:: \mathrm{MCE} = \max_b |\mathrm{acc}_b - \mathrm{conf}_b|

    A bin with one sample counts as much as a bin with thousands, so check the counts too. Arguments are
    those of :func:`expected_calibration_error`, with the same defaults: ``n_bins=15, binning="width"``.

    Example:
        >>> round(maximum_calibration_error([[0.9, 0.1], [0.6, 0.4]], [0, 1], n_bins=10), 6)
        0.6

    References:
        Naeini et al., "Obtaining Well Calibrated Probabilities Using Bayesian Binning", AAAI 2015.
    """
    return float(top_label_bins(probs, labels, **options).largest_gap())


def rms_calibration_error(
    probs: ArrayLike | None = None, labels: ArrayLike | None = None, **options: Unpack[BinOptions]
) -> float:
    r"""Return the root mean square gap between confidence and accuracy over bins of confidence (RMSCE).

    .. math:: \mathrm{RMSCE} = \sqrt{\sum_b \frac{n_b}{n}\,(\mathrm{acc}_b - \mathrm{conf}_b)^2}

    It gives large gaps more weight than :func:`expected_calibration_error`, whose arguments and defaults
    it shares: ``n_bins=15, binning="width"``.

    Example:
        >>> round(rms_calibration_error([[0.9, 0.1], [0.6, 0.4]], [0, 1], n_bins=10), 6)
        0.430116

    References:
        Hendrycks et al., "Deep Anomaly Detection with Outlier Exposure", ICLR 2019.
    """
    return float(top_label_bins(probs, labels, **options).root_mean_square_gap())


def average_calibration_error(
    probs: ArrayLike | None = None, labels: ArrayLike | None = None, **options: Unpack[BinOptions]
) -> float:
    r"""Return the mean gap between confidence and accuracy, with equal weight for each non-empty bin (ACE).

    .. math:: \mathrm{ACE} = \frac{1}{|\{b: n_b > 0\}|} \sum_b |\mathrm{acc}_b - \mathrm{conf}_b|

    Elsewhere ACE also stands for the adaptive error of Nixon et al., which is
    :func:`~calibrant.metrics.adaptive_calibration_error`. Arguments are those of
    :func:`expected_calibration_error`, with the same defaults: ``n_bins=15, binning="width"``.

    Example:
        >>> round(average_calibration_error([[0.9, 0.1], [0.6, 0.4]], [0, 1], n_bins=10), 6)
        0.35

    References:
        Neumann, Zisserman and Vedaldi, "Relaxed Softmax", NeurIPS workshops 2018.
    """
    return float(top_label_bins(probs, labels, **options).average_gap())


ConfidencePart: TypeAlias = Literal["binned", "conditional"]


def overconfidence(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    definition: ConfidencePart = "binned",
    n_bins: int = 15,
    binning: Binning = "width",
    **pairs: Unpack[Pairs],
) -> float:
    r"""Return the part of the calibration error from bins whose confidence exceeds their accuracy.

    .. math:: \sum_b \frac{n_b}{n} \max(\mathrm{conf}_b - \mathrm{acc}_b, 0)
        \quad\text{or, conditional,}\quad \mathrm{mean}(\mathrm{conf} \mid \text{wrong})

    Args:
        probs: Class probabilities of shape ``(n, k)``, with ``labels``.
        labels: Integer classes of shape ``(n,)``.
        confidence: Confidences of shape ``(n,)``, with ``correct``, instead of ``probs``.
        correct: Whether each prediction was right, shape ``(n,)``.
        definition: ``"binned"``: the sum with :func:`underconfidence` is the expected calibration error of
            the same bins. ``"conditional"``: mean confidence of the wrong predictions; NaN if none is wrong.
        n_bins: Number of bins of the binned definition.
        binning: Bins of equal ``"width"`` or of equal ``"mass"``.

    Example:
        >>> pairs = {"confidence": [0.9, 0.8, 0.6], "correct": [True, False, True]}
        >>> round(overconfidence(n_bins=10, **pairs), 4)
        0.2667
        >>> overconfidence(definition="conditional", **pairs)
        0.8

    References:
        Mund, Triebel and Cremers, "Active Online Confidence Boosting for Efficient Object Classification",
        ICRA 2015 (conditional).
        Wenger, Kjellström and Triebel, "Non-Parametric Calibration for Classification", AISTATS 2020.
    """
    if check_choice(definition, "definition", get_args(ConfidencePart)) == "binned":
        bins = top_label_bins(probs, labels, n_bins=n_bins, binning=binning, **pairs)
        return float(bins.overconfident_part())
    outcomes = check_outcomes(probs, labels, **pairs)
    return _mean_of(outcomes, outcomes.confidence.double(), ~outcomes.correct)


def underconfidence(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    definition: ConfidencePart = "binned",
    n_bins: int = 15,
    binning: Binning = "width",
    **pairs: Unpack[Pairs],
) -> float:
    r"""Return the part of the calibration error from bins whose accuracy exceeds their confidence.

    .. math:: \sum_b \frac{n_b}{n} \max(\mathrm{acc}_b - \mathrm{conf}_b, 0)
        \quad\text{or, conditional,}\quad \mathrm{mean}(1 - \mathrm{conf} \mid \text{right})

    References are those of :func:`overconfidence`.

    Args:
        probs: Class probabilities of shape ``(n, k)``, with ``labels``.
        labels: Integer classes of shape ``(n,)``.
        definition: ``"binned"``: the sum with :func:`overconfidence` is the expected calibration error of the
            same bins. ``"conditional"``: one minus the mean confidence of the right predictions; NaN if none
            is right.
        n_bins: Number of bins of the binned definition.
        binning: Bins of equal ``"width"`` or of equal ``"mass"``.
        **pairs: ``confidence`` with ``correct`` instead of ``probs``, and ``weights``.

    Example:
        >>> pairs = {"confidence": [0.9, 0.8, 0.6], "correct": [True, False, True]}
        >>> round(underconfidence(n_bins=10, **pairs), 4)
        0.1667
        >>> underconfidence(definition="conditional", **pairs)
        0.25
    """
    if check_choice(definition, "definition", get_args(ConfidencePart)) == "binned":
        bins = top_label_bins(probs, labels, n_bins=n_bins, binning=binning, **pairs)
        return float(bins.underconfident_part())
    outcomes = check_outcomes(probs, labels, **pairs)
    return _mean_of(outcomes, 1 - outcomes.confidence.double(), outcomes.correct)


def _mean_of(outcomes: Outcomes, values: Tensor, chosen: Tensor) -> float:
    """Return the mean of the chosen samples, with their weights; NaN if there are none."""
    return mean(values[chosen], outcomes.counts[chosen])
