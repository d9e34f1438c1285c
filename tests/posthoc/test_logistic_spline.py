"""Logistic regression on a natural cubic spline, with a ridge chosen by cross-validation."""

import time

import numpy as np
import pytest
import torch
from scipy.interpolate import CubicSpline
from scipy.optimize import minimize
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from calibrant.errors import FitError, InputError
from calibrant.posthoc.fitting.natural_splines import mixed_splines, natural_splines, smoothest_mixture
from calibrant.posthoc.logistic_spline import RIDGES, LogisticSpline
from calibrant.posthoc.platt import PlattScaling
from tests.conftest import at_length, draw, softmax


def truth(s):
    """Log-odds that no straight line and no parabola follows."""
    return 1.5 * np.tanh(2 * s) + 0.2 * s


def wavy(n, *, seed=0):
    rng = np.random.default_rng(seed)
    s = rng.uniform(-3, 3, size=n)
    return s, (rng.random(n) < expit(truth(s))).astype(int)


def bowed(n, *, seed=0):
    """Log-odds and labels between a straight line and the wave."""
    rng = np.random.default_rng(seed)
    s = rng.uniform(-3, 3, size=n)
    return s, (rng.random(n) < expit(0.5 * s + 0.3 * np.sin(1.5 * s))).astype(int)


def curve(fitted, s):
    """The log-odds that a binary fit gives to log-odds ``s``."""
    return logit(fitted.predict_proba(np.asarray(s, dtype=np.float64))[:, 1])


def natural_basis(s, knots):
    """Each column a natural cubic spline that is 1 at one knot and 0 at the others, straight beyond them."""
    spline = CubicSpline(knots, np.eye(len(knots)), bc_type="natural")
    inside = np.clip(s, knots[0], knots[-1])
    return spline(inside) + spline(inside, 1) * (s - inside)[:, None]


def test_the_curve_that_made_the_labels_is_found():
    s = np.linspace(-2.8, 2.8, 40)
    found = curve(LogisticSpline.fit(*wavy(100_000), n_knots=12), s)
    assert np.abs(found - truth(s)).max() < 0.15
    assert np.abs(curve(PlattScaling.fit(*wavy(100_000)), s) - truth(s)).max() > 0.4


@pytest.mark.parametrize("n_knots", [3, 4, 7])
def test_without_penalties_it_is_scikit_learns_regression_on_a_natural_spline(n_knots):
    s, y = wavy(1500)
    fitted = LogisticSpline.fit(s, y, n_knots=n_knots, ridge=0, shrinkage=0)
    knots = fitted.knots.numpy()
    assert len(knots) == n_knots
    model = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-12, max_iter=5000)
    model.fit(natural_basis(s, knots), y)
    # Far beyond the knots too.
    at = np.linspace(-6, 6, 50)
    assert curve(fitted, at) == pytest.approx(model.decision_function(natural_basis(at, knots)), abs=5e-3)


def test_the_ridge_is_that_of_the_formula():
    s, y = wavy(400)
    fitted = LogisticSpline.fit(s, y, ridge=25.0, shrinkage=0)
    inputs = mixed_splines(torch.from_numpy(s), fitted.knots, smoothest_mixture(fitted.knots))
    x = np.stack([*(each.numpy() for each in inputs), np.ones_like(s)], axis=1)
    price = 25 * np.minimum(x.var(axis=0), 1) * np.array([0, 1, 1, 1, 1, 0])
    best = minimize(
        lambda t: np.sum(np.logaddexp(0, x @ t) - y * (x @ t)) + price @ t**2 / 2,
        np.zeros(6),
        jac=lambda t: x.T @ (expit(x @ t) - y) + price * t,
        options={"gtol": 1e-8},
    )
    assert curve(fitted, s) == pytest.approx(x @ best.x, abs=1e-4)


def test_mixtures_have_orthonormal_second_derivatives():
    knots = torch.tensor([-2.0, -1.5, 0.0, 0.2, 3.0], dtype=torch.float64)
    t = torch.linspace(-2, 3, 20_001, dtype=torch.float64)
    curves = np.stack(
        [each.numpy() for each in mixed_splines(t, knots, smoothest_mixture(knots))[1:]], axis=1
    )
    # In places from 0 to 1, as heights in units of the scores are.
    step = 1 / 20_000
    bends = np.diff(curves / 5, n=2, axis=0) / step**2
    assert bends.T @ bends * step == pytest.approx(np.eye(3), abs=1e-2)


def test_the_basis_is_straight_and_exact_far_beyond_the_knots():
    knots = torch.tensor([-2.0, 0.0, 1.0, 3.0])
    near, far = (
        torch.stack(natural_splines(torch.tensor(at), knots))
        for at in ([3.0, 4.0, 5.0], [1e4, 1e4 + 1, 1e4 + 2])
    )
    slope = near.diff(dim=1)
    assert slope[:, 0] == pytest.approx(slope[:, 1], abs=1e-5)
    assert far[:, 0] == pytest.approx(near[:, 0] + slope[:, 0] * (1e4 - 3), rel=1e-4)
    assert torch.stack(natural_splines(torch.tensor([-1e4]), knots))[1:].abs().max() == 0


def test_much_ridge_is_platt_scaling():
    s, y = wavy(500)
    platt = curve(PlattScaling.fit(s, y), s)
    assert curve(LogisticSpline.fit(s, y, ridge=1e9), s) == pytest.approx(platt, abs=1e-3)
    assert np.abs(curve(LogisticSpline.fit(s, y, ridge=1.0), s) - platt).max() > 0.2


