"""Structured matrix scaling, then SMART."""

import numpy as np
import pytest
import torch

from calibrant.data import load_bundled
from calibrant.metrics import expected_calibration_error, negative_log_likelihood
from calibrant.posthoc import (
    SMART,
    StructuredMatrixScaling,
    StructuredSMART,
    TemperatureScaling,
    load_calibrator,
)
from tests.conftest import draw
from tests.rounding import assert_equal_up_to_rounding


@pytest.fixture(scope="module")
def real():
    val, test = load_bundled("cifar10_val"), load_bundled("cifar10_test")
    return val, test, StructuredSMART.fit(val.logits, val.labels)


@pytest.fixture(scope="module")
def matrix(real):
    return StructuredMatrixScaling.fit(real[0].logits, real[0].labels)


@pytest.mark.slow
def test_it_has_the_calibration_of_smart_at_the_likelihood_of_matrix_scaling(real, matrix):
    val, test, calibrator = real
    one = TemperatureScaling.fit(val.logits, val.labels)
    error, reference = (
        expected_calibration_error(c.predict_proba(test.logits), test.labels) for c in (calibrator, one)
    )
    assert error < 0.75 * reference
    likelihood, best = (
        negative_log_likelihood(c.predict_proba(test.logits), test.labels) for c in (calibrator, matrix)
    )
    assert likelihood < best + 0.005


@pytest.mark.slow
def test_the_first_step_is_structured_matrix_scaling(real, matrix):
    _, test, calibrator = real
    first, second = calibrator.first, calibrator.second
    assert torch.equal(first(test.logits), matrix(test.logits))
    assert isinstance(second, SMART)


def test_the_second_step_never_changes_the_class_that_the_first_predicts(real):
    _, test, calibrator = real
    first = calibrator.first(test.logits)
    assert torch.equal(calibrator(test.logits).argmax(dim=1), first.argmax(dim=1))


def test_what_is_loaded_is_what_was_saved(real, tmp_path):
    _, test, calibrator = real
    calibrator.save(tmp_path / "c.safetensors")
    loaded = load_calibrator(tmp_path / "c.safetensors")
    assert_equal_up_to_rounding(loaded(test.logits), calibrator(test.logits))


def test_a_calibrated_model_is_left_nearly_as_it_is():
    logits, labels = draw(3000, 4, seed=3)
    calibrator = StructuredSMART.fit(logits, labels)
    moved = np.abs(calibrator.predict_proba(logits) - torch.softmax(torch.as_tensor(logits), 1).numpy())
    assert moved.mean() < 0.02
