"""Tests of calibration: could a calibrated model look this miscalibrated by chance?"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import Tensor

from calibrant.bins import Binning
from calibrant.errors import InputError
from calibrant.inference.chance import Dependence, redrawn
from calibrant.inference.draws import RESAMPLES, fine_bins
from calibrant.inference.intervals import effective_rows, mean_with_error
from calibrant.inference.rows import RowArrays, apply_to, as_rows, check_finite, generator, n_rows
from calibrant.inference.units import Indices, Units
from calibrant.inputs import ArrayLike, Floats, Progress, check_count, check_labelled_probs
from calibrant.metrics.binned import expected_calibration_error
from calibrant.metrics.cumulative import CumulativeDifference, CumulativeStatistic, brownian_tail
from calibrant.metrics.kernel import skce_pairs
from calibrant.outcomes import Outcomes, check_outcomes, refuse_weights

Statistic: TypeAlias = Literal["ece", "skce", "kuiper", "ks"]
TestMethod: TypeAlias = Literal["consistency resampling", "asymptotic normal", "Brownian motion"]

_FINE = 512
# The cumulative difference is a Brownian motion to the eye of a test if its variance reaches this ...
_ENOUGH_VARIANCE = 20.0
# ... and no confidence has a larger share of it than one sample can have then.
_LARGEST_SHARE = 0.25 / _ENOUGH_VARIANCE
_BLOCK = 1 << 19
# Resamples of one of many tests. If hardly one reaches the statistic, the p-value needs more of them: this
# many for each test, so that it can be small enough after a correction.
_REFINED, _FEW, _RESAMPLES_EACH, _MOST_RESAMPLES = 999, 4, 25, 25_000


@dataclass(frozen=True)
class CalibrationTest:
    """Result of a test of the hypothesis that a model is calibrated.

    Attributes:
        p_value: Probability that a calibrated model shows at least this much miscalibration. A small value is
            evidence against calibration; a large value does not prove it.
        statistic: The miscalibration of the sample.
        n_resamples: Number of resamples under the null hypothesis; 0 if its distribution is known.
        method: ``"consistency resampling"``, ``"asymptotic normal"`` or ``"Brownian motion"``.
    """

    p_value: float
    statistic: float
    n_resamples: int
    method: TestMethod


def calibration_test(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    confidence: ArrayLike | None = None,
    correct: ArrayLike | None = None,
    units: ArrayLike | None = None,
    statistic: Statistic | Callable[..., Any] = "ece",
    n_resamples: int = RESAMPLES,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,  # noqa: ANN401  # the measure's own options
) -> CalibrationTest:
    r"""Test whether a calibrated model would show at least as much miscalibration as this one.

    The predictions are fixed. For a calibrated model, hits follow the confidences and labels follow the
    class probabilities. Drawing them :math:`B` times gives the distribution of the statistic :math:`T`
    under that hypothesis (consistency resampling):

    .. math:: p = \frac{1 + \#\{b : T_b \ge T\}}{1 + B}

    This is valid for any sample size and any statistic, including biased ones. The statistic determines
    what the test can detect:

    - ``"ece"``: the binned error of the predicted class; options ``n_bins`` and ``binning``. There
      are at least 512 fine bins; hits are drawn for all samples of a fine bin at once, as if each sample had
      the mean confidence. With bins of equal width this raises the variance by less than 0.2 %, usually far
      less, and never lowers it; millions of samples take about as long as one pass.
    - ``"skce"``: the squared kernel error of all classes by its linear estimator; option ``width``. The mean
      of independent pairs is normal in large samples, so nothing is resampled. Rows are paired at random,
      by the seed, because an order that depends on the labels would look like miscalibration.
    - ``"kuiper"`` or ``"ks"``: the range or the largest value of the cumulative difference between hits and
      confidence, in standard deviations (ECCE-R and ECCE-MAD). No bins are chosen. For many samples with
      different confidences these are the range and the largest value of a Brownian motion, whose laws are
      known. With many ties, or if the hits vary too little (the sum of ``p (1 - p)`` is below 20), hits are
      drawn for each distinct confidence instead; see :func:`cumulative_test`.
    - a measure of this library, or a function with the same arguments, that grows with miscalibration, such
      as ``smooth_calibration_error`` or ``skce``. It is called once per resample; a resample with the value
      NaN counts as miscalibrated.

    Args:
        probs: Class probabilities of shape ``(n, k)``, with ``labels``.
        labels: Integer classes of shape ``(n,)``.
        confidence: Instead of ``probs``: confidences of shape ``(n,)``, with ``correct``.
        correct: Whether each prediction was right, shape ``(n,)``.
        units: An integer for each sample, shape ``(n,)``. Outcomes of samples with equal ones are drawn with
            the dependence that they have (:class:`~calibrant.inference.chance.Dependence`). It is estimated,
            so with 100 units the test at 5 % rejects up to 9 % of calibrated models. For ``"skce"`` units
            are paired at random, and the law of large samples needs hundreds of them: choose another
            statistic if there are fewer.
        statistic: The statistic that is compared with its distribution for a calibrated model.
        n_resamples: Number of resamples; the p-value is at least ``1 / (1 + n_resamples)``.
        seed: Equal seeds give equal p-values.
        progress: Called with ``"resamples"``, the number done, and the total.
        **options: Passed to the statistic.

    Example:
        >>> hits = [True] * 80 + [False] * 20
        >>> calibration_test(confidence=[0.8] * 100, correct=hits).p_value
        1.0
        >>> calibration_test(confidence=[0.95] * 100, correct=hits).p_value < 0.01
        True

    References:
        Bröcker and Smith, "Increasing the reliability of reliability diagrams", Weather and Forecasting 2007.
        Vaicenavicius et al., "Evaluating model calibration in classification", AISTATS 2019.
        Widmann, Lindsten and Zachariah, "Calibration tests in multi-class classification: a unifying
        framework", NeurIPS 2019.
        Arrieta-Ibarra, Gujral, Tannen, Tygert and Xu, "Metrics of calibration for probabilistic
        predictions", JMLR 2022.
    """
    n_resamples = check_count(n_resamples, "n_resamples")
    refuse_weights(options.get("weights"), "a calibration test")
    rows = as_rows(probs=probs, labels=labels, confidence=confidence, correct=correct)
    rng, drawn = generator(seed), Units.of(units, n_rows(rows))
    if statistic == "skce":
        return _skce_test(rows, drawn, seed, **options)
    if statistic == "kuiper" or statistic == "ks":
        cells = cumulative_difference(check_outcomes(**rows), drawn)
        return cumulative_test(cells, statistic, n_resamples=n_resamples, rng=rng, **options)
    if statistic == "ece" and drawn.are_rows:
        value, null = _ece_null(check_outcomes(**rows), n_resamples, rng, **options)
    else:
        function = _function(statistic)
        value, redraw = apply_to(function, rows, options, name="statistic"), redrawn(rows, drawn)
        null = np.empty(n_resamples)
        for r in range(n_resamples):
            null[r] = apply_to(function, redraw(rng), options)
            if progress is not None:
                progress("resamples", r + 1, n_resamples)
    # Counted this way, a resample with the value NaN is extreme.
    at_least = n_resamples - np.count_nonzero(null < check_finite(value, name="statistic"))
    return CalibrationTest(
        float((1 + at_least) / (1 + n_resamples)), value, n_resamples, "consistency resampling"
    )


def _function(statistic: Statistic | Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a statistic, which is called for each resample."""
    if callable(statistic):
        return statistic
    if statistic == "ece":
        return expected_calibration_error
    raise InputError(f"statistic: expected 'ece', 'skce', 'kuiper', 'ks' or a function, got {statistic!r}")


def cumulative_difference(outcomes: Outcomes, units: Units) -> CumulativeDifference:
    """Return the cumulative difference of outcomes, of which those of a unit may depend on each other."""
    if units.are_rows:
        return CumulativeDifference.from_outcomes(outcomes)
    return DependentDifference.of_units(outcomes, units)


@dataclass(frozen=True, eq=False)
class DependentDifference(CumulativeDifference):
    """The cumulative difference of samples that depend on each other; ``count`` and ``hits`` are by weight.

    Attributes:
        outcomes: The samples.
        order: Their places in ascending order of the confidence.
        starts: Place in that order of the first sample with each confidence.
        dependence: How hits are drawn.
    """

    outcomes: Outcomes
    order: Indices
    starts: Indices
    dependence: Dependence

    @classmethod
    def of_units(cls, outcomes: Outcomes, units: Units) -> "DependentDifference":
        """Sort the samples by confidence."""
        values = outcomes.confidence.double().cpu().numpy()
        order = np.argsort(values, kind="stable")
        distinct, starts = np.unique(values[order], return_index=True)
        w, hits = outcomes.counts.cpu().numpy()[order], outcomes.correct.cpu().numpy()[order]
        sums = np.add.reduceat(w, starts), np.add.reduceat(w * hits, starts)
        return cls(distinct, *sums, outcomes, order, starts, Dependence.of(outcomes, units))

    @cached_property
    def n(self) -> int:
        """Number of samples."""
        return len(self.outcomes)

    @property
    def n_units(self) -> int:
        """Number of units."""
        return self.dependence.units.n

    @cached_property
    def effective(self) -> float:
        """Number of equal samples that would know the accuracy as well."""
        hits, units = self.outcomes.correct.double().cpu().numpy(), self.dependence.units.code
        return effective_rows(hits, weights=self.outcomes.weights, units=units)

    @cached_property
    def deviation(self) -> float:
        """Standard deviation of the total difference, as units differ; at least that of independent rows."""
        w, p = (each.double().cpu().numpy() for each in (self.outcomes.counts, self.outcomes.confidence))
        sums = self.dependence.units.sums(w * (self.outcomes.correct.cpu().numpy() - p))
        return math.sqrt(max(float(sums @ sums), float(w * w @ (p * (1 - p)))))

    def coarser(self, most: int) -> "DependentDifference":  # noqa: ARG002  # samples keep their units
        """Return the same."""
        return self

    def _drawn(self, n_resamples: int, rng: np.random.Generator) -> Floats:
        w, p = (each.double().cpu().numpy() for each in (self.outcomes.counts, self.outcomes.confidence))
        rows = ((w * (self.dependence.uniform(rng) < p))[self.order] for _ in range(n_resamples))
        return np.stack([np.add.reduceat(row, self.starts) for row in rows])


def cumulative_test(
    cells: CumulativeDifference,
    statistic: CumulativeStatistic = "kuiper",
    *,
    n_resamples: int,
    rng: np.random.Generator,
) -> CalibrationTest:
    """Test whether the cumulative difference of a calibrated model would reach as far as this one.

    The law of Brownian motion is used if no distinct confidence has more than an eightieth of a variance of
    at least 20. Otherwise hits are drawn, as in :func:`calibration_test`; more than 512 distinct confidences
    are merged first. Ties make the law of Brownian motion cautious, so with a variance of at least 20 its
    p-value remains an upper limit, and the p-value can be smaller than resamples alone can show.

    Example:
        >>> tied = CumulativeDifference(np.array([0.95]), np.array([1000]), np.array([930]))
        >>> found = cumulative_test(tied, n_resamples=999, rng=np.random.default_rng(0))
        >>> round(found.statistic, 2), found.p_value < 0.01, found.method
        (2.9, True, 'consistency resampling')
    """
    value, variance = cells.in_deviations(statistic), float(cells.variances.sum())
    if cells.n_units < cells.n:
        variance = 0.0  # no law is known
    p_value = float(brownian_tail(statistic, value)) if variance >= _ENOUGH_VARIANCE else 1.0
    if variance >= _ENOUGH_VARIANCE and cells.variances.max() <= _LARGEST_SHARE * variance:
        return CalibrationTest(p_value, value, 0, "Brownian motion")
    at_least = cells.coarser(_FINE).drawn_again(statistic, n_resamples, rng)
    drawn = (1 + at_least) / (1 + n_resamples)
    return CalibrationTest(min(p_value, drawn), value, n_resamples, "consistency resampling")


def refined_test(
    cells: CumulativeDifference, *, n_tests: int, rng: np.random.Generator, fewest: int
) -> CalibrationTest:
    """Return the test of one of many groups, with more resamples where a correction needs a smaller p-value.

    Args:
        cells: The cumulative difference of a group.
        n_tests: Number of tests that are corrected for.
        rng: Random numbers of this group.
        fewest: Groups with fewer samples, or fewer units, are not tested; the result is NaN.
    """
    if cells.n_units < fewest:
        return CalibrationTest(math.nan, math.nan, 0, "consistency resampling")
    found = cumulative_test(cells, n_resamples=_REFINED, rng=rng)
    enough = min(_RESAMPLES_EACH * n_tests, _MOST_RESAMPLES)
    # Below its smallest value a p-value is not that of resamples.
    drawn = found.n_resamples > 0 and found.p_value >= 1 / (1 + _REFINED)
    if drawn and found.p_value <= _FEW / (1 + _REFINED) and enough > _REFINED:
        return cumulative_test(cells, n_resamples=enough, rng=rng)
    return found


def _ece_null(
    outcomes: Outcomes,
    n_resamples: int,
    rng: np.random.Generator,
    *,
    n_bins: int = 15,
    binning: Binning = "width",
) -> tuple[float, Floats]:
    """Return the binned error of a sample, and of resamples whose hits follow the confidences."""
    fine = fine_bins(outcomes, n_bins=n_bins, binning=binning, at_least=_FINE)
    expected = fine.confidence_sum.numpy().reshape(n_bins, -1).sum(axis=1)
    used = fine.count.numpy() > 0
    bin_of = np.repeat(np.arange(n_bins), len(used) // n_bins)[used]
    member = (bin_of[:, None] == np.arange(n_bins)).astype(np.float64)
    count, confidence = fine.count.numpy()[used], fine.confidence.numpy()[used].clip(0.0, 1.0)

    def error(hits: npt.NDArray[np.int64]) -> Floats:
        # Sums of whole numbers are exact, so equal hits give equal errors.
        return np.asarray(np.abs(hits @ member - expected).sum(axis=-1) / len(outcomes))

    step = max(1, _BLOCK // len(count))
    null = [
        error(rng.binomial(count, confidence, size=(min(step, n_resamples - start), len(count))))
        for start in range(0, n_resamples, step)
    ]
    return float(error(fine.correct_sum.numpy()[used])), np.concatenate(null)


def _skce_test(rows: RowArrays, units: Units, seed: int, *, width: float | None = None) -> CalibrationTest:
    """Test whether the mean of the kernel terms of random pairs is above zero."""
    if "confidence" in rows:
        outcomes = check_outcomes(**rows)
        rows = {"probs": outcomes.confidence, "labels": outcomes.correct.long()}
    p, y = check_labelled_probs(rows["probs"], rows["labels"])
    if len(p) < 4:
        raise InputError(f"probs: expected at least four samples, for two pairs, got {len(p)}")
    if not units.are_rows:
        return _skce_of_units(p, y, units, seed, width)
    terms = skce_pairs(p, y, width=width, seed=seed)
    mean, error = float(terms.mean()), float(terms.std()) / math.sqrt(len(terms))
    p_value = float(scipy.special.ndtr(-mean / error)) if error > 0 else float(mean <= 0)
    return CalibrationTest(p_value, mean, 0, "asymptotic normal")


def _skce_of_units(p: Tensor, y: Tensor, units: Units, seed: int, width: float | None) -> CalibrationTest:
    """Test the mean of the kernel terms of rows of random pairs of units; each row is used once at least."""
    if units.n < 4:
        raise InputError(f"units: expected at least four, for two pairs, got {units.n}")
    first, second = generator(seed).permutation(units.n)[: units.n // 2 * 2].reshape(2, -1)
    places = [units.rows_of(first), units.rows_of(second)]
    longer = np.maximum(units.sizes[first], units.sizes[second])
    pair, within = np.repeat(np.arange(len(first)), longer), np.arange(longer.sum())
    within -= np.repeat(longer.cumsum() - longer, longer)
    # The rows of the smaller unit are repeated in turn.
    rows = [
        place[(units.sizes[side].cumsum() - units.sizes[side])[pair] + within % units.sizes[side][pair]]
        for side, place in zip((first, second), places, strict=True)
    ]
    order = torch.from_numpy(np.stack(rows, axis=1).ravel()).to(p.device)
    terms = skce_pairs(p[order], y[order], width=width, seed=None).numpy(force=True)
    mean, error = mean_with_error(terms, units=pair)
    degrees = Units.of(pair, len(pair)).spread(terms).degrees
    p_value = float(scipy.special.stdtr(min(degrees, 1e9), -mean / error)) if error > 0 else float(mean <= 0)
    return CalibrationTest(p_value, mean, 0, "asymptotic normal")
