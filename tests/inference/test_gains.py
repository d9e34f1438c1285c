"""The gain of one trained model over another: runs and test samples both vary."""

import math

import numpy as np
import pytest
from scipy import stats

from calibrant.inference.gains import Gain


def test_without_draws_the_interval_is_that_of_a_paired_t_test():
    gains = [0.3, 0.1, 0.7, 0.4]
    expected = stats.ttest_1samp(gains, 0).confidence_interval(0.95)
    assert Gain.of(gains).interval() == pytest.approx(tuple(expected))


def test_p_values_are_those_of_one_sided_t_tests():
    gains = [0.3, 0.1, 0.7, 0.4]
    gain = Gain.of(gains)
    assert gain.p_above(0.2) == pytest.approx(stats.ttest_1samp(gains, 0.2, alternative="greater").pvalue)
    assert gain.p_below(0.2) == pytest.approx(stats.ttest_1samp(gains, 0.2, alternative="less").pvalue)


def test_one_run_decides_nothing():
    gain = Gain.of([5.0], np.zeros((1, 64)))
    assert gain.interval() == (-math.inf, math.inf)
    assert gain.p_above(0.0) == gain.p_below(0.0) == 1.0


def test_equal_gains_without_variation_are_certain():
    gain = Gain.of([0.2, 0.2, 0.2])
    assert gain.interval() == pytest.approx((0.2, 0.2))
    assert (gain.p_above(0.0), gain.p_below(0.0)) == (0.0, 1.0)


def test_draws_that_all_runs_share_do_not_average_out():
    rng = np.random.default_rng(0)
    shared = np.tile(rng.normal(scale=0.1, size=64), (20, 1))
    own = rng.normal(scale=0.1, size=(20, 64))
    gains = [0.0, 0.001] * 10
    assert Gain.of(gains, shared).error == pytest.approx(0.1, rel=0.3)
    assert Gain.of(gains, own).error == pytest.approx(0.1 / math.sqrt(20), rel=0.3)


def test_intervals_cover_the_gain_of_further_runs_on_further_samples():
    """Runs and test samples are drawn again and again; both are needed to cover the truth."""
    rng = np.random.default_rng(1)
    both, runs_alone, repeats, n, n_runs = 0, 0, 400, 200, 4
    for _ in range(repeats):
        samples = rng.normal(size=n)  # how much better one model is on each sample
        counts = rng.poisson(1.0, size=(64, n))
        drawn = counts @ samples / counts.sum(axis=1)
        gains = samples.mean() + rng.normal(scale=0.03, size=n_runs)
        low, high = Gain.of(gains.tolist(), np.tile(drawn - drawn.mean(), (n_runs, 1))).interval()
        both += low <= 0 <= high
        low, high = Gain.of(gains.tolist()).interval()
        runs_alone += low <= 0 <= high
    assert 0.92 <= both / repeats <= 0.98
    assert runs_alone / repeats < 0.85
