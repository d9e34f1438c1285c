"""Bootstrap intervals: how much a measure would vary if the samples were drawn again."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from scipy.special import ndtr, ndtri

from calibrant.inputs import ArrayLike, Floats, Progress, check_choice, check_count
from calibrant.metrics.names import measure_of
from calibrant.metrics.resampling.bins import BinResampler
from calibrant.metrics.resampling.bootstrap import Resampler, check_finite, check_level, defined
from calibrant.metrics.resampling.calibrated import could_be_calibrated, if_calibrated
from calibrant.metrics.resampling.counts import CountResampler, bin_options, weighted_of
from calibrant.metrics.resampling.ends import corrected_ends
from calibrant.metrics.resampling.rows import (
    RowResampler,
    Rows,
    as_rows,
    call,
    generator,
    in_rows,
    in_samples,
    n_numbers,
)
from calibrant.metrics.resampling.terms import term_resampler
from calibrant.metrics.resampling.weighted import by_row
from calibrant.outcomes import check_outcomes
from calibrant.threads import few_threads

IntervalMethod: TypeAlias = Literal["corrected", "percentile", "bca"]

# Up to this many samples, rows are drawn even for binned measures: this is exact and fast enough.
_FEW = 10_000


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
        method: ``"corrected"``, ``"percentile"`` or ``"bca"``.
    """

    value: float
    low: float
    high: float
    level: float
    standard_error: float
    n_resamples: int
    n_undefined: int
    method: IntervalMethod


def with_interval(
    metric: Callable[..., Any],
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    logits: ArrayLike | None = None,
    confidence: ArrayLike | None = None,
    correct: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    n_resamples: int = 1000,
    level: float = 0.95,
    per_row: int = 1,
    method: IntervalMethod = "corrected",
    seed: int = 0,
    max_work: int | None = None,
    progress: Progress | None = None,
    **options: Any,  # noqa: ANN401  # the measure's own options
) -> Interval:
    r"""Return a measure with a bootstrap interval.

    The samples are drawn again with replacement ``n_resamples`` times and measured each time. The interval
    is for the value on the population, from which the samples come: the measure of infinitely many of them.

    Calibration errors are biased upwards: with few samples, chance adds to them, and more so in resamples,
    which have the chance of the sample and their own. ``"corrected"`` allows for this. Percentiles of the
    resampled values are moved by their mean distance :math:`b` to the value, and the interval is extended by
    :math:`(1 + \sqrt 2)\,b`, the largest bias that such a step suggests, towards the true value. For a
    calibration error of the catalogue, the interval begins at 0 if a calibrated model with the same
    predictions reaches the value by chance: in a test with hits or labels drawn from the predictions. Means
    over samples (accuracy, NLL, Brier) have no bias and get percentiles.

    ``"percentile"`` spans the middle of the resampled values. ``"bca"`` moves its ends to correct for bias,
    :math:`z_0`, and for skewness, :math:`a`, which is estimated by a jackknife:

    .. math:: \alpha \mapsto \Phi\Big(z_0 + \frac{z_0 + z_\alpha}{1 - a (z_0 + z_\alpha)}\Big)

    Both miss the population's value of a biased measure far more often than their level says. Where they
    would exclude the value itself, they are widened to contain it.

    The measures of the catalogue are not recomputed from rows. Of means over samples (accuracy, NLL, Brier)
    and binned errors (ECE, MCE) the terms or bin counts are drawn, so many resamples of millions of samples
    take about as long as one pass; ``resampling.terms`` and ``resampling.bins`` describe the approximations.
    All others are computed from how often a resample contains each sample, with sorting done once; this
    equals the measure of the drawn rows. The linear SKCE is a mean over pairs, so its pairs are drawn. Any
    other function is called once per resample.

    Args:
        metric: A measure of this library, or a function with the same arguments that returns a number.
        probs: Class probabilities of shape ``(n, k)``, with ``labels``.
        labels: Integer classes of shape ``(n,)``.
        logits: Instead of ``probs``, for a measure that takes logits.
        confidence: Instead of ``probs``, with ``correct``: confidences of shape ``(n,)``.
        correct: Whether each prediction was right, shape ``(n,)``.
        weights: How much each sample counts, shape ``(n,)``. Samples are drawn with equal probability and
            keep their weights.
        n_resamples: Number of resamples.
        level: Share of repeated samples whose interval should cover the true value.
        per_row: Number of samples in succession that are drawn together because they are not independent,
            such as the labels of one picture.
        method: ``"percentile"`` or ``"bca"``.
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
        Efron, "Better bootstrap confidence intervals", JASA 1987.
        Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapters 13 and 14.
    """
    n_resamples, level = check_count(n_resamples, "n_resamples", at_least=2), check_level(level)
    check_choice(method, "method", get_args(IntervalMethod))
    rows = as_rows(
        probs=probs, labels=labels, logits=logits, confidence=confidence, correct=correct, weights=weights
    )
    rng = generator(seed)
    with few_threads(n_numbers(rows)):
        resampler = _resampler(metric, rows, options, check_count(per_row, "per_row"))
        value = check_finite(resampler.value)
        n_resamples = resampler.affordable(n_resamples, max_work)
        replicates = defined(resampler.replicates(n_resamples, rng, progress))
        if method == "corrected":
            low, high = corrected_ends(value, replicates, level=level, biased=not resampler.is_mean)
            draw = if_calibrated(metric, rows, options, rng)
            if isinstance(resampler, BinResampler):
                draw = partial(resampler.calibrated, rng)
            if low > 0 and draw is not None and could_be_calibrated(value, draw, level=level):
                low = 0.0
        else:
            tails = np.array([(1 - level) / 2, (1 + level) / 2])
            if method == "bca":
                tails = _bca(tails, _share_below(replicates, value), *resampler.jackknife(rng))
            low, high = np.quantile(replicates, tails).tolist()
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
        method=method,
    )


