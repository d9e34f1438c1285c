import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.errors import InputError
from calibrant.metrics.smooth_ece import smooth_ece, smooth_ece_weights, smooth_reliability


def loop_smooth_ece(confidence, correct, sigma, *, points=1500):
    """The definition: a Gaussian and its mirror images at every sample, the integral by midpoints."""
    total = 0.0
    for m in range(points):
        t, height = (m + 0.5) / points, 0.0
        for p, a in zip(confidence, correct, strict=True):
            images = [2 * j + sign * p for j in range(-4, 5) for sign in (1, -1)]
            kernel = sum(math.exp(-((t - image) ** 2) / (2 * sigma**2)) for image in images)
            height += (a - p) * kernel
        total += abs(height) / (math.sqrt(2 * math.pi) * sigma)
    return total / points / len(confidence)


def hits(rng, p):
    """Return hits that occur as often as the confidence, more often, less often, or half of the time."""
    return [rng.random(len(p)) < q for q in (p, np.sqrt(p), p**2, np.full(len(p), 0.5))]


@pytest.mark.parametrize("sigma", [0.02, 0.1, 0.4, 1.0])
@pytest.mark.parametrize(
    "confidence",
    [[0.31, 0.33, 0.6, 0.65, 0.9], [0.0, 0.0, 0.5, 1.0, 1.0], [0.7], [0.2, 0.2, 0.2], [0.999, 0.9999, 0.05]],
)
def test_equals_the_definition_at_a_given_bandwidth(confidence, sigma):
    for seed in range(2):
        correct = np.random.default_rng(seed).random(len(confidence)) < 0.5
        expected = loop_smooth_ece(confidence, correct, sigma)
        ours = smooth_ece(confidence=confidence, correct=correct, bandwidth=sigma)
        assert ours == pytest.approx(expected, abs=2e-5)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40), st.integers(0, 100))
def test_equals_its_bandwidth_is_a_fraction_and_ignores_the_order_of_the_rows(pairs, seed):
    confidence, correct = map(np.array, zip(*pairs, strict=True))
    value = smooth_ece(confidence=confidence, correct=correct)
    assert -1e-12 <= value <= 1 + 1e-9
    if value > 1e-9:
        again = smooth_ece(confidence=confidence, correct=correct, bandwidth=value)
        assert again == pytest.approx(value, abs=1e-7)
    order = np.random.default_rng(seed).permutation(len(pairs))
    assert smooth_ece(confidence=confidence[order], correct=correct[order]) == pytest.approx(value, abs=1e-8)


def test_the_error_never_rises_with_the_bandwidth():
    rng = np.random.default_rng(0)
    p = rng.random(300)
    for a in hits(rng, p):
        widths = [1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.3, 1.0, 10.0]
        values = [smooth_ece(confidence=p, correct=a, bandwidth=w) for w in widths]
        assert all(x >= y - 1e-12 for x, y in pairwise(values))
        assert values[-1] == pytest.approx(abs(np.mean(a - p)), abs=1e-9)


def test_errors_of_one_sign_do_not_cancel():
    rng = np.random.default_rng(1)
    p = rng.random(200)
    assert smooth_ece(confidence=p, correct=p >= 0) == pytest.approx(1 - p.mean(), abs=1e-9)
    assert smooth_ece(confidence=p, correct=p < 0) == pytest.approx(p.mean(), abs=1e-9)
    assert smooth_ece(confidence=[0.75], correct=[False]) == pytest.approx(0.75, abs=1e-9)


def test_reaches_both_ends_of_its_range():
    assert smooth_ece(confidence=[1.0, 1.0], correct=[0, 0]) == pytest.approx(1, abs=1e-9)
    assert smooth_ece(confidence=[0.0, 1.0], correct=[0, 1]) == 0
    assert smooth_ece(confidence=[-0.0, 0.0], correct=[1, 1]) == pytest.approx(1, abs=1e-9)


def test_a_calibrated_model_comes_close_to_zero():
    rng = np.random.default_rng(2)
    p = rng.beta(5, 1, 300_000)
    assert smooth_ece(confidence=p, correct=rng.random(len(p)) < p) < 0.006


def test_single_and_double_precision_agree():
    rng = np.random.default_rng(3)
    p = rng.random(5000, dtype=np.float32)
    for a in hits(rng, p):
        single, double = (smooth_ece(confidence=c, correct=a) for c in (p, p.astype(np.float64)))
        assert single == pytest.approx(double, abs=1e-12)