@pytest.mark.parametrize("sample", [bowed, wavy])
def test_the_ridge_has_the_lowest_loss_in_cross_validation(sample):
    s, y = sample(300)
    chosen = LogisticSpline.fit(s, y).for_folds["ridge"]
    # Other folds than those of the fit, so the loss may differ a little.
    losses = {}
    for ridge in (RIDGES[0], 10.0, chosen, RIDGES[-1]):
        losses[ridge] = 0.0
        for seed in range(3):
            fold = np.random.default_rng(seed).permutation(300) % 5
            for f in range(5):
                fitted = LogisticSpline.fit(s[fold != f], y[fold != f], ridge=ridge)
                q = fitted.predict_proba(s[fold == f])[:, 1]
                losses[ridge] += log_loss(y[fold == f], q, labels=[0, 1]) / 15
    assert losses[chosen] <= min(losses.values()) + 3e-3
    assert max(losses.values()) > min(losses.values()) + 5e-3


def test_straight_data_get_a_strong_ridge_and_wavy_data_a_weak_one():
    rng = np.random.default_rng(0)
    s = rng.normal(size=4000) * 2
    straight = LogisticSpline.fit(s, (rng.random(4000) < expit(0.5 * s)).astype(int)).for_folds["ridge"]
    assert straight >= 30
    assert LogisticSpline.fit(*wavy(4000)).for_folds["ridge"] < straight


def test_a_ridge_that_was_found_can_be_given():
    s, y = wavy(500)
    found = LogisticSpline.fit(s, y)
    again = LogisticSpline.fit(s, y, **found.for_folds)
    assert torch.equal(found.coefficients, again.coefficients)


def test_few_values_have_fewer_knots():
    rng = np.random.default_rng(0)
    for values in ([0.5], [-1.0, 2.0], [-1.0, 0.0, 2.0], [0.0, 1.0, 1.0 + 1e-9, 2.0]):
        s = rng.choice(values, size=300)
        y = (rng.random(300) < expit(s / 2)).astype(int)
        fitted = LogisticSpline.fit(s, y)
        assert len(fitted.knots) == min(len(values), 3)
        for value in np.unique(s.round(6)):
            here = s.round(6) == value
            assert fitted.predict_proba(s[here])[0, 1] == pytest.approx(y[here].mean(), abs=0.08)


def test_a_missing_class_has_the_map_that_all_share():
    logits, labels = draw(400, 4, sharpen=2.0)
    seen = labels != 2
    shared, fitted = (
        LogisticSpline.fit(logits[seen], labels[seen], ridge=5.0, shrinkage=s).coefficients
        for s in (1e9, 10.0)
    )
    assert fitted[2].numpy() == pytest.approx(shared[0].numpy(), abs=1e-2)
    assert np.abs((fitted[1] - shared[0]).numpy()).max() > 0.05


def test_one_answer_only_changes_nothing():
    s = np.linspace(-2, 2, 20)
    assert curve(LogisticSpline.fit(s, np.ones(20, dtype=int)), s) == pytest.approx(s)


def test_top_label_keeps_the_predicted_class():
    logits, labels = draw(800, 5, sharpen=2.5)
    q = np.asarray(LogisticSpline.fit(logits, labels, mode="top_label").predict_proba(logits))
    assert np.array_equal(q.argmax(axis=1), logits.argmax(axis=1))
    assert log_loss(labels, q) < log_loss(labels, softmax(logits))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["one_vs_rest", "top_label"])
@pytest.mark.parametrize("n", at_length([50, 500], [50]))
def test_the_likelihood_of_new_data_rises_even_with_few_samples(n, mode):
    new, labels = draw(4000, 8, seed=77, sharpen=2.5)
    before = log_loss(labels, softmax(new))
    for seed in range(2):
        fitted = LogisticSpline.fit(*draw(n, 8, seed=seed, sharpen=2.5), mode=mode)
        assert log_loss(labels, fitted.predict_proba(new)) < before


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_the_scale_of_binary_logits_does_not_matter(factor):
    s, y = wavy(3000)
    expected = LogisticSpline.fit(s, y, ridge=0).predict_proba(s)
    scaled = LogisticSpline.fit(s * factor, y, ridge=0).predict_proba(s * factor)
    assert scaled == pytest.approx(expected, abs=1e-2)


@pytest.mark.slow
def test_a_hundred_classes_take_seconds():
    logits, labels = draw(5000, 100, sharpen=2.0)
    begun = time.process_time()
    LogisticSpline.fit(logits, labels)
    assert time.process_time() - begun < 15


def test_separable_data_need_shrinkage():
    s, y = np.array([-3.0, -1.0, 2.0, 4.0]), [0, 0, 1, 1]
    with pytest.raises(FitError, match="^logistic spline: no optimum, a threshold separates class 1"):
        LogisticSpline.fit(s, y, shrinkage=0)
    assert torch.isfinite(LogisticSpline.fit(s, y).coefficients).all()


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"ridge": -1}, "ridge: expected a number of at least 0, got -1"),
        ({"shrinkage": -1}, "shrinkage: expected a number of at least 0, got -1"),
        ({"n_knots": 2}, "n_knots: expected"),
        ({"mode": "each"}, "mode: expected"),
    ],
)
def test_bad_options_are_refused(option, reason):
    with pytest.raises(InputError, match=f"^{reason}"):
        LogisticSpline.fit([1.0, -1.0], [1, 0], **option)
