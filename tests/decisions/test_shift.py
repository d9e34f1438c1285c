"""Repair under shift: the accuracy on unlabelled samples, and calibrators that are bent to it."""

import json

import numpy as np
import pytest
import scipy
import torch

from calibrant import InputError, Predictions, evaluate, load_calibrator
from calibrant.data.bundled import load_bundled
from calibrant.decisions import AdaptedCalibrator, estimate_quality
from calibrant.decisions.shift import temperature_for
from calibrant.decisions.unlabelled_accuracy import (
    Outputs,
    thresholded_accuracy,
    transport_costs,
    transported_accuracy,
    with_votes,
)
from calibrant.evaluation.calibrated import calibrated
from calibrant.posthoc import Identity, TemperatureScaling, VectorScaling


def ece(predictions: Predictions) -> float:
    return evaluate(predictions, measures=["ece"]).metrics["ece"]


@pytest.fixture(scope="module")
def validation() -> Predictions:
    return load_bundled("cifar10_val")


@pytest.fixture(scope="module")
def fitted(validation) -> TemperatureScaling:
    return TemperatureScaling.fit(validation.logits, validation.labels)


@pytest.fixture(scope="module")
def noisy() -> Predictions:
    return load_bundled("cifar10_test_noise")


@pytest.fixture(scope="module")
def found(fitted, validation, noisy) -> AdaptedCalibrator:
    return AdaptedCalibrator.fit(fitted, validation, noisy)


def test_costs_of_transport_are_those_of_the_linear_program():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.full(3, 0.3), size=40)
    frequencies = np.array([0.5, 0.3, 0.2])
    # One variable for each sample and class: rows have mass 1/40, columns the frequencies.
    rows, columns = np.kron(np.eye(40), np.ones(3)), np.kron(np.ones(40), np.eye(3))
    exact = scipy.optimize.linprog(
        (1 - probs).ravel(), A_eq=np.vstack([rows, columns]), b_eq=np.append(np.full(40, 1 / 40), frequencies)
    )
    # Smoothing by 0.01 costs at most 0.01 log 3, and no assignment is cheaper than the best.
    assert exact.fun - 1e-6 <= transport_costs(probs, frequencies).mean() <= exact.fun + 0.011


def test_a_threshold_leaves_as_many_labelled_scores_above_it_as_are_right():
    rng = np.random.default_rng(1)
    labelled, unlabelled = rng.normal(size=50), rng.normal(size=70)
    threshold = sorted(labelled)[-31]  # 30 of 50 are above
    expected = sum(score > threshold for score in unlabelled) / 70
    assert thresholded_accuracy(labelled, unlabelled, 0.6) == pytest.approx(expected)


def test_votes_are_those_of_a_plain_loop_and_leave_out_the_own_unit():
    rng = np.random.default_rng(2)
    features, labels = rng.normal(size=(60, 4)), rng.integers(3, size=60)
    probs = rng.dirichlet(np.ones(3), size=60)
    units = np.arange(60) // 2
    known = Outputs(probs, features, probs.argmax(axis=1), units)
    voted = with_votes(known, labels, known).probs
    for row in range(60):
        cosine = [
            -2.0 if units[row] == units[other]
            else features[row] @ features[other]
            / (np.linalg.norm(features[row]) * np.linalg.norm(features[other]))
            for other in range(60)
        ]  # fmt: skip
        near = np.argsort(cosine)[-20:]
        votes = np.bincount(labels[near], minlength=3) / 20
        np.testing.assert_allclose(voted[row], 0.8 * votes + 0.2 * probs[row], atol=1e-12)


def test_other_frequencies_are_not_taken_for_errors(validation, fitted):
    test = load_bundled("cifar10_test")
    animals = test.take((test.labels >= 2) & (test.labels <= 7))
    truth = float((animals.logits.argmax(dim=1) == animals.labels).double().mean())
    outputs = []
    for rows in (validation, animals):
        probs = fitted.predict_log_proba(rows.logits.double()).exp().numpy()
        outputs.append(Outputs(probs, None, probs.argmax(axis=1), np.arange(rows.n)))
    accuracy = float((validation.logits.argmax(dim=1) == validation.labels).double().mean())
    estimate = transported_accuracy(outputs[0], validation.labels.numpy(), outputs[1], accuracy)
    assert estimate == pytest.approx(truth, abs=0.05)


def test_under_noise_a_third_of_the_calibration_error_is_left(found, fitted, noisy):
    alone, adapted = (calibrated(each, noisy) for each in (fitted, found.calibrator))
    assert ece(adapted) < ece(alone) / 3
    assert evaluate(adapted).metrics["nll"] < evaluate(alone).metrics["nll"]
    assert found.verdict == "adapted"
    assert found.accuracy == pytest.approx(0.5359, abs=0.05)
    assert found.remaining == pytest.approx(ece(adapted), abs=0.05)
    # The predicted class stays, up to ties that rounding makes.
    probs, predicted = adapted.to_probs(), alone.to_logits().argmax(dim=1)
    torch.testing.assert_close(probs.gather(1, predicted[:, None])[:, 0], probs.amax(dim=1))


