"""Cumulative differences between hits and confidence: the Kuiper, Kolmogorov-Smirnov and two-bin errors."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias, Unpack

import numpy as np
import numpy.typing as npt
import scipy
from torch import Tensor

from calibrant.bins import Bins
from calibrant.inputs import ArrayLike, Floats
from calibrant.metrics.counted import Counts, Ordered, Weighted
from calibrant.metrics.ranking import Ranking
from calibrant.outcomes import Outcomes, Pairs, check_outcomes

CumulativeStatistic: TypeAlias = Literal["kuiper", "ks"]

# Hits are drawn in blocks of about this many numbers.
_BLOCK = 1 << 20

# With weights, hits of more samples than this are not drawn one by one: their sums are normal.
_MANY = 1 << 17


def kuiper_error(
    probs: ArrayLike | None = None, labels: ArrayLike | None = None, **pairs: Unpack[Pairs]
) -> float:
    r"""Return the largest gap, times its share of samples, over all intervals of confidence (Kuiper, ECCE-R).

    .. math:: \max_{s \le t} \Big| \frac{1}{n} \sum_{i: s \le p_i \le t} (a_i - p_i) \Big|

    This is the range of the cumulative difference, including its start at 0. Equal confidences are added
    together, so the order of the rows does not matter. It is at least
    :func:`~calibrant.metrics.ks_error`, at most twice it, and at most the expected gap between confidence
    and accuracy at each confidence. Unlike KS it also sees an interval that starts in the middle.
    ``calibration_test(statistic="kuiper")`` divides it by its standard deviation and gives a p-value.

    Args:
        probs: Class probabilities of shape ``(n, k)``; only the predicted class is measured.
        labels: Integer classes of shape ``(n,)``.
        confidence: Confidences of shape ``(n,)``, with ``correct``, instead of ``probs``.
        correct: Whether each prediction was right, shape ``(n,)``.

    Example:
        >>> round(kuiper_error(confidence=[0.9, 0.8, 0.6], correct=[True, False, True]), 6)
        0.266667

    References:
        Arrieta-Ibarra, Gujral, Tannen, Tygert and Xu, "Metrics of calibration for probabilistic
        predictions", JMLR 2022.
    """
    found = CumulativeDifference.from_outcomes(check_outcomes(probs, labels, **pairs))
    return float(_EXTENTS["kuiper"](found.difference))


def ks_error(
    probs: ArrayLike | None = None, labels: ArrayLike | None = None, **pairs: Unpack[Pairs]
) -> float:
    r"""Return the largest distance between cumulative confidence and cumulative accuracy (KS, ECCE-MAD).

    .. math:: \mathrm{KS} = \max_t \Big| \frac{1}{n} \sum_{i: p_i \le t} (a_i - p_i) \Big|

    Equal confidences are added together. The result never exceeds the expected gap between confidence and
    accuracy at each confidence, and equals it if the model is overconfident everywhere or underconfident
    everywhere. Arguments are those of :func:`kuiper_error`.

    Example:
        >>> round(ks_error(confidence=[0.9, 0.8, 0.6], correct=[True, False, True]), 6)
        0.133333

    References:
        Gupta et al., "Calibration of Neural Networks using Splines", ICLR 2021.
    """
    found = CumulativeDifference.from_outcomes(check_outcomes(probs, labels, **pairs))
    return float(_EXTENTS["ks"](found.difference))


def averaged_two_bin_error(
    probs: ArrayLike | None = None, labels: ArrayLike | None = None, **pairs: Unpack[Pairs]
) -> float:
    r"""Return the squared error of two bins, averaged over all confidences that may part them (ATB).

    .. math:: \int_0^1 \Big( \frac1n \sum_{p_i < t} (a_i - p_i) \Big)^2
              + \Big( \frac1n \sum_{p_i \ge t} (a_i - p_i) \Big)^2 dt

    It is truthful: in expectation over the outcomes, no confidences have a lower error than the true
    probabilities, however few the samples, whereas a model can lower its ECE by saying what it does not
    believe. The integral is exact. Arguments are those of :func:`kuiper_error`.

    Example:
        >>> round(averaged_two_bin_error(confidence=[0.9, 0.8, 0.6], correct=[True, False, True]), 6)
        0.023333

    References:
        Hartline, Hu and Wu, "A Perfectly Truthful Calibration Measure", COLT 2026.
    """
    found = CumulativeDifference.from_outcomes(check_outcomes(probs, labels, **pairs))
    return float(_two_bins(found.difference, found.confidence))


@dataclass(frozen=True, eq=False)
class CumulativeDifference:
    """Hits minus confidence, summed in ascending order of the confidence; equal confidences count as one.

    Attributes:
        confidence: The distinct confidences in ascending order, float64.
        count: Number of samples with each of them.
        hits: Number of right predictions among these.
    """

    confidence: Floats
    count: npt.NDArray[Any]
    hits: npt.NDArray[Any]

    @classmethod
    def from_outcomes(cls, outcomes: Outcomes) -> "CumulativeDifference":
        """Sort the samples by confidence."""
        if outcomes.weights is not None:
            return WeighedDifference.of(outcomes.confidence, outcomes.correct, outcomes.weights)
        ranking = Ranking.from_outcomes(outcomes)
        return cls(ranking.score[::-1].astype(np.float64), ranking.count[::-1], ranking.hits[::-1])

    @classmethod
    def from_bins(cls, bins: Bins, sizes: Tensor | None = None) -> "CumulativeDifference":
        """Treat the samples of a bin as if all had its mean confidence.

        The sum is exact at the edges of bins and unknown between them, and the variance is a bit too high. So
        statistics are a bit too low.

        Args:
            bins: Bins of the confidence.
            sizes: If samples have weights, the effective number of samples in each bin.
        """
        used = bins.count > 0
        confidence, count, hits = bins.confidence[used].clamp(0, 1), bins.count[used], bins.correct_sum[used]
        if sizes is None:
            return cls(confidence.numpy(), count.numpy(), hits.long().numpy())
        trials = sizes[used].round().long().clamp(min=1)
        return BinnedDifference(confidence.numpy(), count.numpy(), hits.numpy(), trials.numpy())

    @cached_property
    def n(self) -> int:
        """Number of samples."""
        return int(self.count.sum())

    @cached_property
    def total(self) -> float:
        """Summed counts: the number of samples, or their effective number if they have weights."""
        return float(self.count.sum())

    @property
    def n_units(self) -> int:
        """Number of units that do not depend on each other: of samples, unless these do."""
        return self.n

    @property
    def effective(self) -> float:
        """Number of equal samples that would know the accuracy as well."""
        return self.total

    @property
    def difference(self) -> Floats:
        """Summed hits minus confidence up to each confidence, over the number of samples."""
        return self._summed(self.hits) / self.total

    @cached_property
    def variances(self) -> Floats:
        """Variance of the number of hits at each confidence, if the model is calibrated."""
        return np.asarray(self.count * self.confidence * (1 - self.confidence))

    @property
    def deviation(self) -> float:
        """Standard deviation of the total difference of a calibrated model, times the summed counts."""
        return float(np.sqrt(self.variances.sum()))

    def in_deviations(self, statistic: CumulativeStatistic) -> float:
        """Return an error in standard deviations of the total difference of a calibrated model.

        Without any variance, because all confidences are 0 or 1, it is 0 or infinite.
        """
        largest = float(self.total * _EXTENTS[statistic](self.difference))
        deviation = self.deviation
        return largest / deviation if deviation > 0 else (np.inf if largest > 0 else 0.0)

    def coarser(self, most: int) -> "CumulativeDifference":
        """Merge neighbours into at most this many cells of about equal count."""
        if len(self.count) <= most:
            return self
        ends = np.cumsum(self.count)
        starts = np.unique(np.searchsorted(ends, np.arange(most) * (self.n / most), side="right"))
        count, hits = np.add.reduceat(self.count, starts), np.add.reduceat(self.hits, starts)
        total = np.add.reduceat(self.count * self.confidence, starts)
        return CumulativeDifference((total / count).clip(0, 1), count, hits)

    def drawn_again(self, statistic: CumulativeStatistic, n_resamples: int, rng: np.random.Generator) -> int:
        """Return how many of these resamples of a calibrated model differ at least as much as the sample."""
        extent, step = _EXTENTS[statistic], max(1, _BLOCK // len(self.count))
        # Sums of equal hits are rounded differently by no more than this.
        least = extent(self._summed(self.hits)) - 1e-9
        at_least = 0
        for start in range(0, n_resamples, step):
            hits = self._drawn(min(step, n_resamples - start), rng)
            at_least += int(np.count_nonzero(extent(self._summed(hits)) >= least))
        return at_least

    def _drawn(self, n_resamples: int, rng: np.random.Generator) -> npt.NDArray[Any]:
        size = n_resamples, len(self.count)
        if self.n == len(self.count):  # no ties: a comparison is ten times as fast as a binomial number
            return rng.random(size) < self.confidence
        return rng.binomial(self.count, self.confidence, size=size)

    def _summed(self, hits: npt.NDArray[Any]) -> Floats:
        return np.cumsum(hits - self.count * self.confidence, axis=-1)


@dataclass(frozen=True, eq=False)
class WeighedDifference(CumulativeDifference):
    """The cumulative difference of samples with weights, whose sums are ``count`` and ``hits``.

    A sample of weight :math:`w` adds :math:`w^2 p (1 - p)` to the variance.

    Attributes:
        weights: The weight of each sample, in ascending order of the confidence.
        starts: Place of the first sample with each confidence.
    """

    weights: Floats
    starts: npt.NDArray[np.intp]

    @classmethod
    def of(cls, confidence: Tensor, correct: Tensor, weights: Tensor) -> "WeighedDifference":
        """Sort the samples that count by confidence."""
        used = weights > 0
        values = confidence[used].double().cpu().numpy()
        order = np.argsort(values, kind="stable")
        w, hits = weights[used].cpu().numpy()[order], correct[used].cpu().numpy()[order]
        distinct, starts = np.unique(values[order], return_index=True)
        return cls(distinct, np.add.reduceat(w, starts), np.add.reduceat(w * hits, starts), w, starts)

    @cached_property
    def n(self) -> int:
        """Number of samples."""
        return len(self.weights)

    @cached_property
    def variances(self) -> Floats:
        """Variance of the weighted hits at each confidence, if the model is calibrated."""
        squares = np.add.reduceat(self.weights**2, self.starts)
        return np.asarray(squares * self.confidence * (1 - self.confidence))

    def coarser(self, most: int) -> "WeighedDifference":  # noqa: ARG002  # samples keep their own weights
        """Return the same: hits are drawn for each sample, so nothing is saved by merging."""
        return self

    def _drawn(self, n_resamples: int, rng: np.random.Generator) -> npt.NDArray[Any]:
        if self.n > _MANY:
            noise = rng.standard_normal((n_resamples, len(self.count)))
            return np.asarray(self.count * self.confidence + noise * np.sqrt(self.variances))
        each = np.repeat(self.confidence, np.diff(self.starts, append=self.n))
        rows = (self.weights * (rng.random(self.n) < each) for _ in range(n_resamples))
        return np.stack([np.add.reduceat(row, self.starts) for row in rows])


@dataclass(frozen=True, eq=False)
class BinnedDifference(CumulativeDifference):
    """The cumulative difference of bins of weighted samples, each as good as some samples of equal weight.

    Attributes:
        trials: Effective number of samples in each bin, as a whole number.
    """

    trials: npt.NDArray[np.int64]

    @cached_property
    def variances(self) -> Floats:
        """Variance of the weighted hits in each bin, if the model is calibrated."""
        return np.asarray(self.count**2 / self.trials * self.confidence * (1 - self.confidence))

    def coarser(self, most: int) -> "BinnedDifference":  # noqa: ARG002  # the number of bins is fixed
        """Return the same."""
        return self

    def _drawn(self, n_resamples: int, rng: np.random.Generator) -> npt.NDArray[Any]:
        hits = rng.binomial(self.trials, self.confidence, size=(n_resamples, len(self.count)))
        return np.asarray(hits * (self.count / self.trials))


def brownian_tail(statistic: CumulativeStatistic, x: npt.ArrayLike) -> Floats:
    r"""Return how likely a Brownian motion on the unit interval reaches at least ``x``.

    ``"kuiper"`` is for its range, ``"ks"`` for its largest absolute value: the laws of both statistics in
    standard deviations, for many samples of a calibrated model whose confidences are all different. With
    :math:`Q` the upper tail of the standard normal distribution,

    .. math:: P(\text{range} \ge x) = 8 \sum_{j \ge 1} (-1)^{j-1} j\, Q(j x), \qquad
        P(\max \ge x) = 4 \sum_{j \ge 0} (-1)^j\, Q((2 j + 1) x)

    Below 1, where these converge slowly, the series in :math:`1 / x` are summed instead.

    Example:
        >>> brownian_tail("kuiper", [2.498, 4.0]).round(4).tolist()
        [0.05, 0.0003]

    References:
        Feller, "The asymptotic distribution of the range of sums of independent random variables", Annals of
        Mathematical Statistics 1951.
        Tygert, "Calibration of P-values for calibration and for deviation of a subpopulation from the full
        population", Advances in Computational Mathematics 2023.
    """
    x = np.asarray(x, dtype=np.float64)[..., None]
    # Nine terms of either series are exact to the last digit on their side of 1; 0.05 is as good as 0.
    above, below = np.maximum(x, 1.0), np.clip(x, 0.05, 1.0)
    j = np.arange(9)
    sign, half = (-1.0) ** j, np.pi * (j + 0.5)
    if statistic == "kuiper":
        tail = 8 * sign * (j + 1) * scipy.special.ndtr(-(j + 1) * above)
        body = (8 / below**2 + 2 / half**2) * np.exp(-2 * (half / below) ** 2)
    else:
        tail = 4 * sign * scipy.special.ndtr(-(2 * j + 1) * above)
        body = 2 * sign / half * np.exp(-((half / below) ** 2) / 2)
    tails: Floats = np.where(x[..., 0] > 1, tail.sum(axis=-1), 1 - body.sum(axis=-1))
    return tails.clip(0.0, 1.0)


def cumulative_weights(statistic: CumulativeStatistic) -> Callable[..., Weighted]:
    """Return what an error above needs in the catalogue to be a function of counts."""

    def weighted(**arguments: Any) -> Weighted:  # noqa: ANN401  # those of check_outcomes
        ordered = Ordered.from_outcomes(check_outcomes(**arguments))

        def values(counts: Counts) -> Floats:
            cumulative = ordered.errors(counts).cumsum(axis=1)
            return np.asarray(_EXTENTS[statistic](cumulative) / counts.sum(axis=1))

        return Weighted(len(ordered), values, held=4 * len(ordered), weights=ordered.weights)

    return weighted


def two_bin_weights(**arguments: Any) -> Weighted:  # noqa: ANN401  # those of check_outcomes
    """Return the averaged two-bin error as a function of counts."""
    ordered = Ordered.from_outcomes(check_outcomes(**arguments))

    def values(counts: Counts) -> Floats:
        cumulative = ordered.errors(counts).cumsum(axis=1)
        return _two_bins(cumulative / counts.sum(axis=1, keepdims=True), ordered.values.astype(np.float64))

    return Weighted(len(ordered), values, held=4 * len(ordered), weights=ordered.weights)


def _two_bins(cumulative: Floats, confidence: Floats) -> Floats:
    """Return the averaged two-bin error of sums up to each of the distinct confidences, row by row."""
    total = cumulative[..., -1:]
    squares = np.square(cumulative) + np.square(total - cumulative)
    # Below the first confidence, all samples are in the upper bin.
    below = confidence[0] * np.square(total[..., 0])
    return np.asarray(squares @ np.diff(confidence, append=1.0) + below)


def _range(cumulative: Floats) -> Floats:
    """Return the range of each row, including its start at 0."""
    return np.asarray(cumulative.max(axis=-1, initial=0.0) - cumulative.min(axis=-1, initial=0.0))


def _largest(cumulative: Floats) -> Floats:
    return np.asarray(np.abs(cumulative).max(axis=-1))


_EXTENTS: dict[CumulativeStatistic, Callable[[Floats], Floats]] = {"kuiper": _range, "ks": _largest}
