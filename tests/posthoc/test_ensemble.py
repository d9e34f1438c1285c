"""Ensemble temperature scaling: the best mixture of tempered, original and uniform."""

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

from calibrant.posthoc.ensemble import EnsembleTemperatureScaling
from calibrant.posthoc.temperature import TemperatureScaling
from tests.conftest import draw, softmax


@pytest.fixture(scope="module")
def noisy():
    """Overconfident logits with a tenth of the labels drawn at random."""
    logits, labels = draw(5000, 4, seed=1, spread=3.0, sharpen=2.0)
    rng = np.random.default_rng(0)
    return logits, np.where(rng.random(5000) < 0.1, rng.integers(4, size=5000), labels)


def mixture(logits, temperature, shares):
    k = logits.shape[1]
    return shares[0] * softmax(logits / temperature) + shares[1] * softmax(logits) + shares[2] / k


def test_the_output_is_the_mixture(noisy):
    fitted = EnsembleTemperatureScaling.fit(*noisy)
    expected = mixture(noisy[0], float(fitted.temperature), fitted.shares.numpy())
    assert fitted.predict_proba(noisy[0]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.slow
def test_no_other_shares_are_likelier(noisy):
    logits, labels = noisy
    fitted = EnsembleTemperatureScaling.fit(logits, labels)
    best = log_loss(labels, fitted.predict_proba(logits))
    steps = np.linspace(0, 1, 21)
    grid = [(a, b, 1 - a - b) for a in steps for b in steps if a + b <= 1 + 1e-12]
    losses = [log_loss(labels, mixture(logits, float(fitted.temperature), w)) for w in grid[1:]]
    assert best <= min(losses) + 1e-9
    assert best < log_loss(labels, TemperatureScaling.fit(logits, labels).predict_proba(logits)) - 1e-4


def test_shares_are_a_distribution(noisy):
    for data in (noisy, draw(50, 3, seed=2), draw(300, 10, seed=4, sharpen=0.3)):
        shares = EnsembleTemperatureScaling.fit(*data).shares
        assert (shares >= 0).all()
        assert float(shares.sum()) == pytest.approx(1.0, abs=1e-12)


def test_the_predicted_class_never_changes_and_ties_stay_ties(noisy):
    fitted = EnsembleTemperatureScaling.fit(*noisy)
    for dtype in (torch.float32, torch.float64):
        z = torch.as_tensor(noisy[0], dtype=dtype)
        z[:20, 1] = z[:20, 3] = z[:20].amax(dim=1)
        out = fitted(z)
        assert torch.equal(out.argmax(dim=1), z.argmax(dim=1))
        assert torch.equal(out[:20, 1], out[:20, 3])


def test_a_share_of_each_part_is_found_when_it_is_the_truth():
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(60_000, 3)) * 6
    truth = mixture(logits, 3.0, (0.6, 0.0, 0.4))
    labels = (truth.cumsum(axis=1) > rng.random((60_000, 1))).argmax(axis=1)
    fitted = EnsembleTemperatureScaling.fit(logits, labels)
    assert np.abs(fitted.predict_proba(logits) - truth).mean() < 0.02


def test_the_uniform_share_is_never_all(noisy):
    logits = noisy[0]
    fitted = EnsembleTemperatureScaling.fit(logits, logits.argmin(axis=1))
    tempered, original, uniform = fitted.shares.tolist()
    assert uniform == pytest.approx(0.999, abs=1e-9)
    assert uniform <= 0.999 + 1e-12
    # The flatter of the two others hurts less.
    assert (tempered > original) == (float(fitted.temperature) > 1)
    assert torch.equal(fitted(torch.as_tensor(logits)).argmax(dim=1), torch.as_tensor(logits).argmax(dim=1))


@pytest.mark.parametrize("sharpen", [1e-3, 0.3, 1.0, 4.0, 1e4])
@pytest.mark.parametrize("n", [3, 50, 2000])
def test_it_is_never_less_likely_than_temperature_scaling(n, sharpen):
    logits, labels = draw(n, 4, seed=n, sharpen=sharpen)
    z, y = torch.tensor(logits), torch.tensor(labels)[:, None]
    ensemble, one = (method.fit(z, labels) for method in (EnsembleTemperatureScaling, TemperatureScaling))
    tempered = torch.log_softmax(z / ensemble.temperature, dim=1)
    assert float(ensemble(z).gather(1, y).mean()) >= float(tempered.gather(1, y).mean()) - 1e-12
    assert float(ensemble(z).gather(1, y).mean()) >= float(one(z).gather(1, y).mean()) - 1e-9
