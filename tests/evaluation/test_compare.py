"""Comparing and choosing post-hoc methods."""

import sys
import threading

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.errors import InputError
from calibrant.evaluation import choose, compare
from calibrant.evaluation.calibrated import calibrated, fit_method
from calibrant.metrics import expected_calibration_error, negative_log_likelihood
from calibrant.posthoc import MatrixScaling, StructuredMatrixScaling, TemperatureScaling
from calibrant.posthoc.names import METHODS, method_named, resolve_methods
from tests.conftest import draw
from tests.rounding import assert_equal_up_to_rounding


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
    # Probabilities count as at least 1e-12.
    assert float(fitted[0].temperature) == pytest.approx(float(fitted[1].temperature), rel=1e-4)


def test_names_are_put_in_order_and_unknown_ones_refused():
    assert resolve_methods(["vector", "temperature"]) == ["temperature", "vector"]
    assert resolve_methods("all") == [name for name in METHODS if name != "parameterized_paper"]
    assert resolve_methods("parameterized_paper") == ["parameterized_paper"]
    assert set(resolve_methods("auto")) < set(METHODS)
    with pytest.raises(InputError, match=r"^methods: expected auto, all, or names of methods, got 'alchemy'"):
        resolve_methods("alchemy")


def test_variants_of_a_method_are_compared_under_their_names(validation):
    names = ["vector(ridge=1e9)", "temperature", "vector( ridge=0.1 )"]
    result = compare(validation, methods=names, n_folds=2, n_resamples=20)
    assert [r.name for r in result.results] == [
        "temperature",
        "vector(ridge=1000000000.0)",
        "vector(ridge=0.1)",
    ]
    strong, weak = (float(r.calibrator.intercept.abs().max()) for r in result.results[1:])
    assert strong < weak


def test_a_strength_that_is_given_is_used_without_each_fold_too(validation):
    given = compare(validation, methods=["matrix(strength=1e6)"], n_folds=2, n_resamples=20)
    fitted = given.results[0].calibrator
    assert fitted.for_folds["strength"] == 1e6


def test_a_bad_value_of_an_option_is_the_reason_to_skip_the_method(validation):
    result = compare(validation, methods=["temperature", "vector(ridge='x')"], n_folds=2, n_resamples=20)
    assert dict(result.skipped) == {"vector(ridge='x')": "ridge: expected a positive number, got x"}


def test_quick_methods_and_those_that_keep_accuracy_can_be_asked_for(validation, monkeypatch):
    monkeypatch.setattr(sys.modules["calibrant.posthoc.names"], "_FAST", ("temperature", "platt"))
    options = {"n_folds": 2, "n_resamples": 20}
    assert [r.name for r in compare(validation, fast=True, **options).results] == ["temperature", "platt"]
    kept = compare(validation, fast=True, keep_accuracy=True, **options).results
    assert [r.name for r in kept] == ["temperature"]


def test_bad_sets_are_refused(validation):
    with pytest.raises(InputError, match="^validation: expected labels, or correct beside confidence"):
        compare(Predictions(logits=validation.logits))
    with pytest.raises(InputError, match="^validation: expected labels, or correct beside confidence"):
        compare(Predictions(confidence=[0.5] * 20))
    pairs = Predictions(confidence=[0.5] * 20, correct=[True] * 20)
    with pytest.raises(
        InputError, match="^test: expected scores of 5 classes, as in validation, got confidences"
    ):
        compare(validation, test=pairs)
    with pytest.raises(
        InputError, match="^test: expected scores of 5 classes, as in validation, got scores of 3 classes"
    ):
        compare(validation, test=Predictions(logits=np.zeros((4, 3)), labels=[0, 1, 2, 0]))
    with pytest.raises(InputError, match="^validation: expected at least 10 samples for 5 folds, got 4"):
        compare(validation.take([0, 1, 2, 3]))
    with pytest.raises(InputError, match="^score: expected one of nll, brier, ece, classwise_ece, got 'auc'"):
        choose(compare(validation, methods=["temperature"], n_resamples=20), score="auc")


def test_choosing_from_no_results_gives_the_reasons():
    all_right = Predictions(logits=3 * np.eye(2)[np.arange(40) % 2], labels=np.arange(40) % 2)
    with pytest.raises(
        InputError,
        match=r"could be fitted, got none .temperature\(prior=0\): temperature scaling: no optimum",
    ):
        choose(compare(all_right, methods=["temperature(prior=0)"]))


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_fits_run_side_by_side_with_one_thread_each_and_the_setting_comes_back(validation, monkeypatch):
    seen = []

    def fit(*given, **options):
        seen.append((torch.get_num_threads(), threading.current_thread().name))
        return original(*given, **options)

    original = TemperatureScaling.fit
    monkeypatch.setattr(TemperatureScaling, "fit", fit)
    compare(validation, methods=["temperature"], n_folds=2, n_resamples=20)
    assert torch.get_num_threads() == 2
    assert [threads for threads, _ in seen] == [1] * 3
    assert threading.current_thread().name not in {name for _, name in seen}


def test_the_number_of_threads_does_not_change_the_results(validation, test_set, monkeypatch):
    monkeypatch.setattr(sys.modules["calibrant.threads"], "WORTH_JOBS", 1)
    methods = ["temperature", "smart", "structured_matrix", "structured_smart"]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = compare(validation, test=test_set, methods=methods, n_resamples=20)
        torch.set_num_threads(2)
        together = compare(validation, test=test_set, methods=methods, n_resamples=20)
    finally:
        torch.set_num_threads(before)
    for one, other in zip(alone.results, together.results, strict=True):
        assert one.name == other.name
        assert_equal_up_to_rounding(one.held_out.logits, other.held_out.logits)
        assert dict(one.test_metrics) == pytest.approx(dict(other.test_metrics), abs=1e-12)


