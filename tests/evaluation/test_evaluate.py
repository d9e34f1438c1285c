"""Evaluation: one frozen value from predictions of every form."""

import dataclasses

import numpy as np
import pytest

from calibrant import Predictions, evaluate, metrics
from calibrant.errors import InputError
from tests.conftest import softmax


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
