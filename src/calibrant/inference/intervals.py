"""Bootstrap intervals: how much a measure would vary if the samples were drawn again."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, stdev
from typing import Any

import numpy as np
import scipy

from calibrant.inference.chance import could_be_calibrated, if_calibrated
from calibrant.inference.draws import RESAMPLES, BinResampler, affordable, resampler_of
from calibrant.inference.rows import (
    as_rows,
    check_finite,
    check_level,
    defined,
    generator,
    n_numbers,
    n_rows,
)
from calibrant.inference.units import ALONE, Spread, Units
from calibrant.inputs import ArrayLike, Floats, Progress, check_count
from calibrant.outcomes import checked_weights, counts_of
from calibrant.threads import few_threads

# An error that is a norm, such as ECE, is positive by chance if the true one is 0. A resample then has the
# noise of the sample and its own: on average it is sqrt(2) times the error of the sample, so the bias of the
# sample itself is 1 / (sqrt(2) - 1) times the step from the sample to its resamples.
_AT_ZERO = 1 + math.sqrt(2)
# A step within two of its own standard errors is the noise of a limited number of resamples.
_NOISE = 2.0


@dataclass(frozen=True)
class Interval:
    """A measure with its bootstrap interval, which contains it.

    Attributes:
        value: The measure of the sample.
        low: Lower end of the interval.
        high: Upper end of the interval.
        level: Share of repeated samples whose interval would cover the value on the population.
        standard_error: Standard deviation of the measure over the resamples.
        n_resamples: Number of resamples on which the measure was defined.
        n_undefined: Number of resamples that were dropped because the measure was NaN or infinite.
    """

    value: float
    low: float
    high: float
    level: float
    standard_error: float
    n_resamples: int
    n_undefined: int


def with_interval(
    metric: Callable[..., Any],
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    logits: ArrayLike | None = None,
    confidence: ArrayLike | None = None,
    correct: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    units: ArrayLike | None = None,
    n_resamples: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
    max_work: int | None = None,
    progress: Progress | None = None,
    **options: Any,  # noqa: ANN401  # the measure's own options
) -> Interval:
    r"""Return a measure with a bootstrap interval.

    The samples are drawn again with replacement ``n_resamples`` times and measured each time. The interval
    is for the value on the population, from which the samples come: the measure of infinitely many of them.
    Samples that depend on each other, such as several answers to one question, are drawn together: see
    ``units``. Resamples of few units, or of very unequal ones, vary too little, so percentiles are then moved
    outwards to those of a t-distribution; :class:`~calibrant.inference.units.Spread` describes this.

    Calibration errors are biased upwards: with few samples, chance adds to them, and more so in resamples,
    which have the chance of the sample and their own. So percentiles of the resampled values are moved by
    their mean distance :math:`b` to the value, and the interval is extended by :math:`(1 + \sqrt 2)\,b`, the
    largest bias that such a step suggests, towards the true value. For a calibration error of the catalogue,
    the interval begins at 0 if a calibrated model with the same predictions reaches the value by chance: in a
    test with hits or labels drawn from the predictions. Means over samples (accuracy, NLL, Brier) have no
    bias and get percentiles.

    The measures of the catalogue are not recomputed from rows. Of means over samples (accuracy, NLL, Brier)
    and binned errors (ECE, MCE) the terms or bin counts are drawn, so many resamples of millions of samples
    take about as long as one pass; ``TermResampler`` and ``BinResampler`` describe the approximations. All
    others are computed from how often a resample contains each sample, with sorting done once and equal
    outcomes counted together; this equals the measure of the drawn rows, but for the smooth calibration error
    and MMCE, whose confidences move to the means of 1,024 cells. Any other function is called once per
    resample.

    Args:
        metric: A measure of this library, or a function with the same arguments that returns a number.
        probs: Class probabilities of shape ``(n, k)``, with ``labels``.
        labels: Integer classes of shape ``(n,)``.
        logits: Instead of ``probs``, for a measure that takes logits.
        confidence: Instead of ``probs``, with ``correct``: confidences of shape ``(n,)``.
        correct: Whether each prediction was right, shape ``(n,)``.
        weights: How much each sample counts, shape ``(n,)``. Samples are drawn with equal probability and
            keep their weights.
        units: An integer for each sample, shape ``(n,)``: samples with equal ones are drawn together. By
            default every sample is drawn alone.
        n_resamples: Number of resamples.
        level: Share of repeated samples whose interval should cover the true value.
        seed: Equal seeds give equal intervals.
        max_work: Limit on the numbers that are computed, about 5 ns each. A measure of the catalogue that
            needs more is resampled less often, but at least 100 times; the result shows how often.
        progress: Called with ``"resamples"``, the number done, and the total.
        **options: Passed to the measure.

    Example:
        >>> from calibrant.metrics import accuracy
        >>> interval = with_interval(accuracy, confidence=[0.9] * 100, correct=[True] * 80 + [False] * 20)
        >>> interval.value, round(interval.low, 2), round(interval.high, 2)
        (0.8, 0.72, 0.88)

    References:
        Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapters 13 and 14.
    """
    n_resamples, level = check_count(n_resamples, "n_resamples", at_least=2), check_level(level)
    rows = as_rows(
        probs=probs, labels=labels, logits=logits, confidence=confidence, correct=correct, weights=weights
    )
    drawn = Units.of(units, n_rows(rows))
    rng = generator(seed)
    with few_threads(n_numbers(rows)):
        resampler = resampler_of(metric, rows, options, drawn)
        value = check_finite(resampler.value)
        n_resamples = affordable(n_resamples, resampler.work, max_work)
        replicates = defined(resampler.replicates(n_resamples, rng, progress))
        low, high = corrected_ends(
            value, replicates, level=level, biased=not resampler.is_mean, spread=resampler.spread
        )
        if low > 0:
            draw = if_calibrated(metric, rows, options, drawn, rng)
            if isinstance(resampler, BinResampler):
                draw = partial(resampler.calibrated, rng)
            if draw is not None and could_be_calibrated(value, draw, level=level):
                low = 0.0
    # What is never negative, or never above 1, on any resample is not so on the population.
    low = max(low, 0.0) if replicates.min() >= 0 else low
    high = min(high, 1.0) if replicates.max() <= 1 else high
    return Interval(
        value=value,
        low=min(low, value),
        high=max(high, value),
        level=level,
        standard_error=float(replicates.std(ddof=1)),
        n_resamples=len(replicates),
        n_undefined=n_resamples - len(replicates),
    )


def corrected_ends(
    value: float,
    replicates: Floats,
    *,
    level: float,
    biased: bool = True,
    floor: float = 0.0,
    spread: Spread = ALONE,
) -> tuple[float, float]:
    r"""Return the ends of an interval that contains its estimate and allows for its bias.

    With the mean step :math:`b` from the estimate to its resamples, percentiles are moved by :math:`-b`, so
    they surround the estimate. The bias of the estimate itself is unknown: about :math:`b` if the true value
    is far from a limit such as 0, up to :math:`(1 + \sqrt 2)\,b` if it is there, and none if the estimate is
    corrected already. The interval is extended by the largest of these, on the side of the true value only.

    Args:
        value: The estimate.
        replicates: The estimates of resamples, all finite.
        level: Level of the interval.
        biased: False for means over samples: their interval has plain percentiles as its ends.
        floor: The bias for calibrated models, if it is known.
        spread: What resamples of few units do not show.
    """
    low, high = spread.widened(np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2]), replicates)
    down, up = _shifts(value, replicates, floor) if biased else (0.0, 0.0)
    return min(float(low) - down, value), max(float(high) - up, value)


def two_sided_p_value(
    value: float, replicates: Floats, *, biased: bool = True, floor: float = 0.0, spread: Spread = ALONE
) -> float:
    """Return the smallest ``1 - level`` at which :func:`corrected_ends` of a difference exclude 0."""
    if value == 0:
        return 1.0
    down, up = _shifts(value, replicates, floor) if biased else (0.0, 0.0)
    replicates = spread.widened(replicates, replicates)
    beyond = np.count_nonzero(replicates <= down) if value > 0 else np.count_nonzero(replicates >= up)
    return min(1.0, 2 * (1 + int(beyond)) / (1 + len(replicates)))


def _shifts(value: float, replicates: Floats, floor: float) -> tuple[float, float]:
    """Return how far the lower and the upper percentile are moved down."""
    bias = float(replicates.mean()) - value
    if abs(bias) <= _NOISE * replicates.std(ddof=1) / math.sqrt(len(replicates)):
        bias = 0.0
    return bias + max(0.0, _AT_ZERO * bias, floor), bias + min(0.0, _AT_ZERO * bias, floor)


def wilson_interval(share: float, n: float, *, level: float = 0.95) -> tuple[float, float]:
    """Return Wilson's interval of a probability, which also works for shares of 0 and 1.

    Args:
        share: The share of ``n`` independent samples that was observed.
        n: Number of samples, or their effective number.
        level: Share of repeated samples whose interval would cover the probability, about.

    Example:
        >>> low, high = wilson_interval(0.0, 100)
        >>> round(low, 3), round(high, 3)
        (0.0, 0.037)

    References:
        Wilson, "Probable inference, the law of succession, and statistical inference", JASA 1927.
    """
    z = float(scipy.special.ndtri((1 + check_level(level)) / 2))
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def t_interval(values: Sequence[float], *, level: float = 0.95) -> tuple[float, float]:
    """Return the t-interval of the mean of independent values, such as gains of several training runs.

    One value alone shows no variation, so its interval is the whole line.

    Example:
        >>> [round(end, 3) for end in t_interval([1.0, 2.0, 3.0])]
        [-0.484, 4.484]
    """
    if len(values) < 2:
        return -math.inf, math.inf
    quantile = float(scipy.special.stdtrit(len(values) - 1, (1 + check_level(level)) / 2))
    mean, half = fmean(values), quantile * stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half


def mean_with_error(
    terms: Floats, *, weights: ArrayLike | None = None, units: ArrayLike | None = None
) -> tuple[float, float]:
    """Return the mean of terms, by weight, and its standard error, which treats units as independent.

    Example:
        >>> mean, error = mean_with_error(np.array([1.0, 2.0, 3.0, 4.0]))
        >>> mean, round(error, 4)
        (2.5, 0.6455)
        >>> round(mean_with_error(np.array([1.0, 1.0, 4.0, 4.0]), units=[0, 0, 1, 1])[1], 4)
        1.5
    """
    w = counts_of(checked_weights(weights, len(terms)), len(terms)).numpy(force=True)
    drawn = Units.of(units, len(terms))
    mean, sizes = float(w @ terms / w.sum()), drawn.sums(w)
    n = sizes.sum() ** 2 / np.square(sizes).sum()  # the effective number of units
    squares = float(np.square(drawn.sums(w * (terms - mean))).sum())
    return mean, math.sqrt(n / max(n - 1, 1e-9) * squares) / float(sizes.sum())


def effective_rows(
    values: Floats, *, weights: ArrayLike | None = None, units: ArrayLike | None = None, level: float = 0.95
) -> float:
    r"""Return how many independent rows would leave as much open about a mean as these rows do.

    Without units it is the number of rows, or their effective number if they have weights. With units it is
    the variance of a row over that of the mean by unit, and reduced by the square of the ratio of quantiles
    of the normal and the t-distribution if units are few (Korn and Graubard) or values are rare. It is never
    below the effective number of units, that of rows which are copies. If all values are equal, their
    dependence is unknown, and it is that number.

    Args:
        values: A number for each row, such as whether it is right.
        weights: How much each row counts.
        units: An integer for each row; rows with equal ones depend on each other.
        level: Level of the interval that is made with it, such as that of :func:`wilson_interval`.

    Example:
        >>> effective_rows(np.array([1.0, 0.0, 1.0, 1.0]))
        4.0
        >>> effective_rows(np.ones(6), units=[0, 0, 0, 1, 1, 1])
        2.0

    References:
        Korn and Graubard, "Confidence intervals for proportions with small expected number of positive counts
        estimated from survey data", Survey Methodology 1998.
    """
    w = counts_of(checked_weights(weights, len(values)), len(values)).numpy(force=True)
    drawn, rows = Units.of(units, len(values), at_least=1), float(w.sum())
    if drawn.are_rows:
        return rows
    sizes = drawn.sums(w)
    copies = rows**2 / float(sizes @ sizes)
    away = values - w @ values / rows
    variance = float(w @ np.square(away)) / rows
    if variance == 0 or drawn.n == 1:
        return copies
    squares = float(np.square(drawn.sums(w * away)).sum())
    spread = drawn.spread(values, w)
    # The variance of a square over the square of its mean: 2 for normal values, more for rare ones.
    unsure = max(2.0, float(w @ away**4) / rows / variance**2 - 1)
    ratio = replace(spread, degrees=max(spread.degrees * 2 / unsure, 1.0)).ratio(level)
    return min(rows, max(copies, variance * rows**2 / max(squares, 1e-300) / ratio**2))
