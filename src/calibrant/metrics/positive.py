"""Two classes: how often the positive one is found, and how honest its probability is.

The positive class is the second one, class 1. Accuracy and top-label errors hardly see a rare class; these
measures are about it alone. They also take the confidences of a black box with ``correct``, where being right
is positive.
"""

import math
from collections.abc import Callable
from typing import Unpack

import numpy as np
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, Floats, check_labelled_probs, check_number
from calibrant.metrics.counted import Counts, Ordered, Weighted
from calibrant.outcomes import Outcomes, Pairs, check_outcomes, checked_weights, log_odds

# Newton's method for two parameters, and halvings of its steps: it settles in about ten.
_STEPS = 25
_SETTLED = 1e-9
# Points at which the curve of the outcomes is estimated, and the share of samples that each one sees.
_POINTS, _SPAN = 50, 0.75
# Halvings that find the distance within which that share lies.
_HALVINGS = 50
_SLACK = 1e-9


def base_rate(
    probs: ArrayLike | None = None, labels: ArrayLike | None = None, **pairs: Unpack[Pairs]
) -> float:
    """Return the share of the positive class.

    Example:
        >>> base_rate([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.6, 0.4]], [0, 1, 0, 0])
        0.25
    """
    return base_rate_weights(probs, labels, **pairs).value


def recall(probs: ArrayLike | None = None, labels: ArrayLike | None = None, **pairs: Unpack[Pairs]) -> float:
    """Return the share of positive samples with a probability above one half; NaN if there are none.

    Example:
        >>> recall([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.6, 0.4]], [0, 1, 1, 0])
        0.5
    """
    return recall_weights(probs, labels, **pairs).value


def precision(
    probs: ArrayLike | None = None, labels: ArrayLike | None = None, **pairs: Unpack[Pairs]
) -> float:
    """Return the share of samples predicted as positive that are; NaN if none is predicted.

    Example:
        >>> precision([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7], [0.6, 0.4]], [0, 1, 0, 0])
        0.5
    """
    return precision_weights(probs, labels, **pairs).value


def average_precision(
    probs: ArrayLike | None = None, labels: ArrayLike | None = None, **pairs: Unpack[Pairs]
) -> float:
    r"""Return the mean precision over the positive samples, each at the threshold that just includes it.

    .. math:: \mathrm{AP} = \sum_t (R_t - R_{t-1})\, P_t

    for precision and recall at each distinct probability, from the highest down. A model that cannot tell
    the classes apart has the base rate. NaN if there are no positive samples.

    Example:
        >>> average_precision([[0.2, 0.8], [0.4, 0.6], [0.7, 0.3]], [1, 0, 1])
        0.8333333333333333
    """
    return average_precision_weights(probs, labels, **pairs).value


def net_benefit(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    threshold: float = 0.1,
    **pairs: Unpack[Pairs],
) -> float:
    r"""Return what acting on probabilities of at least a threshold gains, in true positives per sample.

    .. math:: \mathrm{NB}(t) = \frac{TP}{n} - \frac{FP}{n} \cdot \frac{t}{1 - t}

    A threshold of 10 % means that one missed positive is as bad as nine false alarms. Acting on nobody
    gains 0; acting on everybody gains the value for probabilities of 1.

    Args:
        probs: Probabilities of both classes of shape ``(n, 2)``, or ``(n,)`` for class 1.
        labels: The classes, 0 and 1.
        threshold: The probability from which on one acts.
        **pairs: ``confidence`` and ``correct`` instead of the first two, and ``weights``.

    Example:
        >>> round(net_benefit([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], [0, 1, 0], threshold=0.2), 3)
        0.25

    References:
        Vickers and Elkin, "Decision curve analysis", Medical Decision Making 2006.
    """
    return net_benefit_weights(probs, labels, threshold=threshold, **pairs).value


