"""What monitoring promises, checked by simulation: few false alarms, drifts found soon, honest intervals."""

import numpy as np
import pytest
from scipy.stats import binom

from calibrant import Predictions
from calibrant.inference import with_interval
from calibrant.metrics import accuracy, expected_calibration_error
from calibrant.monitoring import Monitoring
from calibrant.monitoring.windows import with_intervals


def simulated(n, *, seed, factor=1.0):
    """The label comes from the softmax of normal logits; the model states that of logits times a factor."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=2.5, size=(n, 10))
    honest, stated = (
        1 / np.exp(z - z.max(axis=1, keepdims=True)).sum(axis=1) for z in (logits, factor * logits)
    )
    return Predictions(confidence=stated, correct=rng.random(n) < honest)


@pytest.mark.slow
def test_calibrated_streams_raise_no_more_alarms_than_promised():
    alpha, runs, alarms = 0.2, 150, 0
    for seed in range(runs):
        monitoring = Monitoring(simulated(500, seed=seed), alpha=alpha, window=2000)
        monitoring.update(simulated(2000, seed=10_000 + seed))
        alarms += monitoring.alarm is not None
    assert alarms <= binom.ppf(0.999, runs, alpha)


@pytest.mark.slow
def test_a_temperature_drift_of_one_and_a_half_is_found_as_soon_as_the_documentation_says():
    """docs/monitoring.md: half of the drifts within 255 rows, nine of ten within 468."""
    runs, rows = 60, []
    for seed in range(runs):
        monitoring = Monitoring(simulated(5000, seed=20_000 + seed), window=500)
        monitoring.update(simulated(2000, seed=30_000 + seed, factor=1.5))
        assert monitoring.alarm.changes[0].direction == "overconfident"
        rows.append(monitoring.alarm.row)
    within = [sum(row <= limit for row in rows) for limit in (255, 468)]
    assert within[0] >= binom.ppf(0.001, runs, 0.5)
    assert within[0] <= binom.ppf(0.999, runs, 0.5)
    assert within[1] >= binom.ppf(0.001, runs, 0.9)


@pytest.mark.parametrize("n", [2, 700, 40_000])
def test_intervals_of_a_window_are_those_of_drawing_its_rows_again(n):
    window = simulated(n, seed=5)
    confidence, correct = window.confidence.numpy(), window.correct.numpy()
    means, ece = with_intervals(
        correct[None].astype(float), correct.astype(float), confidence, n_bins=10, seed=3
    )
    same = {"confidence": confidence, "correct": correct, "n_resamples": 200, "seed": 3}
    hits = with_interval(accuracy, **same)
    gaps = with_interval(expected_calibration_error, **same, n_bins=10)
    assert means[0].value == hits.value
    assert (means[0].low, means[0].high) == pytest.approx((hits.low, hits.high))
    assert ece.value == pytest.approx(gaps.value)
    assert ece.low == pytest.approx(min(gaps.low, gaps.value))
    assert ece.high == pytest.approx(max(gaps.high, gaps.value))
    assert ece.standard_error == pytest.approx(gaps.standard_error)
