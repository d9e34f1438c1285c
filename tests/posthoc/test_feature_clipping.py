"""Feature clipping: large activations are cut before the model's own head."""

from importlib.resources import files

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from calibrant.data import load_bundled
from calibrant.errors import FitError, InputError
from calibrant.metrics import expected_calibration_error, negative_log_likelihood
from calibrant.posthoc import FeatureClipping, TemperatureScaling, load_calibrator
from tests.conftest import softmax
from tests.rounding import assert_equal_up_to_rounding

CLIP = 1.5


def spoiled(n, seed=0):
    """Features of which only the part below 1.5 speaks of the label, and the head."""
    rng = np.random.default_rng(seed)
    weight = np.random.default_rng(42).normal(size=(5, 12))
    features = rng.exponential(size=(n, 12)) * np.where(rng.random((n, 12)) < 0.1, 8, 1)
    probs = softmax(np.minimum(features, CLIP) @ weight.T + 0.3)
    labels = (probs.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return features @ weight.T + 0.3, labels, features, weight


@pytest.fixture(scope="module")
def outliers():
    return spoiled(4000)


@pytest.fixture(scope="module")
def cifar():
    return load_bundled("cifar10_val"), load_bundled("cifar10_test")


def test_the_threshold_that_tells_signal_from_noise_is_found(outliers):
    logits, labels, features, _ = outliers
    calibrator = FeatureClipping.fit(logits, labels, features=features)
    assert float(calibrator.threshold) == pytest.approx(CLIP, rel=0.1)
    new_logits, new_labels, new_features, weight = spoiled(2000, seed=1)
    expected = softmax(np.minimum(new_features, float(calibrator.threshold)) @ weight.T)
    assert calibrator.predict_proba(new_logits, new_features) == pytest.approx(expected, abs=1e-5)
    assert expected_calibration_error(expected, new_labels) < 0.05
    assert expected_calibration_error(softmax(new_logits), new_labels) > 0.2


def test_the_head_is_recovered_up_to_a_shift_of_all_classes(outliers):
    logits, labels, features, weight = outliers
    calibrator = FeatureClipping.fit(logits, labels, features=features)
    assert calibrator.head_weight.numpy() == pytest.approx(weight - weight.mean(axis=0), abs=1e-8)


def test_a_given_head_gives_the_same(outliers):
    logits, labels, features, weight = outliers
    recovered = FeatureClipping.fit(logits, labels, features=features)
    for bias in (None, np.full(5, 0.3)):
        given = FeatureClipping.fit(logits, labels, features=features, head_weight=weight, head_bias=bias)
        assert given.predict_proba(logits, features) == pytest.approx(
            recovered.predict_proba(logits, features), abs=1e-5
        )


@pytest.mark.slow
def test_the_bundled_head_is_recovered_from_half_precision(cifar):
    val, test = cifar
    head = load_file(files("calibrant.data.bundled") / "cifar10_head.safetensors")
    recovered = FeatureClipping.fit(val.logits, val.labels, features=val.features)
    given = FeatureClipping.fit(
        val.logits, val.labels, features=val.features, head_weight=head["weight"], head_bias=head["bias"]
    )
    assert float(recovered.threshold) == float(given.threshold)
    expected = given.predict_proba(test.logits, test.features)
    assert recovered.predict_proba(test.logits, test.features) == pytest.approx(expected, abs=5e-3)


@pytest.mark.parametrize("objective", ["nll", "ece"])
def test_the_objective_never_gets_worse_on_the_fitting_set(cifar, objective):
    val, _ = cifar
    measure = {"nll": negative_log_likelihood, "ece": expected_calibration_error}[objective]
    calibrator = FeatureClipping.fit(val.logits, val.labels, features=val.features, objective=objective)
    probs = calibrator.predict_proba(val.logits, val.features)
    assert measure(probs, val.labels) < measure(softmax(np.asarray(val.logits)), val.labels)


def test_nothing_is_clipped_where_that_would_hurt():
    logits, labels, features, _ = spoiled(1000)
    honest = softmax(logits)
    rng = np.random.default_rng(5)
    labels = (honest.cumsum(axis=1) > rng.random((1000, 1))).argmax(axis=1)
    calibrator = FeatureClipping.fit(logits, labels, features=features)
    changed = np.abs(calibrator.predict_proba(logits, features) - honest).max(axis=1)
    assert (changed < 1e-6).mean() > 0.95


def test_log_probabilities_serve_as_logits(cifar):
    val, test = cifar
    both = TemperatureScaling.then(FeatureClipping).fit(val.logits, val.labels, features=val.features)
    alone = TemperatureScaling.fit(val.logits, val.labels).predict_proba(test.logits)
    probs = both.predict_proba(test.logits, test.features)
    assert negative_log_likelihood(probs, test.labels) < negative_log_likelihood(alone, test.labels)


def test_logits_that_are_not_linear_in_the_features_are_refused(outliers):
    logits, labels, features, weight = outliers
    with pytest.raises(FitError, match="not a linear function of the features, .* the model's last layer"):
        FeatureClipping.fit(logits**3, labels, features=features)
    with pytest.raises(FitError, match="not a linear function of the features"):
        FeatureClipping.fit(logits, labels, features=features, head_weight=2 * weight)
    with pytest.raises(FitError, match="not a linear function of the features"):
        FeatureClipping.fit(
            logits, labels, features=features, head_weight=weight, head_bias=np.arange(5.0) * 9
        )


def test_a_few_samples_cannot_tell_the_head(outliers):
    logits, labels, features, weight = (part[:13] for part in outliers)
    with pytest.raises(
        FitError, match="13 samples are too few to recover the head from 12 features; give more than 13"
    ):
        FeatureClipping.fit(logits, labels, features=features)
    FeatureClipping.fit(logits, labels, features=features, head_weight=weight)


def test_it_comes_back_from_a_file_the_same(outliers, tmp_path):
    logits, labels, features, _ = outliers
    calibrator = FeatureClipping.fit(logits, labels, features=features)
    calibrator.save(tmp_path / "saved.safetensors")
    loaded = load_calibrator(tmp_path / "saved.safetensors")
    assert_equal_up_to_rounding(
        loaded.predict_proba(logits, features), calibrator.predict_proba(logits, features)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "brier"}, "^objective: expected 'nll' or 'ece', got 'brier'"),
        ({"n_bins": 0}, "^n_bins: expected a whole number of at least 1, got 0"),
        ({"head_weight": np.ones((5, 11))}, "^head_weight: expected shape .5, 12., got shape .5, 11."),
        (
            {"head_weight": np.ones((5, 12)), "head_bias": np.ones(4)},
            "^head_bias: expected shape .5,., got shape .4,.",
        ),
    ],
)
def test_bad_options_are_refused(outliers, options, message):
    logits, labels, features, _ = outliers
    with pytest.raises(InputError, match=message):
        FeatureClipping.fit(logits, labels, features=features, **options)


def test_features_are_needed():
    with pytest.raises(InputError, match="^features: expected penultimate features"):
        FeatureClipping.fit([[1.0, 0.0]], [0])
    calibrator = FeatureClipping(1.0, torch.ones(2, 3))
    with pytest.raises(InputError, match="^features: expected penultimate features"):
        calibrator(torch.ones(1, 2))


@pytest.mark.parametrize("threshold", [0.0, -1.0, np.inf, np.nan])
def test_a_threshold_is_positive_and_finite(threshold):
    with pytest.raises(InputError, match="^threshold: expected a positive number, got"):
        FeatureClipping(threshold, torch.ones(2, 3))
