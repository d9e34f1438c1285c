"""Repair of the stated confidence of a black box."""

import numpy as np
import pytest
import torch

from calibrant.data import Predictions
from calibrant.errors import InputError
from calibrant.evaluation import calibrated, compare, make_choice
from calibrant.metrics import expected_calibration_error, negative_log_likelihood
from calibrant.posthoc import ConfidenceCalibrator, PlattScaling, load_calibrator
from calibrant.posthoc.confidence import ends_of
from calibrant.posthoc.names import method_for_pairs, resolve_for_pairs, safe_method
from tests.rounding import assert_equal_up_to_rounding

METHODS = [name for name in resolve_for_pairs("all") if name != "pool"]


def boaster(n=600, *, seed=0):
    """Answers of a model that says 95 % half of the time, at times 0 or 1, and is right far less often."""
    rng = np.random.default_rng(seed)
    stated = rng.choice([0.0, 0.5, 0.7, 0.8, 0.95, 1.0], p=[0.02, 0.08, 0.1, 0.1, 0.5, 0.2], size=n)
    right = {0.0: 0.1, 0.5: 0.15, 0.7: 0.45, 0.8: 0.5, 0.95: 0.35, 1.0: 0.8}
    return stated, rng.random(n) < np.array([right[value] for value in stated])


def pairs(n=600, **options):
    stated, right = boaster(n, **options)
    return Predictions(confidence=stated, correct=right)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_repairs_and_the_same_confidence_gets_the_same_answer(method, tmp_path):
    stated, right = boaster()
    fitted = ConfidenceCalibrator.fit_pairs(stated, right, method=method)
    repaired = fitted.predict_confidence(stated)
    assert ((repaired >= 0) & (repaired <= 1)).all()
    assert all(len(set(repaired[stated == value])) == 1 for value in np.unique(stated))
    again = fitted.predict_confidence(stated.astype(np.float32)[::-1])
    assert again.dtype == np.float32
    np.testing.assert_allclose(again[::-1], repaired, atol=1e-6)
    fitted.save(tmp_path / "c.safetensors")
    assert_equal_up_to_rounding(
        load_calibrator(tmp_path / "c.safetensors").predict_confidence(stated), repaired
    )
    before, after = (negative_log_likelihood(confidence=each, correct=right) for each in (stated, repaired))
    assert after <= before + 1e-9


def test_it_is_the_binary_method_on_log_odds():
    rng = np.random.default_rng(0)
    stated = rng.uniform(0.2, 0.9, size=400).round(3)
    right = rng.random(400) < stated**2
    fitted = ConfidenceCalibrator.fit_pairs(stated, right, method="platt")
    plain = PlattScaling.fit(np.log(stated / (1 - stated)), right.astype(int))
    expected = plain.predict_proba(np.log(stated / (1 - stated)))[:, 1]
    np.testing.assert_allclose(fitted.predict_confidence(stated), expected, atol=1e-6)


def test_certainty_counts_as_half_a_step_beyond_the_surest_doubt():
    logits = Predictions(confidence=[0.0, 0.1, 0.99, 1.0]).problem.logits
    assert torch.allclose(torch.sigmoid(ends_of(logits)), torch.tensor([0.05, 0.995]).double())
    only = Predictions(confidence=[0.0, 1.0]).problem.logits
    assert torch.allclose(torch.sigmoid(ends_of(only)), torch.tensor([0.25, 0.75]).double())


def test_confidences_that_are_all_equal_become_the_share_of_right_answers():
    fitted = ConfidenceCalibrator.fit_pairs([0.95] * 200, [True] * 60 + [False] * 140, method="isotonic")
    assert fitted.predict_confidence([0.95])[0] == pytest.approx(0.3, abs=0.01)


def test_the_default_is_better_than_platt_scaling_and_says_why():
    comparison = compare(pairs(1500), test=pairs(4000, seed=1), n_resamples=20)
    choice = make_choice(comparison)
    assert choice.result.name == "pool"
    assert "Platt scaling" in choice.reason
    assert choice.result.test_metrics["ece"] < 0.05 < comparison["uncalibrated"].test_metrics["ece"]
    assert choice.result.test_metrics["nll"] <= comparison["platt"].test_metrics["nll"]
    assert "classwise_ece" not in choice.result.metrics
    assert choice.result.held_out.confidence is not None
    assert comparison.pool is not None


