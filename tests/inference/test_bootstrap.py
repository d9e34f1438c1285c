"""Faster bootstraps against the plain one, which draws rows and measures them."""

import numpy as np
import pytest
import torch
from scipy import stats

from calibrant.inference.draws import BinResampler, RowResampler, TermResampler
from calibrant.inference.intervals import with_interval
from calibrant.inference.units import Units
from calibrant.metrics import (
    accuracy,
    average_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    rms_calibration_error,
)
from calibrant.metrics.binned import overconfidence
from calibrant.metrics.names import MEASURES
from calibrant.outcomes import Outcomes

pytestmark = pytest.mark.usefixtures("one_thread")


OF_BINS = {each.function: each.of_bins for each in MEASURES.values() if each.of_bins}


def outcomes(n, *, seed=0, slope=0.9, dtype=np.float64):
    """Confidences between 0 and 1, some of them equal, some of them 1, and hits of a miscalibrated model."""
    rng = np.random.default_rng(seed)
    confidence = rng.beta(3, 1, size=n).astype(dtype)
    confidence[: n // 10] = 0.8
    confidence[n // 10 : n // 8] = 1.0
    return confidence, rng.random(n) < slope * confidence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "binning", "slope"),
    [
        (expected_calibration_error, "width", 0.9),
        (expected_calibration_error, "width", 1.0),
        (expected_calibration_error, "mass", 0.9),
        (expected_calibration_error, "mass", 1.0),
        (maximum_calibration_error, "width", 0.9),
        (rms_calibration_error, "mass", 1.0),
        (average_calibration_error, "width", 1.0),
    ],
)
def test_resampled_bins_are_distributed_as_those_of_resampled_rows(metric, binning, slope):
    confidence, correct = outcomes(3000, slope=slope)

    def of(rows):
        return metric(confidence=confidence[rows], correct=correct[rows], binning=binning)

    plain = RowResampler(of(np.arange(3000)), of, Units.of(None, 3000))
    fast = bin_resampler(metric, confidence, correct, n_bins=15, binning=binning)
    assert fast.value == pytest.approx(plain.value, abs=1e-12)
    ours = fast.replicates(4000, np.random.default_rng(0))
    theirs = plain.replicates(300, np.random.default_rng(1))
    assert stats.ks_2samp(ours, theirs).pvalue > 0.001
    spread = np.ptp(np.quantile(theirs, [0.16, 0.84])) / 2
    assert np.ptp(np.quantile(ours, [0.16, 0.84])) / 2 == pytest.approx(spread, rel=0.2)
    assert np.quantile(ours, [0.05, 0.5]) == pytest.approx(
        np.quantile(theirs, [0.05, 0.5]), abs=0.35 * spread
    )


def bin_resampler(metric, confidence, correct, **options):
    found = Outcomes(torch.from_numpy(confidence), torch.from_numpy(correct))
    return BinResampler.from_outcomes(found, OF_BINS[metric], **options)


@pytest.mark.parametrize("binning", ["width", "mass"])
@pytest.mark.parametrize("n_bins", [1, 15, 200])
@pytest.mark.parametrize("metric", OF_BINS)
def test_the_value_from_fine_bins_is_the_measure_itself(metric, n_bins, binning):
    confidence, correct = outcomes(12_000, dtype=np.float32)
    found = with_interval(
        metric, confidence=confidence, correct=correct, n_bins=n_bins, binning=binning, n_resamples=2
    )
    expected = metric(confidence=confidence, correct=correct, n_bins=n_bins, binning=binning)
    assert found.value == pytest.approx(expected, abs=1e-12)


def test_cells_of_many_terms_keep_the_distribution_of_their_mean():
    rng = np.random.default_rng(0)
    terms = rng.lognormal(sigma=1.8, size=40_000)  # the largest of them carries a good part of the skewness
    ours = TermResampler(terms).replicates(4000, rng)
    theirs = np.array([terms[rng.integers(40_000, size=40_000)].mean() for _ in range(500)])
    assert stats.ks_2samp(ours, theirs).pvalue > 0.001
    assert ours.std() == pytest.approx(terms.std() / 200, rel=0.05)
    assert stats.skew(ours) == pytest.approx(stats.skew(terms) / 200, abs=0.15)


def test_hits_of_many_samples_are_drawn_exactly():
    correct = np.arange(100_000) < 80_000
    found = with_interval(accuracy, confidence=np.full(100_000, 0.8), correct=correct, n_resamples=4000)
    low, high = stats.binom.ppf([0.025, 0.975], 100_000, 0.8) / 100_000
    assert (found.value, found.low, found.high) == pytest.approx((0.8, low, high), abs=1.5e-4)


def test_a_definition_without_bins_is_resampled_by_rows():
    confidence, correct = outcomes(12_000)
    pairs = {"confidence": confidence, "correct": correct}
    found = with_interval(overconfidence, **pairs, definition="conditional", n_resamples=20)
    assert found.value == pytest.approx(confidence[~correct].mean())
    assert found.low < found.value < found.high
