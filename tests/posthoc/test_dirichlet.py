"""Dirichlet calibration: a linear map of log-probabilities."""

import numpy as np
import pytest
from scipy.optimize import minimize

from calibrant.errors import InputError
from calibrant.posthoc.dirichlet import DirichletCalibration
from calibrant.posthoc.temperature import TemperatureScaling
from tests.conftest import draw, softmax


@pytest.fixture(scope="module")
def dirichlet():
    """Probabilities that are Dirichlet-distributed given the class, so that a linear map is the truth."""
    rng = np.random.default_rng(0)
    alpha = np.array([[6.0, 1.0, 2.0], [1.0, 4.0, 1.0], [2.0, 1.0, 3.0]])
    labels = rng.integers(3, size=20_000)
    probs = np.array([rng.dirichlet(alpha[y]) for y in labels])
    return np.log(probs), labels, alpha


@pytest.mark.slow
def test_the_posterior_of_dirichlet_data_is_recovered(dirichlet):
    logits, labels, alpha = dirichlet
    from scipy.special import gammaln

    constant = gammaln(alpha.sum(axis=1)) - gammaln(alpha).sum(axis=1)
    posterior = softmax(logits @ (alpha - 1).T + constant)
    fitted = DirichletCalibration.fit(logits, labels)
    assert np.abs(fitted.predict_proba(logits) - posterior).mean() < 0.01


def test_only_the_probabilities_matter(dirichlet):
    logits, labels, _ = dirichlet
    few, shift = slice(2000), np.linspace(-30, 30, 2000)[:, None]
    plain = DirichletCalibration.fit(logits[few], labels[few], off_diagonal=0.1)
    shifted = DirichletCalibration.fit(logits[few] + shift, labels[few], off_diagonal=0.1)
    expected = plain.predict_proba(logits[few])
    assert shifted.predict_proba(logits[few] + shift) == pytest.approx(expected, abs=1e-6)


def test_the_fit_minimises_the_published_objective():
    logits, labels = draw(150, 3, seed=1, sharpen=2.0)
    n, k, lam, mu = 150, 3, 0.4, 0.1
    t = float(TemperatureScaling.fit(logits, labels).temperature)
    logp = np.log(softmax(logits))

    def objective(theta):
        weight, bias = theta[:9].reshape(3, 3), theta[9:]
        loss = -np.log(softmax(logp @ weight.T + bias)[np.arange(n), labels]).mean()
        off = sum(weight[j, c] ** 2 for j in range(k) for c in range(k) if j != c)
        weak = 5 / n * ((t * np.diag(weight) - 1) ** 2).sum()
        return loss + lam / (k * (k - 1)) * t**2 * off + mu / k * (bias**2).sum() + weak

    found = minimize(objective, np.append(np.eye(3).ravel() / t, np.zeros(3)), tol=1e-9).x
    fitted = DirichletCalibration.fit(logits, labels, off_diagonal=lam, intercept=mu)
    assert fitted.weight.numpy() == pytest.approx(found[:9].reshape(3, 3), abs=2e-3)
    assert fitted.intercept.numpy() == pytest.approx(found[9:], abs=2e-3)


def test_one_factor_given_speaks_for_both():
    logits, labels = draw(100, 3, seed=1, sharpen=2.0)
    both = DirichletCalibration.fit(logits, labels, off_diagonal=0.3, intercept=0.3).weight
    for given in ({"off_diagonal": 0.3}, {"intercept": 0.3}):
        assert (DirichletCalibration.fit(logits, labels, **given).weight == both).all()


@pytest.mark.parametrize("name", ["off_diagonal", "intercept"])
def test_factors_are_positive(name):
    with pytest.raises(InputError, match=f"^{name}: expected a positive number, got 0"):
        DirichletCalibration.fit([[1.0, 0.0]], [0], **{name: 0})