@pytest.mark.filterwarnings("ignore")
def test_agrees_with_relplot_away_from_certainty_and_from_large_errors():
    relplot = pytest.importorskip("relplot")
    rng = np.random.default_rng(4)
    samples = [rng.beta(2, 2, 4000), 0.02 + 0.96 * rng.random(1000), rng.choice([0.2, 0.55, 0.9], 2000)]
    for p in samples:
        for a in hits(rng, p)[:3]:
            # relplot's search for the bandwidth stops at 1/1024, and its integral has 200 points.
            theirs = relplot.smECE(p, a.astype(float))
            assert theirs < 0.25
            assert smooth_ece(confidence=p, correct=a) == pytest.approx(theirs, abs=1e-3)


@pytest.mark.filterwarnings("ignore")
def test_certain_predictions_count_in_full_which_relplot_counts_by_half():
    relplot = pytest.importorskip("relplot")
    p = np.array([1.0] * 50 + [0.8] * 50)
    a = np.array([1.0] * 50 + [1.0] * 30 + [0.0] * 20)
    assert smooth_ece(confidence=p, correct=a) == pytest.approx(0.5 * 0.2, abs=1e-6)
    assert relplot.smECE(p, a) == pytest.approx(0.5 * 0.2 / 0.75, abs=2e-3), "relplot has changed: say so"


def test_the_distance_of_the_curve_from_the_diagonal_is_the_error():
    rng = np.random.default_rng(5)
    p = rng.beta(5, 1, 3000)
    for a in hits(rng, p):
        curve = smooth_reliability(confidence=p, correct=a)
        t, accuracy, density = curve.confidence.numpy(), curve.accuracy.numpy(), curve.density.numpy()
        gap = np.where(density > 0, np.abs(np.nan_to_num(accuracy - t)), 0.0)
        assert np.trapezoid(density, t) == pytest.approx(1, abs=1e-9)
        assert np.trapezoid(gap * density, t) == pytest.approx(curve.value, abs=1e-6)
        assert curve.value == pytest.approx(smooth_ece(confidence=p, correct=a), abs=1e-12)
        assert curve.bandwidth == pytest.approx(curve.value, abs=1e-8)


def test_the_curve_shows_the_accuracy_and_is_nan_where_nothing_was_predicted():
    rng = np.random.default_rng(6)
    p = 0.6 + 0.4 * rng.random(200_000)
    curve = smooth_reliability(confidence=p, correct=rng.random(len(p)) < p - 0.1, bandwidth=0.01)
    assert float(curve.accuracy[int(0.8 * 4096)]) == pytest.approx(0.7, abs=0.02)
    assert math.isnan(curve.accuracy[0])


def test_reads_probabilities_with_labels(sample):
    probs, labels = sample
    confidence, correct = probs.max(axis=1), probs.argmax(axis=1) == labels
    assert smooth_ece(probs, labels) == smooth_ece(confidence=confidence, correct=correct)
    assert smooth_reliability(probs, labels).value == smooth_ece(probs, labels)


@pytest.mark.parametrize("bandwidth", [0, -0.1, math.inf, math.nan])
def test_a_bandwidth_is_a_positive_number(bandwidth):
    with pytest.raises(InputError, match="^bandwidth: expected a positive number, got"):
        smooth_ece(confidence=[0.5], correct=[1], bandwidth=bandwidth)


@pytest.mark.parametrize("n", [1, 2, 40, 3000])
@pytest.mark.parametrize("bandwidth", [None, 0.001, 0.05])
def test_resamples_are_measured_on_fewer_points_and_nearly_as_exactly(n, bandwidth):
    rng = np.random.default_rng(n)
    confidence = rng.beta(5, 1.2, size=n)
    correct = rng.random(n) < confidence**1.2
    counts = rng.multinomial(n, np.full(n, 1 / n), size=20)
    found = smooth_ece_weights(confidence=confidence, correct=correct, bandwidth=bandwidth).of(counts)
    expected = [
        smooth_ece(
            confidence=np.repeat(confidence, each), correct=np.repeat(correct, each), bandwidth=bandwidth
        )
        for each in counts
    ]
    np.testing.assert_allclose(found, expected, atol=1e-5)
