"""Density-aware calibration: a higher temperature where features are rare."""

import numpy as np
import pytest
import torch

from calibrant.errors import InputError
from calibrant.metrics import negative_log_likelihood
from calibrant.posthoc import DensityAware, TemperatureScaling, load_calibrator
from calibrant.posthoc.fitting import neighbours
from tests.conftest import draw, softmax
from tests.rounding import assert_equal_up_to_rounding

THEN = ["none", "ensemble", "spline"]


def clouds(n, k=4, seed=0, tight=0.05):
    """A dense cloud of features with calibrated logits, and a sparse one with logits five times too large."""
    logits, labels = draw(n, k, seed=seed)
    rng = np.random.default_rng(seed + 1)
    dense = rng.random(n) < 0.5
    features = np.eye(8)[0] * 3 + rng.normal(size=(n, 8)) * np.where(dense, tight, 2.0)[:, None]
    return logits * np.where(dense, 1.0, 5.0)[:, None], labels, features, dense


@pytest.fixture(scope="module")
def sparse_and_dense():
    return clouds(1500)


def unit(x):
    return x / np.sqrt((x**2).sum())


def nll(calibrator, logits, labels, features=None):
    log_probs = calibrator.predict_log_proba(logits, features)
    return negative_log_likelihood(logits=log_probs, labels=labels)


def test_it_is_the_formula_of_the_paper():
    # Not too tight: in float32, features at less than a thousandth of their length are copies.
    logits, labels, features, _ = clouds(200, tight=0.5)
    new_logits, _, new_features, _ = clouds(10, seed=5, tight=0.5)
    calibrator = DensityAware.fit(
        logits, labels, features=features, n_neighbours=7, widths=[3, 5], then="none"
    )
    weights, intercept = calibrator.weights.numpy(), float(calibrator.intercept)
    assert (weights >= 0).all()
    assert weights.sum() > 0
    for rows, kept in (((new_logits, new_features), 0), ((logits[:10], features[:10]), 1)):
        expected = []
        for z, h in zip(*rows, strict=True):
            s = []
            for columns in (slice(0, 3), slice(3, 8)):
                others = [np.sqrt(((unit(h[columns]) - unit(r[columns])) ** 2).sum()) for r in features]
                s.append(sorted(others)[7 - 1 + kept])  # a sample is not its own neighbour
            temperature = max(weights @ s + intercept, float(calibrator.lowest))
            expected.append(softmax(z[None] / temperature)[0])
        np.testing.assert_allclose(calibrator.predict_proba(*rows), expected, atol=1e-4)


def test_rare_features_get_a_higher_temperature(sparse_and_dense):
    logits, labels, features, _ = sparse_and_dense
    calibrator = DensityAware.fit(logits, labels, features=features)
    new_logits, new_labels, new_features, dense = clouds(2000, seed=1)
    temperature = calibrator.temperature(torch.tensor(new_features)).numpy()
    assert np.median(temperature[~dense]) > 2 * np.median(temperature[dense])
    one = TemperatureScaling.fit(logits, labels)
    assert nll(calibrator, new_logits, new_labels, new_features) < nll(one, new_logits, new_labels) - 0.05


def test_a_direction_never_seen_gets_the_highest_temperature(sparse_and_dense):
    logits, labels, features, dense = sparse_and_dense
    calibrator = DensityAware.fit(logits[dense], labels[dense], features=features[dense])
    calibrator.weights.fill_(1.0)  # whatever was learned
    known = calibrator.temperature(torch.tensor(features[dense])).max()
    assert calibrator.temperature(torch.tensor(-np.eye(8)[:1])) > known


def test_a_weight_is_never_negative(sparse_and_dense):
    _, _, features, dense = sparse_and_dense
    logits, labels = draw(1500, 4)
    logits = logits * np.where(dense, 5.0, 1.0)[:, None]  # the dense samples are the overconfident ones
    calibrator = DensityAware.fit(logits, labels, features=features, then="none")
    assert float(calibrator.weights) == pytest.approx(0, abs=1e-9)
    one = TemperatureScaling.fit(logits, labels)
    np.testing.assert_allclose(
        calibrator.predict_proba(logits, features), one.predict_proba(logits), atol=2e-3
    )


@pytest.mark.parametrize("objective", ["nll", "brier"])
def test_the_objective_of_the_fitting_set_is_no_larger_than_with_one_temperature(sparse_and_dense, objective):
    logits, labels, features, _ = sparse_and_dense
    calibrator = DensityAware.fit(logits, labels, features=features, objective=objective, then="none")
    one = TemperatureScaling.fit(logits, labels)
    values = []
    for probs in (calibrator.predict_proba(logits, features), one.predict_proba(logits)):
        of_label = np.take_along_axis(probs, labels[:, None], axis=1)
        squared = ((probs - np.eye(4)[labels]) ** 2).sum(axis=1).mean()
        values.append(squared if objective == "brier" else -np.log(of_label).mean())
    assert values[0] < values[1]


