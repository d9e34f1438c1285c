"""Masked classes, logits of -inf: probability 0 before and after, and nothing to learn from them."""

import numpy as np
import pytest
import torch

from calibrant import Predictions, compare, evaluate, load_predictions, save_predictions
from calibrant.errors import InputError
from calibrant.integrations.onnx import export_onnx
from calibrant.metrics import negative_log_likelihood
from calibrant.posthoc import (
    MatrixScaling,
    Pool,
    StructuredMatrixScaling,
    TemperatureScaling,
    VectorScaling,
    load_calibrator,
)
from calibrant.posthoc.names import METHODS
from calibrant.streams import evaluate_stream, open_stream

K = 6
# These mix in the uniform distribution or read all classes: they define what a masked class is to others.
DEFINES = {
    *("ensemble", "pool", "matrix", "dirichlet", "structured_matrix", "structured_matrix_paper"),
    *("structured_smart", "structured_vector", "structured_vector_smart"),
}
SKIPPED = {"smart_paper", "logistic_spline_top"}  # slow, and the same map as others
TAKES = [name for name, method in METHODS.items() if method.takes_masked and name not in SKIPPED]
REFUSES = [
    name
    for name, method in METHODS.items()
    if not method.takes_masked and not method.calibrator.needs_features
]


def questions(n, seed, *, fewest=2):
    """Logits of an overconfident model, of which at least so many classes exist in each row, and labels."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, K))
    order = rng.random((n, K)).argsort(axis=1)
    masked = order >= rng.integers(fewest, K + 1, n)[:, None]
    true = np.where(masked, -np.inf, logits)
    labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
    return 2.5 * true, labels, masked


def improbable(logits, distance):
    """The same logits with masked classes so far below the others that exist."""
    lowest = np.where(np.isinf(logits), np.inf, logits).min(axis=1, keepdims=True)
    return np.where(np.isinf(logits), lowest - distance, logits)


@pytest.mark.parametrize("name", TAKES)
def test_probabilities_stay_distributions_over_the_classes_that_exist(name):
    calibrator = METHODS[name].fit(*questions(400, 0, fewest=1)[:2])
    logits, labels, masked = questions(300, 1, fewest=1)
    log_probs = calibrator.predict_log_proba(logits).numpy()
    assert (log_probs[masked] == -np.inf).all()
    assert np.isfinite(log_probs[~masked]).all()
    np.testing.assert_allclose(np.exp(log_probs).sum(axis=1), 1, atol=1e-9)
    alone = (~masked).sum(axis=1) == 1
    assert alone.any()
    assert (log_probs[alone].max(axis=1) == 0).all()
    calibrated = negative_log_likelihood(logits=log_probs, labels=labels)
    assert calibrated <= negative_log_likelihood(logits=logits, labels=labels) + 1e-9


@pytest.mark.parametrize("name", [name for name in TAKES if name not in DEFINES])
def test_a_masked_class_is_the_limit_of_an_improbable_one(name):
    logits, labels, _ = questions(400, 0)
    probs = METHODS[name].fit(logits, labels).predict_proba(logits)
    for distance in (1e4, 1e7):
        far = improbable(logits, distance)
        of_far = METHODS[name].fit(far, labels).predict_proba(far)
        np.testing.assert_allclose(probs, of_far, atol=1e-6)


def test_an_affine_map_is_fitted_to_the_classes_that_exist():
    logits, labels, masked = questions(400, 0)
    fitted = VectorScaling.fit(logits, labels)
    more = VectorScaling.fit(np.concatenate([logits, np.full((400, 2), -np.inf)], axis=1), labels)
    torch.testing.assert_close(more.scale[:K], fitted.scale, rtol=1e-4, atol=1e-5)
    temperature = float(TemperatureScaling.fit(logits, labels).temperature)
    scale, intercept = fitted.scale.numpy(), fitted.intercept.numpy()

    def objective(s, b):
        total = 5 * (((temperature * s - 1) ** 2).sum() + (b**2).sum())
        for z, y, gone in zip(logits, labels, masked, strict=True):
            u = (s * np.where(gone, 0, z) + b)[~gone]
            total += np.log(np.exp(u).sum()) - s[y] * z[y] - b[y]
        return total

    least, rng = objective(scale, intercept), np.random.default_rng(0)
    for _ in range(10):
        s, b = scale + 0.01 * rng.normal(size=K), intercept + 0.01 * rng.normal(size=K)
        assert objective(s, b) > least


def test_to_other_classes_a_masked_one_is_as_the_least_likely():
    logits, labels, masked = questions(400, 0)
    fitted = MatrixScaling.fit(logits, labels, strength=0.1)
    scores = improbable(logits, 0.0) @ fitted.weight.numpy().T + fitted.intercept.numpy()
    weights = np.where(masked, 0, np.exp(scores))
    expected = weights / weights.sum(axis=1, keepdims=True)
    assert not torch.equal(fitted.weight, torch.diag(fitted.weight.diagonal()))
    np.testing.assert_allclose(fitted.predict_proba(logits), expected, atol=1e-9)


@pytest.mark.parametrize("name", REFUSES)
def test_other_methods_refuse_masked_classes_in_one_sentence(name):
    logits, labels, _ = questions(60, 0)
    with pytest.raises(
        InputError, match="^logits: expected finite numbers for .*, got -inf, which masks a class"
    ):
        METHODS[name].fit(logits, labels)
    fitted = TemperatureScaling.then(METHODS["platt"].calibrator).fit(improbable(logits, 9.0), labels)
    with pytest.raises(InputError, match="masks a class"):
        fitted.predict_proba(logits)


def test_samples_with_one_class_teach_nothing():
    logits, labels, masked = questions(400, 0, fewest=1)
    several = (~masked).sum(axis=1) > 1
    weights = np.linspace(1, 2, 400)
    for given in ({}, {"weights": weights}):
        rows = {name: value[several] for name, value in given.items()}
        every = StructuredMatrixScaling.fit(logits, labels, strength=1.0, **given)
        some = StructuredMatrixScaling.fit(logits[several], labels[several], strength=1.0, **rows)
        torch.testing.assert_close(every.state_dict(), some.state_dict())


def test_a_masked_class_is_never_the_label():
    logits, labels = [[1.0, -np.inf, 0.0], [0.0, 1.0, -np.inf]], [0, 2]
    message = "^labels: expected a class that is not masked, got class 2 in row 1, whose logit is -inf"
    for refuses in (
        lambda: Predictions(logits=logits, labels=labels),
        lambda: negative_log_likelihood(logits=logits, labels=labels),
        lambda: TemperatureScaling.fit(logits, labels),
    ):
        with pytest.raises(InputError, match=message):
            refuses()


def test_every_measure_is_that_of_very_improbable_classes(tmp_path):
    logits, labels, _ = questions(300, 0)
    given = Predictions(logits=logits, labels=labels)
    same = Predictions(logits=improbable(logits, 1e3), labels=labels)
    found = evaluate(given, measures="all", intervals=False).metrics
    expected = evaluate(same, measures="all", intervals=False).metrics
    assert dict(found) == pytest.approx(dict(expected), rel=1e-9, abs=1e-12, nan_ok=True)
    for ending in ("npz", "csv", "parquet", "jsonl", "safetensors"):
        path = tmp_path / f"masked.{ending}"
        save_predictions(given, path)
        assert torch.equal(load_predictions(path).logits, given.logits)
    streamed = evaluate_stream(open_stream(tmp_path / "masked.parquet")).metrics
    assert streamed["nll"] == pytest.approx(found["nll"])
    assert streamed["ece"] == pytest.approx(found["ece"])


def test_a_comparison_leaves_out_what_cannot_take_them_and_its_pool_can_be_saved(tmp_path):
    logits, labels, masked = questions(300, 0)
    names = ["uncalibrated", "temperature", "spline", "structured_matrix(strength=1.0)", "beta", "pool"]
    comparison = compare(
        Predictions(logits=logits, labels=labels, groups=labels % 2), methods=names, n_folds=2, n_resamples=20
    )
    assert comparison.skipped == {"beta": "it cannot take masked classes"}
    pool = next(each for each in comparison.results if each.name == "pool").calibrator
    assert isinstance(pool, Pool)
    pool.save(tmp_path / "pool.safetensors")
    loaded = load_calibrator(tmp_path / "pool.safetensors")
    probs = loaded.predict_proba(logits)
    assert (probs[masked] == 0).all()
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-9)
    runtime = pytest.importorskip("onnxruntime")
    export_onnx(loaded, tmp_path / "pool.onnx")
    session = runtime.InferenceSession(tmp_path / "pool.onnx")
    exported = np.exp(session.run(None, {"logits": logits.astype(np.float32)})[0])
    assert (exported[masked] == 0).all()
    np.testing.assert_allclose(exported, probs, atol=1e-5)