def calibration_slope(
    probs: ArrayLike | None = None, labels: ArrayLike | None = None, **pairs: Unpack[Pairs]
) -> float:
    r"""Return the slope of a logistic regression of the outcome on the log-odds of the positive class.

    1 is calibrated; below 1 probabilities are too extreme, above 1 too timid. NaN if all outcomes or all
    probabilities are equal, or if the probabilities separate the outcomes: no probability of one outcome is
    above any of the other. Probabilities are rounded to one in a million, at least and at most that far
    from 0 and 1.

    Example:
        >>> p = [0.1] * 10 + [0.9] * 10
        >>> y = [0] * 8 + [1] * 2 + [1] * 8 + [0] * 2
        >>> round(calibration_slope([[1 - each, each] for each in p], y), 2)
        0.63

    References:
        Cox, "Two further applications of a model for binary regression", Biometrika 1958.
    """
    return calibration_slope_weights(probs, labels, **pairs).value


def calibration_intercept(
    probs: ArrayLike | None = None, labels: ArrayLike | None = None, **pairs: Unpack[Pairs]
) -> float:
    """Return the shift of the log-odds that makes the mean probability equal to the base rate.

    0 is calibrated in the large; a negative shift means that probabilities of the positive class are too
    high. NaN if all outcomes are equal.

    Example:
        >>> round(calibration_intercept([[0.5, 0.5]] * 4, [1, 0, 0, 0]), 4)  # the log-odds of a quarter
        -1.0986
    """
    return calibration_intercept_weights(probs, labels, **pairs).value


def integrated_calibration_index(
    probs: ArrayLike | None = None, labels: ArrayLike | None = None, **pairs: Unpack[Pairs]
) -> float:
    """Return the mean distance of the probability of the positive class to a smooth curve of the outcomes.

    The curve is a local linear regression at 50 quantiles of the probability, each over the nearest three
    quarters of the samples with falling (tricube) weights. It needs no bins, but smooths away what happens
    within a small range of probabilities.

    Example:
        >>> p = np.linspace(0.05, 0.95, 200)
        >>> outcome = np.random.default_rng(0).random(200) < p
        >>> integrated_calibration_index(np.stack([1 - p, p], axis=1), outcome.astype(int)) < 0.1
        True

    References:
        Austin and Steyerberg, "The Integrated Calibration Index (ICI) and related metrics", Statistics in
        Medicine 2019.
    """
    return integrated_calibration_index_weights(probs, labels, **pairs).value


def _of_counts(
    measure: Callable[[Outcomes], Callable[[Counts], Floats]], *, times: int = 2
) -> Callable[..., Weighted]:
    """Return a measure of (probability, positive) as a function of how often each sample is counted."""

    def weighted(
        probs: ArrayLike | None = None, labels: ArrayLike | None = None, **pairs: Unpack[Pairs]
    ) -> Weighted:
        seen = positive_outcomes(probs, labels, **pairs)
        weights = checked_weights(pairs.get("weights"), len(seen))
        return Weighted(len(seen), measure(seen), held=times * len(seen), weights=weights)

    return weighted


def positive_outcomes(
    probs: ArrayLike | None = None, labels: ArrayLike | None = None, **pairs: Unpack[Pairs]
) -> Outcomes:
    """Return the probability of the positive class and whether it came true."""
    if probs is None or labels is None:
        given = {name: each for name, each in pairs.items() if name != "weights"}
        return check_outcomes(probs, labels, **given)  # type: ignore[arg-type]  # the pairs without weights
    p, y = check_labelled_probs(probs, labels)
    if p.shape[1] != 2:
        raise InputError(f"probs: expected two classes, got {p.shape[1]}; the positive one is the second")
    return Outcomes(p[:, 1], y == 1)


def _arrays(seen: Outcomes) -> tuple[Floats, Floats]:
    return seen.confidence.double().cpu().numpy(), seen.correct.double().cpu().numpy()


def _ratio(part: Counts, whole: Counts) -> Floats:
    return np.asarray(np.divide(part, whole, out=np.full(len(part), math.nan), where=whole > 0))