def test_the_layer_that_matters_gets_the_weight(sparse_and_dense):
    logits, labels, features, _ = sparse_and_dense
    noise = np.random.default_rng(9).normal(size=(len(labels), 6))
    calibrator = DensityAware.fit(logits, labels, features=np.hstack([noise, features]), widths=[6, 8])
    spread = calibrator.distances(torch.tensor(np.hstack([noise, features]))).std(dim=0)
    shares = calibrator.weights * spread
    assert shares[1] > 5 * shares[0]
    assert calibrator.n_features == 14


def test_stored_features_are_capped(sparse_and_dense, monkeypatch):
    logits, labels, features, _ = sparse_and_dense
    monkeypatch.setattr("calibrant.posthoc.density_aware._MOST_REFERENCES", 100)
    one, same, other = (
        DensityAware.fit(logits, labels, features=features, n_neighbours=5, seed=seed) for seed in (0, 0, 1)
    )
    assert one.references.shape == (100, 8)
    assert torch.equal(one.references, same.references)
    assert not torch.equal(one.references, other.references)
    assert torch.equal(one.weights, same.weights)


def test_blocks_of_samples_change_nothing(sparse_and_dense, monkeypatch):
    logits, labels, features, _ = sparse_and_dense
    calibrator = DensityAware.fit(logits, labels, features=features)
    whole = calibrator.distances(torch.tensor(features[:100]))
    monkeypatch.setattr(neighbours, "_BLOCK_ENTRIES", 7 * 1500)
    assert torch.allclose(calibrator.distances(torch.tensor(features[:100])), whole, atol=1e-5)


@pytest.mark.parametrize("then", THEN)
def test_it_comes_back_from_a_file_the_same(sparse_and_dense, then, tmp_path):
    logits, labels, features, _ = (part[:300] for part in sparse_and_dense)
    calibrator = DensityAware.fit(logits, labels, features=features, then=then, widths=(2, 6))
    calibrator.save(tmp_path / "saved.safetensors")
    loaded = load_calibrator(tmp_path / "saved.safetensors")
    assert type(loaded.second) is type(calibrator.second)
    assert_equal_up_to_rounding(
        loaded.predict_proba(logits, features), calibrator.predict_proba(logits, features)
    )


@pytest.mark.parametrize("then", THEN)
def test_the_predicted_class_never_changes(sparse_and_dense, then):
    logits, labels, features, _ = sparse_and_dense
    calibrator = DensityAware.fit(logits, labels, features=features, then=then)
    for rows in (logits, np.round(logits)):
        probs = np.asarray(calibrator.predict_proba(rows, features))
        assert (probs.argmax(axis=1) == rows.argmax(axis=1)).all()


HARD = {
    "separable": (4 * np.eye(3)[np.arange(60) % 3], np.arange(60) % 3),
    "no better than chance": (draw(200, 4)[0], np.random.default_rng(0).integers(4, size=200)),
    "constant logits": (np.zeros((60, 3)), np.arange(60) % 3),
    "logits of ten thousand": draw(300, 4, sharpen=1e4),
    "a thousand classes": draw(200, 1000, sharpen=2.0),
    "one sample": (np.array([[5.0, 0.0]]), np.array([1])),
    "two samples": (np.array([[5.0, 0.0], [1.0, 0.0]]), np.array([1, 0])),
}


@pytest.mark.parametrize("case", HARD)
@pytest.mark.parametrize("kind", ["normal", "equal"])
@pytest.mark.parametrize("then", THEN)
def test_hard_data_are_fitted_without_nan(case, kind, then):
    logits, labels = HARD[case]
    n = len(labels)
    features = np.random.default_rng(0).normal(size=(n, 3)) if kind == "normal" else np.ones((n, 3))
    calibrator = DensityAware.fit(logits, labels, features=features, then=then)
    assert np.isfinite(calibrator.predict_log_proba(logits, features).numpy()).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_neighbours": 0}, "^n_neighbours: expected a whole number of at least 1, got 0"),
        ({"objective": "ece"}, "^objective: expected 'nll' or 'brier', got 'ece'"),
        ({"then": "magic"}, "^then: expected one of none, ensemble, spline, got 'magic'"),
        ({"widths": [3, 3]}, r"^widths: expected numbers that sum to the 8 features, got \[3, 3\]"),
        ({"widths": [8, 0]}, "^widths: expected a whole number of at least 1, got 0"),
    ],
)
def test_bad_options_are_refused(sparse_and_dense, options, message):
    logits, labels, features, _ = sparse_and_dense
    with pytest.raises(InputError, match=message):
        DensityAware.fit(logits, labels, features=features, **options)