@pytest.fixture
def counted_fits(monkeypatch):
    """The number of samples of each affine map that is fitted with all its steps."""
    fits = []
    module = sys.modules["calibrant.posthoc.fitting.affine"]
    original = module.fit_affine

    def counted(data, ridge, **options):
        if "max_steps" not in options:  # the search for the strength stops early
            fits.append(len(data))
        return original(data, ridge, **options)

    monkeypatch.setattr(module, "fit_affine", counted)
    return fits


def test_structured_scaling_is_fitted_once_per_part_however_many_methods_use_it(counted_fits):
    logits, labels = draw(1000, 5, seed=4)
    biased = Predictions(logits=logits + np.array([2.0, 0, 0, 0, -2.0]), labels=labels)
    compare(biased, methods=["structured_matrix", "structured_smart"], n_resamples=20)
    # All samples, five folds, and SMART's own folds within each of these, shared by pairs: 5 * 4 / 2.
    assert sorted(counted_fits) == [600] * 10 + [800] * 5 + [1000]


def test_every_method_is_fitted_once_on_all_samples_and_once_per_fold(validation, monkeypatch):
    sizes = []

    def fit(data, labels, **options):
        sizes.append(len(data))
        return original(data, labels, **options)

    original = TemperatureScaling.fit
    monkeypatch.setattr(TemperatureScaling, "fit", fit)
    compare(validation, methods=["temperature"], n_folds=5, n_resamples=20)
    assert sorted(sizes) == [800] * 5 + [1000]


def test_a_search_is_done_once_and_its_result_used_without_each_fold(validation, monkeypatch):
    given = []

    def fit(data, labels, *, strength=None, **options):
        given.append((len(data), strength))
        return original(data, labels, strength=strength, **options)

    original = MatrixScaling.fit
    monkeypatch.setattr(MatrixScaling, "fit", fit)
    result = compare(validation, methods=["matrix"], n_folds=4, n_resamples=20)["matrix"]
    assert sorted(given, key=lambda call: -call[0]) == [
        (1000, None),
        *[(750, result.calibrator.for_folds["strength"])] * 4,
    ]


def test_many_classes_have_a_default_set_without_matrices():
    few, many = resolve_methods("auto", n_classes=300), resolve_methods("auto", n_classes=301)
    assert "structured_matrix_paper" in few
    assert not [name for name in many if "matrix" in name]
    assert {"smart", "structured_vector", "structured_vector_smart"} <= set(many)


def test_a_method_that_needs_too_much_memory_is_left_out_before_it_is_tried(monkeypatch):
    monkeypatch.setattr(StructuredMatrixScaling, "fit", lambda *_, **__: pytest.fail("it was tried"))
    rng = np.random.default_rng(0)
    wide = Predictions(logits=rng.normal(size=(10, 5000)), labels=rng.integers(5000, size=10))
    result = compare(wide, methods=["uncalibrated", "structured_matrix"], n_resamples=20)
    assert [r.name for r in result.results] == ["uncalibrated"]
    assert result.skipped["structured_matrix"] == (
        "a fit with 5,000 classes needs about 6 GB of memory, more than the 1 GB allowed for 10 samples"
    )


def test_three_folds_are_enough_for_many_logits(monkeypatch, validation):
    assert compare(validation, methods=["uncalibrated"], n_resamples=20).n_folds == 5
    for module in ("calibrant.evaluation.compare", "calibrant.posthoc.fitting_set"):
        monkeypatch.setattr(sys.modules[module], "MANY_LOGITS", 100)
    assert compare(validation, methods=["uncalibrated"], n_resamples=20).n_folds == 3


def test_progress_names_the_method_and_its_fold_and_ends_with_the_time_spent(validation):
    seen = []
    compare(
        validation,
        methods=["temperature", "vector"],
        n_folds=2,
        n_resamples=20,
        progress=lambda what, done, total: seen.append((what, done, total)),
    )
    assert {what for what, _, _ in seen} <= {
        f"{kind}{name}{fold}"
        for name in ("temperature", "vector")
        for kind, fold in [("", ""), ("", ", fold 1"), ("", ", fold 2"), ("measuring ", "")]
    }
    assert seen[0] == ("vector", 0, 1)
    assert len(seen) == 9
    assert all(0 <= done <= total for _, done, total in seen)
    assert seen[-1][1] == seen[-1][2]


def test_an_error_of_our_own_making_is_not_hidden_as_a_skipped_method(validation, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(TemperatureScaling, "fit", broken)
    with pytest.raises(ZeroDivisionError):
        compare(validation, methods=["temperature"], n_resamples=20)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_columns_of_a_data_frame_are_found_by_the_names_of_their_classes(library):
    frames = pytest.importorskip(library)
    logits, labels = draw(300, 3, seed=5, sharpen=2.0)
    names = ["cat", "dog", "emu"]
    fitted = fit_method(method_named("vector"), Predictions(logits=logits, labels=labels, class_names=names))
    frame = frames.DataFrame({name: logits[:, place] for place, name in enumerate(names)})
    expected = fitted.predict_proba(logits)
    turned = fitted.predict_proba(frame[["emu", "cat", "dog"]])
    np.testing.assert_allclose(turned, expected[:, [2, 0, 1]], rtol=1e-12)
    assert np.abs(turned - expected).max() > 0.1
    with pytest.raises(InputError, match="^logits: expected the classes cat, dog, emu, got cat, dog, yak"):
        fitted.predict_proba(frames.DataFrame({name: [0.5] for name in ("cat", "dog", "yak")}))
