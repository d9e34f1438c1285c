"""Monotone scaling: the map, its optimum, the order of the classes, excluded classes."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from calibrant.errors import InputError
from calibrant.metrics import negative_log_likelihood
from calibrant.posthoc import MonotoneScaling, TemperatureScaling


def samples(n=500, k=6, *, seed=0):
    """Logits whose largest is right more often than a temperature can say."""
    rng = np.random.default_rng(seed)
    logits = 2.0 * rng.normal(size=(n, k))
    labels = np.exp(0.6 * logits).cumsum(1) > rng.random((n, 1)) * np.exp(0.6 * logits).sum(1, keepdims=True)
    labels = np.where(rng.random(n) < 0.2, logits.argmax(1), labels.argmax(1))
    return logits, labels


def plain(z, temperature, scale, intercept):
    """The definition for one row: rank, subtract, multiply, add, normalise."""
    t, scaled = len(scale), [each / temperature for each in z]
    order = sorted(range(len(z)), key=lambda c: (-scaled[c], c))
    base = max(scaled[order[t - 1]], scaled[order[0]] - 50)
    scores = [0.0] * len(z)
    for place, c in enumerate(order):
        rank, above = min(place, t - 1), scaled[c] - base
        scores[c] = (scale[rank] if above > 0 else scale[-1]) * above + intercept[rank]
    total = sum(math.exp(each - max(scores)) for each in scores)
    return [math.exp(each - max(scores)) / total for each in scores]


@pytest.mark.parametrize("top", [2, 4, 10])
def test_the_map_is_the_formula_of_the_paper_with_logits_that_count_from_the_last_rank(top):
    logits, labels = samples()
    fitted = MonotoneScaling.fit(logits, labels, top=top)
    numbers = float(fitted.temperature), fitted.scale.tolist(), fitted.intercept.tolist()
    assert len(numbers[1]) == min(top, 6)
    expected = [plain(z, *numbers) for z in logits[:50].tolist()]
    np.testing.assert_allclose(fitted.predict_proba(logits[:50]), expected, rtol=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
def test_no_other_rising_scales_and_intercepts_are_likelier(weighted):
    logits, labels = samples(200, 4)
    weights = np.random.default_rng(1).random(200) if weighted else None
    ridge, t = 0.7, 3
    fitted = MonotoneScaling.fit(logits, labels, top=t, ridge=ridge, weights=weights)
    temperature = float(fitted.temperature)
    shares = np.full(200, 1 / 200) if weights is None else weights / weights.sum()
    size = 200 if weights is None else 1 / np.square(shares).sum()

    def objective(x):
        scale, intercept = np.cumsum(x[:t][::-1])[::-1], np.append(np.cumsum(x[t:][::-1])[::-1], 0)
        p = [plain(z, temperature, scale, intercept)[y] for z, y in zip(logits.tolist(), labels, strict=True)]
        pull = (x[t - 1] - 1) ** 2 + np.square(np.delete(x, t - 1)).sum()
        return -float(shares @ np.log(p)) + ridge / size * pull

    start = np.eye(2 * t - 1)[t - 1]
    bounds = [(0.01 if i == t - 1 else 0, None) for i in range(2 * t - 1)]
    best = minimize(objective, start, bounds=bounds, method="L-BFGS-B", tol=1e-12)
    own = np.concatenate([np.append(-np.diff(fitted.scale), fitted.scale[-1:]), -np.diff(fitted.intercept)])
    assert objective(own) == pytest.approx(best.fun, abs=1e-7)
    assert objective(own) < objective(start) - 1e-3


def test_scales_and_intercepts_never_rise_from_rank_to_rank():
    fitted = MonotoneScaling.fit(*samples())
    for numbers in (fitted.scale, fitted.intercept):
        assert bool((numbers.diff() <= 0).all())
        assert float(numbers.min()) >= 0
    assert float(fitted.intercept[-1]) == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_order_of_the_classes_never_changes(dtype):
    fitted = MonotoneScaling.fit(*samples(), top=4)
    new = np.random.default_rng(2).normal(size=(3000, 6)).astype(dtype) * np.array([[30.0]], dtype)
    new[:500] = np.round(new[:500] / 10) * 10
    log_probs = fitted.predict_log_proba(torch.from_numpy(new))
    order = torch.from_numpy(-new).argsort(dim=1, stable=True)
    assert bool((log_probs.gather(1, order).diff(dim=1) <= 0).all())
    assert log_probs.argmax(dim=1).tolist() == new.argmax(axis=1).tolist()


def test_a_common_offset_changes_nothing():
    logits, labels = samples()
    fitted = MonotoneScaling.fit(logits, labels)
    moved = MonotoneScaling.fit(logits - 100, labels)
    np.testing.assert_allclose(moved.predict_proba(logits + 7), fitted.predict_proba(logits), rtol=1e-6)


def test_on_the_fitting_set_it_is_never_less_likely_than_temperature_scaling():
    for seed in range(5):
        logits, labels = samples(60, 5, seed=seed)
        plainly = TemperatureScaling.fit(logits, labels).predict_proba(logits)
        ours = MonotoneScaling.fit(logits, labels).predict_proba(logits)
        assert negative_log_likelihood(ours, labels) <= negative_log_likelihood(plainly, labels) + 1e-9


def test_ranks_that_are_never_the_truth_keep_some_probability():
    logits, labels = samples(400, 6)
    order = np.argsort(-logits, axis=1)
    labels = np.where(labels == order[:, 0], labels, order[:, 1])
    fitted = MonotoneScaling.fit(logits, labels)
    assert 2 < float(fitted.intercept[0]) < 20
    assert float(fitted.predict_log_proba(logits).min()) > -50


def test_an_infinite_ridge_would_be_temperature_scaling():
    logits, labels = samples()
    fitted = MonotoneScaling.fit(logits, labels, ridge=1e9)
    np.testing.assert_allclose(
        fitted.predict_proba(logits), TemperatureScaling.fit(logits, labels).predict_proba(logits), atol=1e-6
    )


def test_a_class_that_a_logit_excludes_stays_excluded_and_leaves_the_others_alone():
    logits, labels = samples()
    fitted = MonotoneScaling.fit(logits, labels)
    far = np.concatenate([logits[:, :5], np.full((500, 1), -1e20)], axis=1)
    farther = np.concatenate([logits[:, :5], np.full((500, 1), -1e30)], axis=1)
    probs = np.asarray(fitted.predict_proba(far))
    assert probs[:, 5].max() < 1e-9
    np.testing.assert_allclose(fitted.predict_proba(farther), probs)


@pytest.mark.parametrize(
    ("options", "message"), [({"top": 1}, "top: expected"), ({"ridge": 0.0}, "ridge: expected")]
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        MonotoneScaling.fit(*samples(50), **options)
