"""The NLL that a fitted temperature leaves."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from calibrant.errors import InputError
from calibrant.evaluation import nll_after_temperature
from calibrant.posthoc import TemperatureScaling


def samples(n=400, k=5, *, seed=0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, k))
    labels = (
        np.exp(logits).cumsum(axis=1) > rng.random((n, 1)) * np.exp(logits).sum(axis=1, keepdims=True)
    ).argmax(axis=1)
    return 3 * logits, labels


def mean_nll(logits, labels, weights, temperature):
    total = 0.0
    for z, y, w in zip(logits / temperature, labels, weights, strict=True):
        total += w * (np.log(np.exp(z - z.max()).sum()) + z.max() - z[y])
    return total / sum(weights)


@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_the_smallest_nll_of_any_temperature(weighted):
    logits, labels = samples()
    weights = np.random.default_rng(1).random(400) if weighted else np.ones(400)
    found = nll_after_temperature(logits, labels, weights=weights if weighted else None)
    best = minimize_scalar(lambda t: mean_nll(logits, labels, weights, t), bounds=(0.1, 20), method="bounded")
    assert found == pytest.approx(best.fun, abs=1e-7)
    assert found < mean_nll(logits, labels, weights, 1.0) - 0.1


def test_the_scale_of_the_logits_does_not_matter():
    logits, labels = samples()
    assert nll_after_temperature(10 * logits, labels) == pytest.approx(nll_after_temperature(logits, labels))


def test_it_is_the_nll_of_temperature_scaling():
    logits, labels = samples()
    scaled = TemperatureScaling.fit(logits, labels).predict_proba(logits)
    expected = -np.log(scaled[np.arange(400), labels]).mean()
    assert nll_after_temperature(logits, labels) == pytest.approx(expected)


def test_log_odds_of_two_classes_and_tensors_are_read_too():
    logits, labels = samples(k=2)
    odds = torch.from_numpy(logits[:, 1] - logits[:, 0])
    assert nll_after_temperature(odds, torch.from_numpy(labels)) == pytest.approx(
        nll_after_temperature(logits, labels)
    )


def test_a_network_that_is_always_right_has_almost_none_left():
    assert nll_after_temperature(np.eye(3) * 0.1, [0, 1, 2]) < 0.2


def test_a_single_column_of_labels_that_do_not_exist_is_refused():
    with pytest.raises(InputError, match="labels"):
        nll_after_temperature([[1.0, 2.0]], [5])
