"""Quadratic calibration: a parabola in the log-odds that goes on as straight lines."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from calibrant.errors import FitError, InputError
from calibrant.posthoc.platt import PlattScaling
from calibrant.posthoc.quadratic import QuadraticCalibration
from tests.conftest import draw, softmax


def bent(n, *, a=0.6, c=-0.15, b=0.3, seed=0):
    """Log-odds of class 1 between -3 and 3, and labels whose true log-odds are ``a s + c s^2 + b``."""
    rng = np.random.default_rng(seed)
    s = rng.uniform(-3, 3, size=n)
    return s, (rng.random(n) < expit(a * s + c * s**2 + b)).astype(int)


def curve(fitted, s):
    """The log-odds that a binary fit gives to log-odds ``s``."""
    return logit(fitted.predict_proba(np.asarray(s, dtype=np.float64))[:, 1])


def test_the_parabola_that_made_the_labels_is_found():
    s = np.linspace(-2.8, 2.8, 30)
    fitted = QuadraticCalibration.fit(*bent(200_000))
    assert curve(fitted, s) == pytest.approx(0.6 * s - 0.15 * s**2 + 0.3, abs=0.05)


def test_two_classes_without_penalties_are_a_logistic_regression_on_score_and_square():
    # Two values on either side, so that no sample lies beyond an end.
    rng = np.random.default_rng(0)
    s = rng.choice([-2.0, -1.0, 0.5, 1.0, 3.0], size=1000)
    y = (rng.random(1000) < expit(0.5 * s - 0.2 * s**2)).astype(int)
    expected = LogisticRegression(C=np.inf, tol=1e-12, max_iter=1000).fit(np.stack([s, s**2], axis=1), y)
    fitted = QuadraticCalibration.fit(s, y, ridge=0, shrinkage=0)
    at = np.linspace(-2, 3, 20)
    assert curve(fitted, at) == pytest.approx(
        expected.decision_function(np.stack([at, at**2], axis=1)), abs=1e-3
    )


def test_the_ridge_is_that_of_the_formula():
    s, y = bent(300)
    fitted = QuadraticCalibration.fit(s, y, ridge=40.0, shrinkage=0)
    low, high = fitted.ends.tolist()
    middle, half = (low + high) / 2, (high - low) / 2
    place = (np.clip(s, low, high) - middle) / half
    bend = half * place**2 / 2 + (s - np.clip(s, low, high)) * place
    price = 40 * min(bend.var(), 1)

    def loss(theta):
        eta = theta[0] * s + theta[1] * bend + theta[2]
        return np.sum(np.logaddexp(0, eta) - y * eta) + price * theta[1] ** 2 / 2

    expected = minimize(loss, [1, 0, 0], tol=1e-10).x
    got = [each.item() for each in (fitted.slope, fitted.bend, fitted.intercept)]
    assert got == pytest.approx(expected, abs=1e-3)


def test_much_ridge_is_platt_scaling():
    s, y = bent(500)
    straight, platt = QuadraticCalibration.fit(s, y, ridge=1e9), PlattScaling.fit(s, y)
    assert curve(straight, s) == pytest.approx(curve(platt, s), abs=1e-3)
    assert np.abs(curve(QuadraticCalibration.fit(s, y), s) - curve(platt, s)).max() > 0.2


@pytest.mark.parametrize("c", [-0.3, 0.3])
def test_beyond_the_ends_the_curve_is_straight_and_never_falls(c):
    fitted = QuadraticCalibration.fit(*bent(5000, c=c), ridge=0)
    low, high = fitted.ends.tolist()
    slopes = []
    for start, away in ((low, -1), (high, 1)):
        outside = curve(fitted, start + away * np.array([0.0, 2.0, 4.0, 6.0]))
        steps = np.diff(outside) * away
        assert steps == pytest.approx(steps[0], abs=1e-6)
        slopes.append(steps[0] / 2)
    assert min(slopes) == pytest.approx(0.0, abs=1e-9)
    # The parabola itself falls there: inside the ends the curve turns.
    inside = np.diff(curve(fitted, np.linspace(low, high, 50)))
    assert inside.min() < 0
    assert inside.max() > 0
    # The other end goes on with the slope that the parabola has there.
    near = curve(fitted, [high - 1e-3, high] if c > 0 else [low, low + 1e-3])
    assert max(slopes) == pytest.approx((near[1] - near[0]) / 1e-3, rel=1e-2)


def test_the_curve_is_continuous_at_the_ends():
    fitted = QuadraticCalibration.fit(*bent(5000), ridge=0)
    for end in fitted.ends.tolist():
        near = curve(fitted, end + np.array([-1e-6, 1e-6]))
        assert near[0] == pytest.approx(near[1], abs=1e-5)


def test_a_missing_class_has_the_map_that_all_share():
    logits, labels = draw(400, 4, sharpen=2.0)
    seen = labels != 2
    shared = QuadraticCalibration.fit(logits[seen], labels[seen], shrinkage=1e9)
    fitted = QuadraticCalibration.fit(logits[seen], labels[seen])
    for name in ("slope", "bend", "intercept"):
        missing, others = getattr(fitted, name)[2].item(), getattr(shared, name)
        assert missing == pytest.approx(others[0].item(), abs=1e-4)
    assert fitted.bend.max() - fitted.bend.min() > 1e-3


def test_one_answer_only_changes_nothing():
    s = np.linspace(-2, 2, 20)
    fitted = QuadraticCalibration.fit(s, np.ones(20, dtype=int))
    assert curve(fitted, s) == pytest.approx(s)


def test_top_label_keeps_the_predicted_class_and_the_shares_of_the_others():
    logits, labels = draw(800, 5, sharpen=2.5)
    q = np.asarray(QuadraticCalibration.fit(logits, labels, mode="top_label").predict_proba(logits))
    p = softmax(logits)
    assert np.array_equal(q.argmax(axis=1), p.argmax(axis=1))
    q[np.arange(800), q.argmax(axis=1)] = 0
    p[np.arange(800), p.argmax(axis=1)] = 0
    assert q / q.sum(axis=1, keepdims=True) == pytest.approx(p / p.sum(axis=1, keepdims=True), abs=1e-9)
    assert not np.allclose(q, p, atol=0.05)


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_the_scale_of_binary_logits_does_not_matter(factor):
    s, y = bent(3000)
    expected = QuadraticCalibration.fit(s, y, ridge=0).predict_proba(s)
    scaled = QuadraticCalibration.fit(s * factor, y, ridge=0).predict_proba(s * factor)
    assert scaled == pytest.approx(expected, abs=5e-3)


def test_separable_data_need_shrinkage():
    s, y = np.array([-3.0, -1.0, 2.0, 4.0]), [0, 0, 1, 1]
    with pytest.raises(FitError, match="^quadratic calibration: no optimum, a threshold separates class 1"):
        QuadraticCalibration.fit(s, y, shrinkage=0)
    assert torch.isfinite(QuadraticCalibration.fit(s, y).slope).all()


@pytest.mark.parametrize("mode", ["one_vs_rest", "top_label"])
@pytest.mark.parametrize("n", [50, 500])
def test_the_likelihood_of_new_data_rises_even_with_few_samples(n, mode):
    new, truth = draw(4000, 8, seed=77, sharpen=2.5)
    before = log_loss(truth, softmax(new))
    for seed in range(5):
        fitted = QuadraticCalibration.fit(*draw(n, 8, seed=seed, sharpen=2.5), mode=mode)
        assert log_loss(truth, fitted.predict_proba(new)) < before


@pytest.mark.parametrize("option", ["ridge", "shrinkage"])
def test_penalties_are_numbers_of_samples(option):
    with pytest.raises(InputError, match=f"^{option}: expected a number of at least 0, got -1"):
        QuadraticCalibration.fit([1.0, -1.0], [1, 0], **{option: -1})


def test_an_unknown_mode_is_refused():
    with pytest.raises(InputError, match="^mode: expected"):
        QuadraticCalibration.fit([1.0, -1.0], [1, 0], mode="each")
