import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from calibrant.errors import InputError
from calibrant.metrics.charbonnier import charbonnier_error, smoothing_bias, smoothing_bias_bound
from calibrant.metrics.smooth_calibration import smooth_calibration_error


def kernel_mean(function, p, lam):
    """Mean of a function of u under the kernel around p, by adaptive quadrature."""
    reach = 7 / math.sqrt(lam)
    low, high = max(0.0, p - reach), min(1.0, p + reach)
    options = {"points": [p] if low < p < high else None, "epsabs": 1e-13, "epsrel": 1e-12, "limit": 500}
    top, _ = quad(lambda u: function(u) * math.exp(-lam * (p - u) ** 2), low, high, **options)
    bottom, _ = quad(lambda u: math.exp(-lam * (p - u) ** 2), low, high, **options)
    return top / bottom


def loop_charbonnier(confidence, correct, lam, delta):
    """Eq. (6), sample by sample."""
    terms = [
        kernel_mean(lambda u, a=a: math.sqrt((a - u) ** 2 + delta**2), p, lam)
        for p, a in zip(map(float, confidence), map(float, correct), strict=True)
    ]
    return math.fsum(terms) / len(terms)


@pytest.mark.parametrize("lam", [0.5, 20.0, 200.0, 1e5])
@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.1])
def test_equals_the_definition(lam, delta):
    rng = np.random.default_rng(0)
    p = np.concatenate([rng.random(12), [0.0, 1.0, 1.0, 0.5, 0.5]])
    a = rng.random(len(p)) < 0.5
    ours = charbonnier_error(confidence=p, correct=a, lam=lam, delta=delta)
    assert ours == pytest.approx(loop_charbonnier(p, a, lam, delta), abs=1e-9)


def test_many_samples_are_interpolated_without_loss():
    rng = np.random.default_rng(1)
    p = rng.beta(5, 1, 60_000)
    a = rng.random(len(p)) < p
    parts = [
        charbonnier_error(confidence=p[i : i + 500], correct=a[i : i + 500]) for i in range(0, len(p), 500)
    ]
    assert charbonnier_error(confidence=p, correct=a) == pytest.approx(np.mean(parts), abs=1e-9)


@pytest.mark.parametrize("lam", [1e-3, 0.5, 1.0, 7.0, 200.0, 1e4])
def test_the_bias_is_the_largest_mean_distance_and_stays_below_its_bound(lam):
    worst = max(kernel_mean(lambda u, p=p: abs(p - u), p, lam) for p in np.linspace(0, 1, 41))
    assert smoothing_bias(lam) == pytest.approx(worst, rel=1e-9)
    assert smoothing_bias(lam) <= smoothing_bias_bound(lam)


def test_the_closed_bound_is_that_of_the_paper_and_holds_for_an_uneven_density():
    for lam in (1.0, 10.0, 200.0):
        assert smoothing_bias_bound(lam) <= min(1.0, 1.3391 / math.sqrt(lam))
    assert smoothing_bias_bound(1.0, kappa=2.0) == 1
    lam, kappa = 200.0, 4.0

    def density(u):
        return 1.0 if u < 0.5 else kappa

    for p in np.linspace(0, 1, 21):
        moved = kernel_mean(lambda u, p=p: abs(p - u) * density(u), p, lam)
        assert moved / kernel_mean(density, p, lam) <= smoothing_bias_bound(lam, kappa=kappa)


PAIRS = st.lists(
    st.tuples(st.floats(0, 1) | st.sampled_from([0.0, 0.5, 1.0]), st.booleans()), min_size=1, max_size=30
)


@settings(max_examples=80)
@given(PAIRS, st.sampled_from([1.0, 20.0, 200.0, 5000.0]), st.sampled_from([0.0, 1e-3, 0.1]))
def test_theorem_3_1_bounds_the_smooth_calibration_error(pairs, lam, delta):
    confidence, correct = zip(*pairs, strict=True)
    h = charbonnier_error(confidence=confidence, correct=correct, lam=lam, delta=delta)
    exact = smooth_calibration_error(confidence=confidence, correct=correct)
    assert exact <= h + 2 * smoothing_bias(lam) + 1e-9
    # The proof shows more: the mean absolute error lies between the two, and one bias is enough.
    absolute = np.mean(np.abs(np.subtract(correct, confidence)))
    assert exact <= absolute + 1e-12
    assert absolute <= h + smoothing_bias(lam) + 1e-9


@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0, 10.0])
def test_theorem_3_1_holds_for_predictions_of_a_network(overconfident, temperature):
    logits, labels = overconfident
    probs = torch.softmax(torch.tensor(logits) / temperature, dim=1)
    assert smooth_calibration_error(probs, labels) <= charbonnier_error(probs, labels) + 2 * smoothing_bias()


def test_it_falls_while_calibration_gets_worse():
    correct = [1] * 7 + [0] * 3
    calibrated, overconfident = ({"confidence": [c] * 10, "correct": correct} for c in (0.7, 1.0))
    assert charbonnier_error(**overconfident) < charbonnier_error(**calibrated)
    assert smooth_calibration_error(**overconfident) > smooth_calibration_error(**calibrated) + 0.29


@settings(max_examples=40)
@given(PAIRS, st.integers(0, 100))
def test_the_order_of_the_rows_does_not_matter_and_values_are_bounded(pairs, seed):
    confidence, correct = map(np.array, zip(*pairs, strict=True))
    order = np.random.default_rng(seed).permutation(len(pairs))
    first = charbonnier_error(confidence=confidence, correct=correct, delta=0.01)
    second = charbonnier_error(confidence=confidence[order], correct=correct[order], delta=0.01)
    assert first == pytest.approx(second, abs=1e-12)
    assert 0 <= first <= math.hypot(1, 0.01)


def test_right_and_sure_still_costs_the_bias_and_delta_is_the_floor():
    sure = charbonnier_error(confidence=[1.0, 0.0], correct=[1, 0], delta=0.0)
    assert sure == pytest.approx(smoothing_bias(), abs=1e-9)
    assert charbonnier_error(confidence=[1.0], correct=[1], lam=1e10, delta=0.01) == pytest.approx(
        0.01, abs=1e-6
    )


def test_single_and_double_precision_agree(sample):
    probs, labels = sample
    single = probs.astype(np.float32)
    first, second = (charbonnier_error(q, labels) for q in (single, single.astype(np.float64)))
    assert first == pytest.approx(second, abs=1e-12)


def test_options_are_checked():
    pair = {"confidence": [0.5], "correct": [1]}
    for lam in (0, -1.0, math.inf, math.nan):
        with pytest.raises(InputError, match="^lam: expected a positive number, got"):
            charbonnier_error(**pair, lam=lam)
        with pytest.raises(InputError, match="^lam: expected a positive number, got"):
            smoothing_bias(lam)
    for delta in (-1e-3, math.inf, math.nan):
        with pytest.raises(InputError, match="^delta: expected a number of at least 0, got"):
            charbonnier_error(**pair, delta=delta)
    with pytest.raises(InputError, match="^kappa: expected a number of at least 1, got 0.5"):
        smoothing_bias_bound(200.0, kappa=0.5)
