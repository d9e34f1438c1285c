"""Beta calibration: a map that bends at both ends."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit, log_expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from calibrant.errors import FitError, InputError
from calibrant.posthoc.beta import BetaCalibration
from tests.conftest import draw, softmax


def bent(n, *, a=0.4, b=1.5, c=0.3, seed=0):
    """Log-odds of class 1 and labels whose true log-odds are ``a log p - b log(1 - p) + c``."""
    rng = np.random.default_rng(seed)
    s = rng.normal(size=n) * 2
    return s, (rng.random(n) < expit(a * log_expit(s) - b * log_expit(-s) + c)).astype(int)


def coefficients(fitted):
    return [fitted.a.item(), fitted.b.item(), fitted.intercept.item()]


def test_the_map_that_made_the_labels_is_found():
    assert coefficients(BetaCalibration.fit(*bent(100_000))) == pytest.approx([0.4, 1.5, 0.3], abs=0.1)


def test_two_classes_without_shrinkage_are_a_logistic_regression_on_both_logs():
    s, y = bent(1000)
    inputs = np.stack([log_expit(s), -log_expit(-s)], axis=1)
    expected = LogisticRegression(C=np.inf, tol=1e-12, max_iter=1000).fit(inputs, y)
    fitted = BetaCalibration.fit(s, y, shrinkage=0)
    assert coefficients(fitted) == pytest.approx([*expected.coef_[0], *expected.intercept_], abs=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_bounds_are_those_of_a_constrained_solver(seed):
    # Labels that fall where the score rises on one side pull one coefficient below zero, or both.
    rng = np.random.default_rng(seed)
    s = rng.normal(size=400) * 2
    y = (rng.random(400) < expit([-np.abs(s) + 1, np.abs(s) - 1, -s, 0 * s][seed])).astype(int)
    x = np.stack([log_expit(s), -log_expit(-s), np.ones_like(s)], axis=1)
    expected = minimize(
        lambda t: np.sum(np.logaddexp(0, x @ t) - y * (x @ t)),
        [1, 1, 0],
        jac=lambda t: x.T @ (expit(x @ t) - y),
        bounds=[(0, None), (0, None), (None, None)],
        options={"ftol": 1e-14, "gtol": 1e-10},
    )
    fitted = BetaCalibration.fit(s, y, shrinkage=0)
    assert coefficients(fitted) == pytest.approx(expected.x, abs=1e-3)
    assert min(coefficients(fitted)[:2]) >= 0


def test_the_map_never_falls():
    fitted = BetaCalibration.fit(*bent(200))
    assert np.all(np.diff(fitted.predict_proba(np.linspace(-30, 30, 500))[:, 1]) >= -1e-12)


def test_each_class_has_its_own_map_and_probabilities_are_divided_by_their_sum():
    logits, labels = draw(1000, 3, sharpen=2.0)
    p = softmax(logits)
    fitted = BetaCalibration.fit(logits, labels, shrinkage=0)
    q = expit(np.log(p) * fitted.a.numpy() - np.log1p(-p) * fitted.b.numpy() + fitted.intercept.numpy())
    assert fitted.predict_proba(logits) == pytest.approx(q / q.sum(axis=1, keepdims=True), abs=1e-9)
    for c in range(3):
        s = np.log(p[:, c]) - np.log1p(-p[:, c])
        alone = BetaCalibration.fit(s, (labels == c).astype(int), shrinkage=0)
        assert fitted.a[c].item() == pytest.approx(alone.a.item(), abs=1e-4)


def test_separable_data_need_shrinkage():
    s, y = np.array([-3.0, -1.0, 2.0, 4.0]), [0, 0, 1, 1]
    with pytest.raises(FitError, match="^beta calibration: no optimum, a threshold separates class 1"):
        BetaCalibration.fit(s, y, shrinkage=0)
    assert torch.isfinite(BetaCalibration.fit(s, y).a).all()


@pytest.mark.parametrize("n", [50, 500])
def test_the_likelihood_of_new_data_rises_even_with_few_samples(n):
    new, truth = draw(4000, 8, seed=77, sharpen=2.5)
    before = log_loss(truth, softmax(new))
    for seed in range(5):
        fitted = BetaCalibration.fit(*draw(n, 8, seed=seed, sharpen=2.5))
        assert log_loss(truth, fitted.predict_proba(new)) < before


def test_shrinkage_is_a_number_of_samples():
    with pytest.raises(InputError, match="^shrinkage: expected a number of at least 0, got -1"):
        BetaCalibration.fit([1.0, -1.0], [1, 0], shrinkage=-1)