def test_measures_of_the_comparison_are_those_of_the_pairs():
    validation = pairs(300)
    result = compare(validation, methods=["uncalibrated", "platt"], n_resamples=20)
    stated = result["uncalibrated"]
    pair = {"confidence": validation.confidence, "correct": validation.correct}
    assert stated.metrics["ece"] == expected_calibration_error(**pair)
    assert stated.metrics["nll"] == pytest.approx(negative_log_likelihood(**pair))
    assert float(stated.losses["nll"].mean()) == pytest.approx(stated.metrics["nll"])
    platt = result["platt"]
    assert platt.metrics["brier"] == pytest.approx(
        np.mean((platt.held_out.confidence.numpy() - validation.correct.numpy()) ** 2)
    )


def test_a_calibrator_of_confidences_repairs_answers_nobody_has_marked():
    fitted = ConfidenceCalibrator.fit_pairs(*boaster(), method="platt")
    repaired = calibrated(fitted, Predictions(confidence=[0.95, 0.5], metadata={"model": "x"}))
    assert repaired.correct is None
    assert repaired.metadata == {"model": "x"}
    assert repaired.confidence[0] < 0.6


def test_class_scores_and_confidences_are_not_mixed_up():
    fitted = ConfidenceCalibrator.fit_pairs(*boaster(), method="platt")
    with pytest.raises(
        InputError, match="^predictions: expected confidences, which the ConfidenceCalibrator"
    ):
        calibrated(fitted, Predictions(logits=[[0.0, 1.0]]))
    with pytest.raises(InputError, match="^predictions: expected class scores, which the PlattScaling was"):
        calibrated(PlattScaling.fit([[0.0, 1.0], [1.0, 0.0]] * 5, [1, 0, 0, 1, 1] * 2), pairs(10))
    with pytest.raises(InputError, match="^logits: expected two classes, wrong and right, got 3"):
        ConfidenceCalibrator.fit(np.zeros((4, 3)), [0, 1, 2, 0])
    with pytest.raises(InputError, match="^methods: expected methods that repair a confidence, got vector"):
        compare(pairs(), methods=["vector"])
    with pytest.raises(InputError, match="^score: expected nll, brier or ece for confidences"):
        make_choice(compare(pairs(100), methods=["platt", "beta"], n_resamples=20), score="classwise_ece")


def test_maps_of_the_top_label_become_maps_of_the_confidence():
    assert method_for_pairs("venn_abers").options == {"mode": "one_vs_rest"}
    assert method_for_pairs("platt").options == {}
    assert "pool" not in method_for_pairs("pool").options["methods"]


def test_a_pool_is_drawn_back_to_what_fits_the_problem():
    assert safe_method(["temperature", "platt", "combination"], of_pairs=False) == "temperature"
    assert safe_method(["temperature", "platt"], of_pairs=True) == "platt"
    assert safe_method(["platt", "combination"], of_pairs=True) == "combination"


def test_one_number_gives_one_number():
    stated, right = boaster()
    fitted = ConfidenceCalibrator.fit_pairs(stated, right, method="platt")
    assert [fitted(0.95)] == [fitted.predict_confidence(0.95)] == fitted.predict_confidence([0.95])
    assert isinstance(fitted(0.95), float)
    assert isinstance(fitted(1), float)
    with pytest.raises(InputError, match="confidence: expected numbers between 0 and 1, got 95"):
        fitted(95)


def test_one_number_takes_the_name_of_its_group():
    stated, right = boaster()
    groups = np.where(np.arange(600) % 2, "law", "art")
    answers = Predictions(confidence=stated, correct=right & (groups == "law"), groups=groups)
    found = compare(answers, methods=["platt"])
    repaired = found["by_group"].calibrator
    assert repaired(0.95, groups="law") > repaired(0.95, groups="art") + 0.1