def _share_of_positives(seen: Outcomes) -> Callable[[Counts], Floats]:
    _, y = _arrays(seen)
    return lambda counts: np.asarray(counts @ y / counts.sum(axis=1))


def _recall(seen: Outcomes) -> Callable[[Counts], Floats]:
    p, y = _arrays(seen)
    return lambda counts: _ratio(counts @ (y * (p > 0.5)), counts @ y)


def _precision(seen: Outcomes) -> Callable[[Counts], Floats]:
    p, y = _arrays(seen)
    return lambda counts: _ratio(counts @ (y * (p > 0.5)), counts @ (p > 0.5).astype(np.float64))


def _average_precision(seen: Outcomes) -> Callable[[Counts], Floats]:
    ordered = Ordered.from_outcomes(seen)

    def values(counts: Counts) -> Floats:
        ranking = ordered.ranking(counts)
        hits, seen_so_far = np.cumsum(ranking.hits, axis=1), np.cumsum(ranking.count, axis=1)
        precisions = np.divide(hits, seen_so_far, out=np.zeros(hits.shape), where=seen_so_far > 0)
        return _ratio((ranking.hits * precisions).sum(axis=1), hits[:, -1].astype(np.float64))

    return values


def net_benefit_weights(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    threshold: float = 0.1,
    **pairs: Unpack[Pairs],
) -> Weighted:
    """Return :func:`net_benefit` as a function of counts."""
    if not check_number(threshold, "threshold") < 1:
        raise InputError(f"threshold: expected a number between 0 and 1, got {threshold}")

    def measure(seen: Outcomes) -> Callable[[Counts], Floats]:
        p, y = _arrays(seen)
        gain = (p >= threshold) * (y - (1 - y) * threshold / (1 - threshold))
        return lambda counts: np.asarray(counts @ gain / counts.sum(axis=1))

    return _of_counts(measure)(probs, labels, **pairs)


def _slope(seen: Outcomes) -> Callable[[Counts], Floats]:
    """Return the slope of a logistic regression on the log-odds, by Newton's method."""
    s, (_, y) = log_odds(seen.confidence).cpu().numpy(), _arrays(seen)
    width = float(s.std()) or 1.0
    z = (s - float(s.mean())) / width

    def losses(w: Floats, a: Floats, b: Floats) -> Floats:
        line = a[:, None] + b[:, None] * z
        return np.asarray((w * (np.logaddexp(0, line) - y * line)).sum(axis=1))

    def values(counts: Counts) -> Floats:
        w = counts / counts.sum(axis=1, keepdims=True)
        a, b = np.zeros(len(counts)), np.zeros(len(counts))
        with np.errstate(all="ignore"):
            loss = losses(w, a, b)
            for _ in range(_STEPS):
                p = 1 / (1 + np.exp(-(a[:, None] + b[:, None] * z)))
                error, curve = w * (y - p), w * p * (1 - p)
                g0, g1, h0, h1, h2 = error.sum(1), error @ z, curve.sum(1), curve @ z, curve @ z**2
                det = h0 * h2 - h1**2
                step_a, step_b = (h2 * g0 - h1 * g1) / det, (h0 * g1 - h1 * g0) / det
                for _ in range(_STEPS):  # a whole step may go too far
                    worse = losses(w, a + step_a, b + step_b) > loss + 1e-14
                    if not worse.any():
                        break
                    step_a, step_b = (np.where(worse, each / 2, each) for each in (step_a, step_b))
                a, b = a + step_a, b + step_b
                loss = losses(w, a, b)
                if not np.nanmax(np.abs([step_a, step_b]), initial=0.0) > _SETTLED:
                    break
        settled = np.maximum(np.abs(step_a), np.abs(step_b)) < 1e-6
        return np.where(settled & (det > 1e-14), b / width, math.nan)

    return values


