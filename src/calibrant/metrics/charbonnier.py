"""The smoothed absolute error of the SMART paper: part of an upper bound on the calibration error."""

import math
from typing import Unpack

import numpy as np
import scipy

from calibrant.inputs import ArrayLike, Floats, check_number
from calibrant.metrics.counted import Weighted, mean_weights
from calibrant.outcomes import Outcomes, Pairs, check_outcomes

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(128)
_POINTS_AT_ONCE = 4096


def charbonnier_error(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    lam: float = 200.0,
    delta: float = 1e-3,
    **pairs: Unpack[Pairs],
) -> float:
    r"""Return the smoothed mean absolute error of the confidence: **not a calibration error**.

    .. math:: H_{\lambda,\delta} = \frac{1}{n} \sum_i
        \frac{\int_0^1 e^{-\lambda (p_i - u)^2} \sqrt{(a_i - u)^2 + \delta^2}\,du}
        {\int_0^1 e^{-\lambda (p_i - u)^2}\,du}

    This is exactly Eq. (6) of the paper, with a uniform reference density. The absolute value is taken for
    each sample, so errors of opposite sign never cancel: a perfectly calibrated model with confidence 0.7
    scores 0.42. Raising every confidence to 1 lowers this to 0.32, while the calibration error rises from 0
    to 0.3. Do not train on it and do not rank models by it. It serves Theorem 3.1:
    ``smooth_calibration_error <= H + 2 * smoothing_bias(lam)``.

    Args:
        probs: Class probabilities of shape ``(n, k)``; only the predicted class is measured.
        labels: Integer classes of shape ``(n,)``.
        confidence: Confidences of shape ``(n,)``, with ``correct``, instead of ``probs``.
        correct: Whether each prediction was right, shape ``(n,)``.
        lam: Sharpness of the kernel; its standard deviation is ``1 / sqrt(2 * lam)``.
        delta: Scale on which the absolute value is smoothed around 0; with 0 it is not smoothed.

    Example:
        >>> always_70 = [0.7] * 10
        >>> always_100 = [1.0] * 10
        >>> correct = [1] * 7 + [0] * 3
        >>> round(charbonnier_error(confidence=always_70, correct=correct), 3)
        0.42
        >>> round(charbonnier_error(confidence=always_100, correct=correct), 3)
        0.316

    References:
        "Sample margin-aware recalibration of temperature", Eq. (6) and Theorem 3.1.
    """
    check_number(lam, "lam")
    check_number(delta, "delta", at_least=0)
    return charbonnier_weights(probs, labels, lam=lam, delta=delta, **pairs).value


def charbonnier_weights(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    lam: float = 200.0,
    delta: float = 1e-3,
    **pairs: Unpack[Pairs],
) -> Weighted:
    """Return :func:`charbonnier_error` as a function of counts: it is a mean over samples."""
    outcomes = check_outcomes(probs, labels, **pairs)
    return mean_weights(_terms(outcomes, lam, delta), outcomes.weights)


def smoothing_bias(lam: float = 200.0) -> float:
    r"""Return the largest mean distance by which the kernel of :func:`charbonnier_error` moves a confidence.

    .. math:: B_\lambda = \sup_p \frac{\int_0^1 |p - u|\, e^{-\lambda (p - u)^2} du}
        {\int_0^1 e^{-\lambda (p - u)^2} du}
        = \frac{1 - e^{-\lambda}}{\sqrt{\pi\lambda}\,\mathrm{erf}\sqrt\lambda}

    With a uniform reference density both integrals are elementary, and the maximum is at 0 and 1. See
    :func:`smoothing_bias_bound` for other densities.

    Example:
        >>> round(smoothing_bias(200.0), 6)
        0.039894
    """
    check_number(lam, "lam")
    # With s = sqrt(lam), x = s p and y = s (1 - p) the ratio is (A(x) + A(y)) / (E(x) + E(y)) / sqrt(pi lam),
    # where A(x) = 1 - exp(-x^2) and E = erf. It lies between A(x) / E(x) and A(y) / E(y). A / E rises since
    # A' / E' = sqrt(pi) x does, and x and y are at most s, which is reached at p = 0 and p = 1.
    return -math.expm1(-lam) / (math.sqrt(math.pi * lam) * math.erf(math.sqrt(lam)))


def smoothing_bias_bound(lam: float = 200.0, *, kappa: float = 1.0) -> float:
    r"""Return an upper bound on the smoothing bias, for densities that vary by at most a factor ``kappa``.

    .. math:: B_\lambda \le \min\Big(1, \frac{2\kappa}{\sqrt{\pi\lambda}\,\mathrm{erf}\sqrt\lambda}\Big)
        \le \frac{1.339\,\kappa}{\sqrt\lambda} \quad (\lambda \ge 1)

    Example:
        >>> round(smoothing_bias_bound(200.0), 6)
        0.079788
    """
    check_number(lam, "lam")
    check_number(kappa, "kappa", at_least=1)
    return min(1.0, 2 * kappa / (math.sqrt(math.pi * lam) * math.erf(math.sqrt(lam))))


def _terms(outcomes: Outcomes, lam: float, delta: float) -> Floats:
    """Return the smoothed distance between the confidence and the outcome of each sample."""
    p, hits = outcomes.confidence.double().cpu().numpy(), outcomes.correct.cpu().numpy()
    terms = np.empty(len(p))
    for target, inside in ((0.0, ~hits), (1.0, hits)):
        terms[inside] = _smoothed_distance(p[inside], target, lam, delta)
    return terms


def _smoothed_distance(p: Floats, target: float, lam: float, delta: float) -> Floats:
    """Return the kernel mean of ``sqrt((target - u)^2 + delta^2)`` around each confidence."""
    # It is smooth in p on the scale of the kernel: a spline with 64 knots per standard deviation is accurate.
    knots = np.linspace(0.0, 1.0, 64 * math.ceil(math.sqrt(2 * lam)) + 1)
    if len(p) > len(knots):
        smooth: Floats = scipy.interpolate.CubicSpline(knots, _smoothed_distance(knots, target, lam, delta))(
            p
        )
        return smooth
    values = np.empty(len(p))
    for start in range(0, len(p), _POINTS_AT_ONCE):
        here = p[start : start + _POINTS_AT_ONCE, None]
        # Beyond 6 / sqrt(lam) the kernel is below the precision of float64.
        low, high = (here - 6 / math.sqrt(lam)).clip(min=0.0), (here + 6 / math.sqrt(lam)).clip(max=1.0)
        u = (low + high) / 2 + (high - low) / 2 * _NODES
        kernel = _WEIGHTS * np.exp(-lam * (here - u) ** 2)
        distance = np.hypot(target - u, delta)
        values[start : start + _POINTS_AT_ONCE] = (kernel * distance).sum(axis=1) / kernel.sum(axis=1)
    return values
