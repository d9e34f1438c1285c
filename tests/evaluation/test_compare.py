"""Comparing and choosing post-hoc methods."""

import sys

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.errors import InputError
from calibrant.evaluation.calibrated import calibrated, fit_method
from calibrant.evaluation.compare import choose, compare
from calibrant.metrics import expected_calibration_error, negative_log_likelihood
from calibrant.posthoc import TemperatureScaling
from calibrant.posthoc.names import METHODS, resolve_methods
from tests.conftest import draw


@pytest.fixture(scope="module")
def validation():
    logits, labels = draw(1000, 5, seed=1, sharpen=3.0)
    return Predictions(logits=logits, labels=labels)


@pytest.fixture(scope="module")
def test_set():
    logits, labels = draw(2000, 5, seed=2, sharpen=3.0)
    return Predictions(logits=logits, labels=labels)


@pytest.fixture(scope="module")
def comparison(validation, test_set):
    return compare(
        validation, test=test_set, methods=["uncalibrated", "temperature", "vector"], n_resamples=100
    )


def test_methods_are_ordered_from_simple_to_complex(comparison):
    assert [result.name for result in comparison.results] == ["uncalibrated", "temperature", "vector"]


def test_every_sample_is_calibrated_by_a_fit_that_has_not_seen_it(validation):
    result = compare(validation, methods=["temperature"], n_folds=4, n_resamples=20)["temperature"]
    in_sample = calibrated(result.calibrator, validation)
    assert result.metrics["nll"] > negative_log_likelihood(logits=in_sample.logits, labels=in_sample.labels)
    assert float(result.losses["nll"].mean()) == pytest.approx(result.metrics["nll"])
    assert float(result.losses["brier"].mean()) == pytest.approx(result.metrics["brier"])


def test_test_measures_are_those_of_the_fit_on_all_of_validation(comparison, validation, test_set):
    fitted = TemperatureScaling.fit(validation.logits, validation.labels)
    probs = fitted.predict_proba(test_set.logits)
    expected = expected_calibration_error(probs, test_set.labels)
    assert comparison["temperature"].test_metrics["ece"] == pytest.approx(expected, abs=1e-6)


def test_the_improvement_is_paired_with_the_uncalibrated_model(comparison):
    assert comparison["uncalibrated"].improvement.difference == pytest.approx(0, abs=1e-12)
    better = comparison["temperature"].improvement
    assert better.low < better.difference < better.high < 0


def test_the_simplest_of_equally_good_methods_is_chosen(comparison):
    assert choose(comparison).name == "temperature"
    assert choose(comparison, score="brier").name == "temperature"


def test_a_calibrated_model_is_not_changed():
    logits, labels = draw(3000, 4, seed=3)
    calibrated_model = Predictions(logits=logits, labels=labels)
    chosen = choose(
        compare(calibrated_model, methods=["uncalibrated", "temperature", "vector"], n_resamples=20)
    )
    assert chosen.name == "uncalibrated"


def test_a_method_that_lacks_features_is_left_out_with_the_reason(validation):
    result = compare(validation, methods=["temperature", "proximity"], n_resamples=20)
    assert [r.name for r in result.results] == ["temperature"]
    assert "features: expected" in result.skipped["proximity"]


def test_equal_seeds_give_equal_results(validation):
    first, second = (compare(validation, methods=["temperature"], n_resamples=20, seed=5) for _ in range(2))
    assert dict(first["temperature"].metrics) == dict(second["temperature"].metrics)


def test_probabilities_are_calibrated_as_their_logits_are(validation):
    probs = Predictions(probs=torch.softmax(validation.logits, dim=1), labels=validation.labels)
    fitted = [fit_method(METHODS["temperature"], p) for p in (validation, probs)]
    assert float(fitted[0].temperature) == pytest.approx(float(fitted[1].temperature), rel=1e-6)


def test_names_are_put_in_order_and_unknown_ones_refused():
    assert resolve_methods(["vector", "temperature"]) == ["temperature", "vector"]
    assert resolve_methods("all") == list(METHODS)
    assert set(resolve_methods("auto")) < set(METHODS)
    with pytest.raises(InputError, match=r"^methods: expected auto, all, or names from .*, got 'alchemy'"):
        resolve_methods("alchemy")


def test_bad_sets_are_refused(validation):
    pairs = Predictions(confidence=[0.5] * 20, correct=[True] * 20)
    with pytest.raises(InputError, match="^validation: expected logits or probs with labels"):
        compare(pairs)
    with pytest.raises(InputError, match="^test: expected the 5 classes of validation, got 3"):
        compare(validation, test=Predictions(logits=np.zeros((4, 3)), labels=[0, 1, 2, 0]))
    with pytest.raises(InputError, match="^validation: expected at least 10 samples for 5 folds, got 4"):
        compare(validation.take([0, 1, 2, 3]))
    with pytest.raises(InputError, match="^score: expected 'nll' or 'brier', got 'ece'"):
        choose(compare(validation, methods=["temperature"], n_resamples=20), score="ece")


def test_choosing_from_no_results_gives_the_reasons():
    all_right = Predictions(logits=np.eye(2)[np.arange(40) % 2], labels=np.arange(40) % 2)
    with pytest.raises(
        InputError, match="could be fitted, got none .temperature: temperature scaling: no optimum"
    ):
        choose(compare(all_right, methods=["temperature"]))


@pytest.mark.parametrize(("worth_threads", "expected"), [(5001, 1), (5000, 2)])
def test_only_comparisons_of_many_logits_use_threads_and_the_setting_comes_back(
    validation, monkeypatch, worth_threads, expected
):
    # By its name in sys.modules: the package's attribute of this name is the function.
    monkeypatch.setattr(sys.modules["calibrant.evaluation.compare"], "_WORTH_THREADS", worth_threads)
    seen = []

    def fit(*given, **options):
        seen.append(torch.get_num_threads())
        return original(*given, **options)

    original = TemperatureScaling.fit
    monkeypatch.setattr(TemperatureScaling, "fit", fit)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        compare(validation, methods=["temperature"], n_folds=2, n_resamples=20)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [expected] * 3
