"""Evaluation: one frozen value from predictions of every form."""

import dataclasses
import sys

import numpy as np
import pytest

from calibrant import Predictions, compare, evaluate, metrics, save_predictions
from calibrant.errors import CalibrantError, InputError
from calibrant.evaluation import paired_comparison
from calibrant.metrics.names import MEASURES
from tests.conftest import draw, softmax


def test_logits_and_their_softmax_give_the_same(overconfident):
    logits, labels = overconfident
    from_logits = evaluate(Predictions(logits=logits, labels=labels)).metrics
    from_probs = evaluate(Predictions(probs=softmax(logits), labels=labels)).metrics
    assert dict(from_logits) == pytest.approx(dict(from_probs), abs=1e-10)


def test_values_are_those_of_the_measures(sample):
    result = evaluate(Predictions(probs=sample[0], labels=sample[1]), n_bins=10)
    assert result.metrics["ece"] == metrics.expected_calibration_error(*sample, n_bins=10)
    assert result.metrics["ece_equal_mass"] == metrics.expected_calibration_error(
        *sample, n_bins=10, binning="mass"
    )
    assert result.metrics["classwise_ece"] == metrics.classwise_calibration_error(*sample, n_bins=10)
    assert len(result.bins.count) == 10


def test_a_result_cannot_be_changed(sample):
    result = evaluate(Predictions(probs=sample[0], labels=sample[1]))
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.n = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        result.metrics["ece"] = 0.0


def test_a_single_prediction_has_no_calibration():
    with pytest.raises(InputError, match="expected at least two samples, got 1; calibration is a property"):
        evaluate(Predictions(logits=[[1.0, 2.0]], labels=[0]))


def test_predictions_without_labels_cannot_be_evaluated():
    with pytest.raises(InputError, match="labels"):
        evaluate(Predictions(logits=np.zeros((3, 2))))


def test_progress_moves_with_the_resamples_of_each_measure(sample):
    steps = []
    evaluate(
        Predictions(probs=sample[0], labels=sample[1]),
        measures=["aurc", "smce"],
        intervals=True,
        n_resamples=700,
        progress=lambda *what: steps.append(what),
    )
    titles = [what.split(",")[0] for what, _, _ in steps]
    assert list(dict.fromkeys(titles)) == [MEASURES[name].title for name in ("aurc", "smce")]
    assert steps[-1] == ("smooth calibration error (smCE), 700 of 700 resamples", 1400, 1400)
    shares = [done / total for _, done, total in steps]
    assert shares == sorted(shares)
    assert len(set(shares)) > 4


def test_an_interval_that_takes_long_has_fewer_resamples_and_a_remark(sample, monkeypatch):
    predictions = Predictions(probs=sample[0], labels=sample[1])
    asked = {"measures": ["ece", "auroc_ovo", "accuracy", "kde_ece"], "intervals": True, "n_resamples": 150}
    full = evaluate(predictions, **asked)
    assert full.intervals["auroc_ovo"].n_resamples == 150
    no_interval = "no interval, because resampling a measure with quadratic cost takes too long"
    assert dict(full.remarks) == {"kde_ece": no_interval}
    monkeypatch.setattr(sys.modules["calibrant.evaluation.evaluate"], "MAX_WORK", 1)
    short = evaluate(predictions, **asked)
    assert {name: interval.n_resamples for name, interval in short.intervals.items()} == {
        "ece": 100,
        "auroc_ovo": 100,
        "accuracy": 150,
    }
    assert short.remarks["auroc_ovo"] == "interval from 100 resamples, because more would take too long"
    assert evaluate(predictions, measures=["kde_ece"]).remarks == {}


def test_ties_that_leave_bins_of_equal_count_empty_are_remarked():
    stated = np.repeat([0.5, 0.8, 0.95], [10, 10, 80])
    correct = np.arange(100) % 3 > 0
    tied = evaluate(
        Predictions(confidence=stated, correct=correct), measures=["ece_debiased", "ece", "smece"]
    )
    assert dict(tied.remarks) == {"ece_debiased": "3 of 15 bins, because equal confidences share a bin"}
    for different in (np.linspace(0.1, 0.9, 100), np.linspace(0.1, 0.9, 4)):
        n = len(different)
        assert not evaluate(Predictions(confidence=different, correct=correct[:n]), measures="core").remarks


def test_paths_and_probabilities_are_evaluated_as_predictions_are(tmp_path):
    logits, labels = draw(60, 3, seed=0)
    own = Predictions(logits=logits, labels=labels)
    save_predictions(own, tmp_path / "own.npz")
    expected = evaluate(own).metrics
    assert evaluate(tmp_path / "own.npz").metrics == evaluate(str(tmp_path / "own.npz")).metrics == expected
    assert evaluate(own.to_probs().numpy(), labels).metrics == pytest.approx(dict(expected))
    compared = compare(tmp_path / "own.npz", test=tmp_path / "own.npz", methods="uncalibrated", n_resamples=5)
    assert compared["uncalibrated"].test_metrics["ece"] == pytest.approx(expected["ece"])
    paired = paired_comparison(own, tmp_path / "own.npz", measures="ece", n_resamples=5)
    assert paired.differences["ece"].difference == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda own, labels: evaluate(own.logits.numpy()),  # noqa: ARG005  # labels are forgotten
            r"^predictions: expected Predictions, a frame or the path .* got ndarray; pass Predictions\(",
        ),
        (
            lambda own, labels: evaluate(own.logits * 3, labels),
            "^probs: .* if these are logits, pass them as logits",
        ),
        (lambda own, labels: evaluate(own, labels), "^labels: expected none, because predictions hold them"),
        (
            lambda own, labels: compare([own], test=labels),
            "^validation: expected Predictions, a frame or the path .* got list",
        ),
        (
            lambda own, labels: compare(own, test=labels),
            "^test: expected Predictions, a frame or the path .* got ndarray",
        ),
        (lambda own, labels: evaluate("nowhere.npz"), "nowhere.npz"),  # noqa: ARG005
    ],
)
def test_what_is_no_predictions_is_refused_with_what_to_call(call, message):
    logits, labels = draw(60, 3, seed=0)
    with pytest.raises(CalibrantError, match=message):
        call(Predictions(logits=logits, labels=labels), labels)
