"""Intervals of a window: all its measures from the same resamples, drawn once."""

from dataclasses import replace
from typing import TypeAlias

import numpy as np

from calibrant.bins import equal_width_index
from calibrant.inputs import Floats
from calibrant.metrics.binned import expected_calibration_error
from calibrant.metrics.intervals import Interval, with_interval
from calibrant.metrics.resampling.rows import generator
from calibrant.metrics.resampling.terms import TermResampler

Measured: TypeAlias = tuple[list[Interval], Interval]

LEVEL = 0.95
RESAMPLES = 200

# Above this many rows, bins and cells are drawn instead of rows, which then costs less.
_FEW = 1 << 15
_BLOCK = 1 << 20


def with_intervals(terms: Floats, correct: Floats, confidence: Floats, *, n_bins: int, seed: int) -> Measured:
    """Return the mean of each row of ``terms`` and the ECE, with 95 % intervals.

    Args:
        terms: Terms of the means, shape ``(m, n)``, all finite.
        correct: Hits of shape ``(n,)``.
        confidence: Confidences of shape ``(n,)``.
        n_bins: Number of bins of equal width.
        seed: Equal seeds give equal intervals.
    """
    if len(confidence) > _FEW:
        return _of_many(terms, correct, confidence, n_bins=n_bins, seed=seed)
    gaps = np.zeros((n_bins, len(confidence)))
    gaps[equal_width_index(confidence, n_bins), np.arange(len(confidence))] = correct - confidence
    ece = float(np.abs(gaps.sum(axis=1)).sum()) / len(confidence)
    drawn = _means(np.concatenate([terms, gaps]), seed)
    means = [
        _interval(float(of.mean()), means) for of, means in zip(terms, drawn.T[: len(terms)], strict=True)
    ]
    return means, _widened(_interval(ece, np.abs(drawn[:, len(terms) :]).sum(axis=1)))


def _means(terms: Floats, seed: int) -> Floats:
    """Return the means of all terms in each resample, shape ``(resamples, terms)``."""
    rng, n = generator(seed), terms.shape[1]
    step = max(1, _BLOCK // n)
    blocks = []
    for start in range(0, RESAMPLES, step):
        size = min(step, RESAMPLES - start)
        rows = rng.integers(n, size=(size, n)) + n * np.arange(size)[:, None]
        # How often each row was drawn makes a mean a product, and one product serves all terms.
        times = np.bincount(rows.ravel(), minlength=size * n).reshape(size, n)
        blocks.append(times.astype(np.float64) @ terms.T / n)
    return np.concatenate(blocks)


def _of_many(terms: Floats, correct: Floats, confidence: Floats, *, n_bins: int, seed: int) -> Measured:
    resamplers = [TermResampler(of) for of in terms]
    means = [_interval(r.value, r.replicates(RESAMPLES, generator(seed))) for r in resamplers]
    ece = with_interval(
        expected_calibration_error,
        confidence=confidence,
        correct=correct == 1,
        n_bins=n_bins,
        n_resamples=RESAMPLES,
        level=LEVEL,
        seed=seed,
    )
    return means, _widened(ece)


def _interval(value: float, drawn: Floats) -> Interval:
    low, high = (float(end) for end in np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    return Interval(value, low, high, LEVEL, float(drawn.std(ddof=1)), len(drawn), 0, "percentile")


def _widened(found: Interval) -> Interval:
    """Let an interval contain its value: resampling adds noise, and may only give larger errors."""
    return replace(found, low=min(found.low, found.value), high=max(found.high, found.value))
