"""Vector scaling: a scale and an intercept per class."""

import numpy as np
import pytest

from calibrant.errors import InputError
from calibrant.posthoc.vector import VectorScaling
from tests.conftest import draw, softmax


def test_known_scales_and_intercepts_are_recovered():
    logits, labels = draw(40_000, 3, seed=1)
    scale, intercept = np.array([0.5, 1.0, 2.0]), np.array([1.0, 0.0, -0.5])
    fitted = VectorScaling.fit((logits - intercept) / scale, labels)
    assert fitted.scale.numpy() == pytest.approx(scale, rel=0.05)
    # A constant added to all intercepts changes no probability.
    found = fitted.intercept.numpy()
    assert found - found.mean() == pytest.approx(intercept - intercept.mean(), abs=0.05)


def test_the_output_is_the_softmax_of_scaled_and_shifted_logits():
    logits, labels = draw(200, 4, sharpen=2.0)
    fitted = VectorScaling.fit(logits, labels)
    expected = softmax(logits * fitted.scale.numpy() + fitted.intercept.numpy())
    assert fitted.predict_proba(logits) == pytest.approx(expected, abs=1e-12)


def test_a_strong_ridge_gives_temperature_scaling(overconfident):
    fitted = VectorScaling.fit(*overconfident, ridge=1e12)
    assert fitted.scale.numpy() == pytest.approx(np.full(5, float(fitted.scale.mean())), rel=1e-6)
    assert fitted.intercept.numpy() == pytest.approx(np.zeros(5), abs=1e-6)


def test_a_ridge_is_positive():
    with pytest.raises(InputError, match="^ridge: expected a positive number, got -1"):
        VectorScaling.fit([[1.0, 0.0]], [0], ridge=-1)
