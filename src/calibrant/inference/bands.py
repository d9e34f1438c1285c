"""Bootstrap bands of reliability diagrams: how much of each part is due to chance."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from calibrant.bins import Bins
from calibrant.errors import InputError
from calibrant.inference.draws import RESAMPLES
from calibrant.inference.intervals import effective_rows
from calibrant.inference.rows import check_level, generator
from calibrant.inference.units import ALONE, Spread, Units
from calibrant.inputs import ArrayLike, Floats, Progress, check_count
from calibrant.outcomes import Outcomes, check_outcomes

AccuracyCurve: TypeAlias = Callable[..., Tensor]


@dataclass(frozen=True, eq=False)
class Band:
    """The range of the accuracy over most resamples, which contains that of the sample; float64 on the CPU.

    Attributes:
        low: Lower end at each bin, or at each point of a curve; NaN where too few resamples have a value.
        high: Upper end.
        level: Share of the resamples within the band at each place.
        n_resamples: Number of resamples.
    """

    low: Tensor
    high: Tensor
    level: float
    n_resamples: int


def accuracy_band(
    bins: Bins,
    *,
    n_resamples: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
    sizes: Tensor | None = None,
) -> Band:
    """Bootstrap the accuracy of each bin, from the counts of the bins alone.

    The numbers of misses and hits in the bins of a resample are multinomial, so no rows are drawn; the edges
    are fixed. A bootstrap only repeats observed outcomes: the band of a bin without any miss has zero width,
    even if the bin has few samples.

    Args:
        bins: Bins of one set of predictions.
        n_resamples: Number of resamples.
        level: Share of the resamples within the band in each bin.
        seed: Equal seeds give equal bands.
        sizes: If samples have weights or units, the effective number of samples in each bin: as many are
            drawn.

    Example:
        >>> from calibrant.bins import top_label_bins
        >>> bins = top_label_bins(confidence=[0.9] * 100, correct=[True] * 80 + [False] * 20, n_bins=1)
        >>> band = accuracy_band(bins)
        >>> round(float(band.low), 2), round(float(band.high), 2)
        (0.72, 0.88)
    """
    if bins.count.ndim != 1:
        raise InputError(
            f"bins: expected the bins of one set of predictions, got shape {tuple(bins.count.shape)}"
        )
    n_resamples = check_count(n_resamples, "n_resamples", at_least=2)
    if sizes is not None:
        trials = torch.where(bins.count > 0, sizes.round().clamp(min=1), 0).long().numpy()
        shares = bins.accuracy.nan_to_num(0.0).clamp(0, 1).numpy()
        hits = generator(seed).binomial(trials, shares, size=(n_resamples, len(trials)))
        drawn = np.where(trials > 0, hits / np.maximum(trials, 1), np.nan)
        return _band(drawn, bins.accuracy.numpy(), level)
    hits = bins.correct_sum.numpy()
    cells = np.concatenate([bins.count.numpy() - hits, hits])
    drawn = generator(seed).multinomial(bins.n, cells / cells.sum(), size=n_resamples)
    misses, hits = np.split(drawn, 2, axis=1)
    count = hits + misses
    accuracy = np.where(count > 0, hits / np.maximum(count, 1), np.nan)
    return _band(accuracy, bins.accuracy.numpy(), level)


def effective_size(outcomes: Outcomes, *, level: float = 0.95) -> float:
    """Return how many independent samples of weight 1 would leave as much open about the accuracy.

    Args:
        outcomes: Outcomes that may have weights and units.
        level: Level of the interval that is made with it.
    """
    if outcomes.units is None or len(outcomes) == 0:
        return float(outcomes.counts.sum())
    if bool((outcomes.units == outcomes.units[0]).all()):
        return 1.0
    hits = outcomes.correct.double().cpu().numpy()
    return effective_rows(hits, weights=outcomes.weights, units=outcomes.units, level=level)


def effective_counts(outcomes: Outcomes, bins: Bins, *, level: float = 0.95) -> Tensor | None:
    """Return the effective number of samples in each bin; None if samples have neither weights nor units."""
    if outcomes.weights is None and outcomes.units is None:
        return None
    place = torch.bucketize(outcomes.confidence.cpu().double(), bins.edges[1:-1])
    parts = place.argsort(stable=True).split(torch.bincount(place, minlength=len(bins.count)).tolist())
    sizes = [
        effective_size(outcomes.take(rows.to(outcomes.correct.device)), level=level) if count > 0 else 0.0
        for rows, count in zip(parts, bins.count.tolist(), strict=True)
    ]
    return torch.tensor(sizes, dtype=torch.float64)


def curve_band(
    curve: AccuracyCurve,
    *,
    confidence: ArrayLike,
    correct: ArrayLike,
    weights: ArrayLike | None = None,
    units: ArrayLike | None = None,
    n_resamples: int = 200,
    level: float = 0.95,
    seed: int = 0,
    progress: Progress | None = None,
) -> Band:
    """Bootstrap a reliability curve: draw rows with replacement and compute the curve again.

    Args:
        curve: Takes confidences and hits, and weights if they are given, each of shape ``(n,)``, and returns
            accuracies at fixed places.
        confidence: Confidences of shape ``(n,)``.
        correct: Whether each prediction was right, shape ``(n,)``.
        weights: How much each sample counts, shape ``(n,)``; drawn samples keep their weights.
        units: An integer for each sample, shape ``(n,)``: samples with equal ones are drawn together. The
            band of few units is wider than the percentiles of their resamples, as for
            :func:`~calibrant.inference.with_interval`.
        n_resamples: Number of resamples.
        level: Share of the resamples within the band at each place.
        seed: Equal seeds give equal bands.
        progress: Called with ``"resamples"``, the number done, and the total.

    Example:
        >>> band = curve_band(
        ...     lambda confidence, correct: correct.double().mean()[None],
        ...     confidence=[0.9] * 100,
        ...     correct=[True] * 80 + [False] * 20,
        ... )
        >>> round(float(band.low), 1), round(float(band.high), 1)
        (0.7, 0.9)
    """
    n_resamples = check_count(n_resamples, "n_resamples", at_least=2)
    outcomes = check_outcomes(confidence=confidence, correct=correct, weights=weights)
    samples, drawn = [outcomes.confidence, outcomes.correct], Units.of(units, len(outcomes))
    if outcomes.weights is not None:
        used = outcomes.weights > 0
        samples = [each[used] for each in (*samples, outcomes.weights)]
        drawn = Units.of(drawn.code[used.cpu().numpy()], len(samples[0]))
    rng = generator(seed)
    curves = []
    for done in range(n_resamples):
        if progress is not None:
            progress("resamples", done, n_resamples)
        rows = torch.from_numpy(drawn.draw_rows(rng)).to(outcomes.confidence.device)
        curves.append(curve(*(each[rows] for each in samples)).cpu().numpy())
    itself = curve(*samples).cpu().numpy()
    confidence, hits, *weights = (each.double().cpu().numpy() for each in samples)
    return _band(np.stack(curves), itself, level, drawn.spread(hits - confidence, *weights))


def _band(values: Floats, itself: Floats, level: float, spread: Spread = ALONE) -> Band:
    """Return quantiles over the first dimension, widened to contain the accuracies of the sample itself.

    They are defined where more than half of the values are.
    """
    tails = [(1 - check_level(level)) / 2, (1 + level) / 2]
    ends = np.full((2, *values.shape[1:]), np.nan)
    defined = np.isfinite(values)
    always, common = defined.all(axis=0), defined.mean(axis=0) > 0.5
    if always.any():
        ends[:, always] = np.quantile(values[:, always], tails, axis=0)
    if (common & ~always).any():  # several times slower
        ends[:, common & ~always] = np.nanquantile(values[:, common & ~always], tails, axis=0)
    # An accuracy of few units may be further away, but never below 0 or above 1.
    if spread is not ALONE:
        ends = spread.widened(ends, values).clip(0.0, 1.0)
    # A smoothed or monotone curve of a resample may lie on one side of that of the sample.
    known = np.isfinite(itself) & np.isfinite(ends[0])
    low, high = (
        np.where(known, limit(end, itself), end) for limit, end in zip((np.fmin, np.fmax), ends, strict=True)
    )
    return Band(torch.from_numpy(low), torch.from_numpy(high), level, len(values))
