"""Curves that figures and the report draw: temperature, validation size, loss."""

import math

import numpy as np
import pytest
import torch

from calibrant import InputError, Predictions, evaluate
from calibrant.evaluation import by_margin, by_validation_size, loss_shape, temperature_curve
from calibrant.losses.focal import focal_value
from calibrant.posthoc import SMART, TemperatureScaling
from tests.conftest import draw, softmax


@pytest.fixture(scope="module")
def predictions():
    logits, labels = draw(1500, 5, seed=5, sharpen=2.5)
    return Predictions(logits=logits, labels=labels)


def test_the_curve_is_smart_and_the_line_is_temperature_scaling(predictions):
    curve = temperature_curve(predictions)
    z, y = predictions.logits, predictions.labels
    expected = SMART.fit(z, y).temperature_curve(curve.margins)
    torch.testing.assert_close(curve.temperature, expected, check_dtype=False)
    assert curve.single == pytest.approx(float(TemperatureScaling.fit(z, y).temperature))
    assert float(curve.share.sum()) == pytest.approx(0.99, abs=0.005)


def test_feasible_temperatures_reach_the_accuracy_of_their_group(predictions):
    curve = temperature_curve(predictions, n_groups=4)
    groups = by_margin(predictions, n_groups=4)
    for found in curve.feasible:
        (group,) = [each for each in groups if each.low == pytest.approx(float(found.margins[0]))]
        assert found.accuracy == group.metrics["accuracy"]
        assert found.n == group.n
        # At the lowest temperature all other classes are tied behind the margin, at the highest only one is.
        margin = float(found.margins[1])
        tied = math.exp(-margin / float(found.lowest[1]))
        assert 1 / (1 + 4 * tied) == pytest.approx(found.accuracy)
        if math.isfinite(float(found.highest[1])):
            alone = math.exp(-margin / float(found.highest[1]))
            assert 1 / (1 + alone) == pytest.approx(found.accuracy)


def test_probabilities_have_the_margins_of_their_logits(predictions):
    probs = Predictions(probs=softmax(predictions.logits.numpy()), labels=predictions.labels)
    torch.testing.assert_close(temperature_curve(probs).margins, temperature_curve(predictions).margins)


def test_only_smart_of_the_margin_has_a_curve_along_it(predictions):
    entropy = SMART.fit(predictions.logits, predictions.labels, indicator="entropy", epochs=1)
    with pytest.raises(InputError, match="expected SMART with the indicator 'margin', got 'entropy'"):
        temperature_curve(predictions, calibrator=entropy)
    with pytest.raises(InputError, match="expected logits or probs with labels"):
        temperature_curve(Predictions(logits=predictions.logits))


def test_a_size_of_all_samples_is_the_plain_fit(predictions):
    found = by_validation_size(
        predictions, predictions, methods=["temperature"], sizes=[200, 1500], n_repeats=3
    )
    curve = found.curves["temperature"]
    fitted = TemperatureScaling.fit(predictions.logits, predictions.labels)
    repaired = Predictions(probs=fitted.predict_proba(predictions.logits), labels=predictions.labels)
    assert float(curve.mean[1]) == pytest.approx(evaluate(repaired).metrics["ece"], abs=1e-9)
    assert float(curve.low[1]) == pytest.approx(float(curve.high[1]))
    assert curve.low[0] <= curve.mean[0] <= curve.high[0]
    assert found.uncalibrated == pytest.approx(evaluate(predictions).metrics["ece"])


def test_the_measure_can_be_named_and_sizes_are_chosen(predictions):
    steps = []
    found = by_validation_size(
        predictions,
        predictions,
        methods=["temperature"],
        measure="nll",
        n_repeats=1,
        progress=lambda *what: steps.append(what),
    )
    sizes = found.curves["temperature"].size.tolist()
    assert (sizes[0], sizes[-1], len(sizes)) == (100, 1500, 6)
    assert found.measure == "nll"
    assert steps == [("temperature", 0, 1)]


def test_a_part_that_cannot_be_fitted_is_left_out():
    separable = Predictions(logits=np.eye(3)[[0, 1, 2, 0]] * 5, labels=[0, 1, 2, 0])
    method = "temperature(prior=0)"
    found = by_validation_size(separable, separable, methods=[method], sizes=[4], n_repeats=2)
    curve = found.curves[method]
    assert curve.mean.isnan().all()
    assert curve.low.isnan().all()


def test_unknown_methods_and_impossible_sizes_are_refused(predictions):
    with pytest.raises(InputError, match="got 'magic'"):
        by_validation_size(predictions, predictions, methods=["magic"])
    with pytest.raises(InputError, match=r"sizes: expected numbers from 1 to the 1500 .* got \[2000\]"):
        by_validation_size(predictions, predictions, sizes=[100, 2000])


def test_the_weight_of_focal_loss_is_its_derivative():
    shape = loss_shape({"focal": lambda nll: focal_value(nll, 2.0)}, p=[0.2, 0.5, 0.9])
    p = np.array([0.2, 0.5, 0.9])
    np.testing.assert_allclose(shape.loss["focal"], -((1 - p) ** 2) * np.log(p))
    np.testing.assert_allclose(shape.weight["focal"], (1 - p) ** 2 - 2 * p * (1 - p) * np.log(p))


def test_reduced_losses_and_invalid_probabilities_are_refused():
    with pytest.raises(InputError, match="mean: expected one value per sample"):
        loss_shape({"mean": lambda nll: nll.mean()})
    with pytest.raises(InputError, match="p: expected probabilities above 0"):
        loss_shape({"nll": lambda nll: nll}, p=[0.0, 1.0])