def test_without_features_the_model_alone_is_asked(fitted, validation, noisy):
    one, two = (Predictions(logits=each.logits, labels=each.labels) for each in (validation, noisy))
    found = AdaptedCalibrator.fit(fitted, one, two)
    assert list(found.estimates) == ["model"]
    assert found.remaining is None
    assert "features in both files would tell" in found.sentence
    assert ece(calibrated(found.calibrator, noisy)) < ece(calibrated(fitted, noisy)) / 2


def test_a_calibrator_is_ahead_of_its_model_by_as_many_points_on_harder_data(found, validation, noisy):
    better = VectorScaling.fit(validation.logits, validation.labels)
    ahead = AdaptedCalibrator.fit(better, validation, noisy)
    points = ahead.confidence_before - found.confidence_before
    assert abs(points) > 1e-4
    for name, estimate in found.estimates.items():
        assert ahead.estimates[name] - estimate == pytest.approx(points, abs=1e-9)


def test_without_a_shift_the_calibrator_stays(fitted, validation):
    test = load_bundled("cifar10_test")
    found = AdaptedCalibrator.fit(fitted, validation, test)
    assert (found.verdict, found.temperature) == ("unchanged", 1.0)
    assert abs(ece(calibrated(found.calibrator, test)) - ece(calibrated(fitted, test))) < 0.003


def test_labels_of_the_new_data_change_nothing(found, fitted, validation, noisy):
    bare = Predictions(logits=noisy.logits, features=noisy.features, class_names=noisy.class_names)
    assert AdaptedCalibrator.fit(fitted, validation, bare).temperature == pytest.approx(found.temperature)


def test_a_calibrator_that_is_overconfident_on_labelled_samples_is_held_to_their_labels(validation, noisy):
    found = AdaptedCalibrator.fit(Identity(), validation, noisy)
    assert found.confidence > 0.9
    assert found.verdict == "adapted"
    assert found.accuracy == pytest.approx(0.5359, abs=0.06)


def test_the_bent_calibrator_is_saved_and_loaded(found, noisy, tmp_path):
    found.calibrator.save(tmp_path / "bent.safetensors")
    loaded = load_calibrator(tmp_path / "bent.safetensors")
    rows = noisy.logits[:50]
    torch.testing.assert_close(loaded.predict_log_proba(rows), found.calibrator.predict_log_proba(rows))


def test_the_mean_confidence_is_the_target_or_as_near_as_a_temperature_brings_it():
    log_probs = np.log(np.random.default_rng(3).dirichlet(np.full(4, 0.5), size=200))
    temperature = temperature_for(log_probs, 0.6)
    assert scipy.special.softmax(log_probs / temperature, axis=1).max(axis=1).mean() == pytest.approx(0.6)
    assert temperature_for(log_probs, 0.1) == pytest.approx(50)


def test_the_result_is_a_table_a_sentence_and_json(found):
    assert "accuracy by neighbours in features" in str(found)
    assert "it is bent by a temperature of" in found.sentence
    answer = json.loads(found.to_json())
    assert answer["verdict"] == "adapted"
    assert "calibrator" not in answer


def test_data_that_moved_too_far_are_warned_of(fitted, validation):
    rng = np.random.default_rng(4)
    strange = Predictions(
        logits=rng.normal(size=(500, 10)), features=rng.normal(size=(500, 64)),
        class_names=validation.class_names,
    )  # fmt: skip
    found = AdaptedCalibrator.fit(fitted, validation, strange)
    assert found.verdict == "cannot tell"
    assert "Warning: cannot tell how far off it still is" in found.sentence


def test_an_estimate_without_labels_says_what_harder_samples_would_mean(validation, noisy):
    found = estimate_quality(validation, noisy, methods=["temperature"])
    assert not found.trusted
    assert found.shifted.accuracy == pytest.approx(0.5359, abs=0.05)
    assert "only harder, about" in found.sentence
    same = estimate_quality(validation, load_bundled("cifar10_test"), methods=["temperature"])
    assert same.shifted is None


@pytest.mark.parametrize(
    ("source", "unlabelled", "sentence"),
    [
        (
            {"labels": None},
            {},
            "source: expected the class of each sample, or whether each answer was right, got neither",
        ),
        (
            {},
            {"logits": np.zeros((30, 4))},
            "unlabelled: expected scores of 3 classes, as in source, got scores of 4 classes",
        ),
        ({}, {"logits": np.zeros((5, 3))}, "unlabelled: expected at least 20 samples, got 5"),
        (
            {"features": np.ones((30, 2))},
            {"features": np.ones((30, 5))},
            "unlabelled: expected 2 features, as source has, got 5",
        ),
        ({"weights": np.ones(30)}, {}, "weights"),
    ],
)
def test_wrong_data_are_refused_in_one_sentence(source, unlabelled, sentence):
    logits = np.random.default_rng(5).normal(size=(30, 3))
    labels = np.arange(30) % 3
    one = Predictions(**({"logits": logits, "labels": labels} | source))
    two = Predictions(**({"logits": logits} | unlabelled))
    with pytest.raises(InputError, match=sentence):
        AdaptedCalibrator.fit(Identity(), one, two)


def test_confidences_without_classes_are_refused():
    pairs = Predictions(confidence=np.full(30, 0.7), correct=np.arange(30) % 2)
    with pytest.raises(InputError, match="source: expected scores of classes"):
        AdaptedCalibrator.fit(Identity(), pairs, pairs)
