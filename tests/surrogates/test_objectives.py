"""Objectives by name: each is what it says, from log-probabilities."""

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

from calibrant.errors import InputError
from calibrant.metrics import brier_score
from calibrant.surrogates import (
    OBJECTIVES,
    LogProbForecasts,
    charbonnier_soft_ece,
    check_objective,
    objective_value,
    soft_ece,
)
from tests.conftest import draw, softmax

LOGITS, LABELS = draw(400, 4, sharpen=2.0)
PROBS = softmax(LOGITS)
FORECASTS = LogProbForecasts(torch.tensor(PROBS).log(), torch.tensor(LABELS))


def value(name):
    return float(objective_value(name, FORECASTS))


def test_likelihood_and_brier_are_those_of_the_measures():
    assert value("nll") == pytest.approx(log_loss(LABELS, PROBS), abs=1e-12)
    assert value("brier") == pytest.approx(brier_score(PROBS, LABELS), abs=1e-12)


def test_label_smoothing_spreads_a_twentieth_over_all_classes():
    smoothed = torch.nn.CrossEntropyLoss(label_smoothing=0.05)
    expected = float(smoothed(torch.tensor(LOGITS), torch.tensor(LABELS)))
    assert value("label_smoothing") == pytest.approx(expected, abs=1e-10)


def test_squared_error_is_of_the_top_label():
    expected = np.mean((PROBS.max(axis=1) - (PROBS.argmax(axis=1) == LABELS)) ** 2)
    assert value("mse") == pytest.approx(expected, abs=1e-12)


def test_calibration_objectives_are_of_the_top_label():
    top = torch.tensor(PROBS.max(axis=1)), torch.tensor(PROBS.argmax(axis=1) == LABELS)
    assert value("soft_ece") == pytest.approx(float(soft_ece(*top)), abs=1e-12)
    assert value("charbonnier") == pytest.approx(float(charbonnier_soft_ece(*top)), abs=1e-12)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_has_a_finite_gradient(name):
    logits = torch.tensor(LOGITS, dtype=torch.float32, requires_grad=True)
    forecasts = LogProbForecasts(torch.log_softmax(logits, dim=1), torch.tensor(LABELS))
    objective_value(name, forecasts).backward()
    assert torch.isfinite(logits.grad).all()
    assert logits.grad.abs().max() > 0


@pytest.mark.parametrize("name", OBJECTIVES)
def test_half_precision_is_widened(name):
    half = LogProbForecasts(torch.tensor(PROBS).log().half(), torch.tensor(LABELS))
    assert objective_value(name, half).dtype == torch.float32
    assert float(objective_value(name, half)) == pytest.approx(value(name), abs=5e-3)


def test_an_unknown_objective_is_named():
    with pytest.raises(InputError, match="^objective: expected one of charbonnier, .*, got 'hinge'"):
        check_objective("hinge")