def _resampler(metric: Callable[..., Any], rows: Rows, options: Mapping[str, Any], per_row: int) -> Resampler:
    measure, together = measure_of(metric), in_rows(rows, per_row)
    terms = term_resampler(measure, rows, options, per_row=per_row)
    if terms is not None:
        return terms
    if measure is not None and measure.of_bins is not None and "weights" not in rows:
        bins, outcomes = bin_options(measure, options), check_outcomes(**rows)
        if len(outcomes) > _FEW and bins is not None and per_row == 1:
            return BinResampler.from_outcomes(outcomes, measure.of_bins, **bins)
        rows = {"confidence": outcomes.confidence, "correct": outcomes.correct}
    value = call(metric, rows, options)
    weighted = weighted_of(measure, rows, options)
    if weighted is not None:
        return CountResampler(value, by_row(weighted, per_row))
    return RowResampler(lambda drawn: call(metric, in_samples(drawn, per_row), options), together)


def _share_below(replicates: Floats, value: float) -> float:
    """Return the share of replicates below the value, ties by half; always above 0 and below 1."""
    share = float(((replicates < value).mean() + (replicates <= value).mean()) / 2)
    return min(max(share, 0.5 / len(replicates)), 1 - 0.5 / len(replicates))


def _bca(tails: Floats, share_below: float, left_out: Floats, weight: Floats) -> Floats:
    """Return the corrected tails: the quantiles of the replicates at which the interval ends."""
    finite = np.isfinite(left_out)
    left_out, weight = left_out[finite], weight[finite]
    influence = np.average(left_out, weights=weight) - left_out
    spread = float(weight @ influence**2)
    acceleration = float(weight @ influence**3) / (6 * spread**1.5) if spread > 0 else 0.0
    bias = ndtri(share_below)
    z = bias + ndtri(tails)
    # Where the denominator would vanish, the interval ends at the most extreme replicate.
    shares: Floats = ndtr(bias + z / np.maximum(1 - acceleration * z, 1e-12))
    return shares


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
    z = float(ndtri((1 + check_level(level)) / 2))
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)