def _intercept(seen: Outcomes) -> Callable[[Counts], Floats]:
    """Return the shift that makes the mean probability the base rate, by bisection.

    Newton's method may not settle where almost all probabilities are 0 or 1.
    """
    s, (_, y) = log_odds(seen.confidence).cpu().numpy(), _arrays(seen)
    against = np.exp(-s)

    def values(counts: Counts) -> Floats:
        hits, misses = counts @ y, counts @ (1 - y)
        with np.errstate(all="ignore"):
            level = np.log(hits / misses)
            low, high = level - s.max(), level - s.min()
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                too_high = (counts / (1 + np.exp(-middle)[:, None] * against)).sum(axis=1) > hits
                low, high = np.where(too_high, low, middle), np.where(too_high, middle, high)
        return np.where((hits > 0) & (misses > 0), (low + high) / 2, math.nan)

    return values


def _smooth_distance(seen: Outcomes) -> Callable[[Counts], Floats]:
    """Return the mean distance of the probabilities to a local linear regression of the outcomes."""
    p, y = _arrays(seen)
    grid, place = np.unique(p, return_inverse=True)

    def value(count: Floats) -> float:
        mass, hits = (
            np.bincount(place, each, minlength=len(grid)).astype(np.float64) for each in (count, count * y)
        )
        curve = _local_lines(grid, mass, hits)
        return float(mass @ np.abs(curve - grid) / mass.sum())

    return lambda counts: np.array([value(count.astype(np.float64)) for count in counts])


def _local_lines(grid: Floats, mass: Floats, hits: Floats) -> Floats:
    """Return a local linear regression of hits, at quantiles of a sorted grid and between them."""
    below = np.concatenate([[0.0], mass.cumsum()])
    # A hair less than each share, so that rounding of weights does not decide about ties.
    levels = (np.linspace(0, 1, _POINTS) - _SLACK).clip(_SLACK) * below[-1]
    points = np.unique(grid[np.searchsorted(below[1:], levels)])
    near, reach = np.zeros(len(points)), np.ones(len(points))
    for _ in range(_HALVINGS):
        middle = (near + reach) / 2
        within = below[np.searchsorted(grid, points + middle, "right")]
        enough = within - below[np.searchsorted(grid, points - middle)] >= (_SPAN - _SLACK) * below[-1]
        near, reach = np.where(enough, near, middle), np.where(enough, middle, reach)
    heights = [_line_at(*each, grid, mass, hits) for each in zip(points, 1.0001 * reach, strict=True)]
    return np.asarray(np.interp(grid, points, np.clip(heights, 0, 1)))


def _line_at(point: float, reach: float, grid: Floats, mass: Floats, hits: Floats) -> float:
    """Return the height at a point of the line through the hits near it, by tricube weights."""
    inside = slice(*np.searchsorted(grid, (point - reach, point + reach)))
    offset, mass, hits = grid[inside] - point, mass[inside], hits[inside]
    u = np.abs(offset) / reach
    kernel = np.maximum(1 - u * u * u, 0)
    kernel *= kernel * kernel
    leaning = kernel * offset
    s0, s1, s2 = kernel @ mass, leaning @ mass, (leaning * offset) @ mass
    t0, t1 = kernel @ hits, leaning @ hits
    spread = s0 * s2 - s1 * s1
    return float((s2 * t0 - s1 * t1) / spread if spread > 1e-12 * s0 * s0 else t0 / s0)


base_rate_weights = _of_counts(_share_of_positives)
recall_weights = _of_counts(_recall)
precision_weights = _of_counts(_precision)
average_precision_weights = _of_counts(_average_precision, times=4)
calibration_slope_weights = _of_counts(_slope, times=8)
calibration_intercept_weights = _of_counts(_intercept, times=8)
integrated_calibration_index_weights = _of_counts(_smooth_distance)


def positives(
    probs: ArrayLike | None = None, labels: ArrayLike | None = None, **pairs: Unpack[Pairs]
) -> Tensor:
    """Return 1 for each positive sample, else 0; their mean is the base rate."""
    return positive_outcomes(probs, labels, **pairs).correct.double()
