"""Studies: figures, theorems and propositions checked by numbers."""

import math

import numpy as np
import pytest
import torch

from calibrant import evaluate
from calibrant.bench.model_predictions import load_model_predictions
from calibrant.bench.runner import run_study
from calibrant.bench.smart_ablations import solve_temperatures, train_smart
from calibrant.bench.smart_theory import Population, random_outcomes, random_population
from calibrant.errors import InputError
from calibrant.evaluation.calibrated import calibrated
from calibrant.posthoc import SMART


def test_the_solved_temperature_gives_the_wanted_confidence():
    z = torch.from_numpy(np.random.default_rng(0).normal(scale=4, size=(200, 7)))
    solved = solve_temperatures(z, confidence=0.8)
    assert torch.softmax(z / solved[:, None], dim=1).amax(dim=1).numpy() == pytest.approx(np.full(200, 0.8))


def test_the_margin_is_within_its_bounds_and_explains_more_than_the_largest_logit():
    key = {"study": "indicators", "logits": "shifted", "classes": 10, "confidence": 0.8}
    found = {r.labels["indicator"]: r.values for r in run_study(key, {"draws": 500}, 0, None)}
    assert found["margin"]["inside"] == 1
    assert found["margin"]["explained"] > 0.8
    assert found["max_logit"]["explained"] < 0.2
    assert found["margin"]["spread"] < found["max_logit"]["spread"]


def test_two_classes_leave_nothing_unexplained_but_the_width_of_the_groups():
    key = {"study": "indicators", "logits": "gaussian", "classes": 2, "confidence": 0.8}
    found = {r.labels["indicator"]: r.values for r in run_study(key, {"draws": 2000}, 0, None)}
    assert found["margin"]["explained"] > 0.95


def test_the_bound_holds_on_outcomes_of_every_kind():
    key = {"study": "bound", "predictions": "random", "lam": 200.0}
    (record,) = run_study(key, {"draws": 60}, 0, None)
    assert record.values["violated"] == 0
    assert 0.5 < record.values["worst_ratio"] <= 1
    assert record.values["bias"] <= record.values["bias_bound"]


def test_random_outcomes_include_some_that_are_always_wrong_and_some_that_are_calibrated():
    rng = np.random.default_rng(0)
    drawn = [random_outcomes(rng) for _ in range(200)]
    gaps = [float(np.mean(correct) - np.mean(confidence)) for confidence, correct in drawn]
    assert min(gaps) < -0.4
    assert max(gaps) > 0.4
    assert all(c.min() >= 0 and c.max() <= 1 for c, _ in drawn)


@pytest.mark.parametrize("beyond", [False, True])
def test_a_random_population_satisfies_the_condition_of_the_proposition(beyond):
    rng = np.random.default_rng(0)
    for _ in range(30):
        population = random_population(rng, beyond=beyond)
        gap = population.accuracy - population.confidence
        in_slice = population.sharpened
        odds = np.log(population.confidence / (1 - population.confidence))[in_slice]
        under, over = in_slice & (gap > 0), in_slice & (gap < 0)
        assert population.mass.sum() == pytest.approx(1)
        left = gap[under].min() * odds.min() * population.mass[under].sum()
        right = odds.max() * -gap[over].min() * population.mass[over].sum()
        assert left > right
        assert (population.accuracy >= 0).all()
        assert (population.accuracy <= 1).all()


def test_sharpening_multiplies_the_log_odds_of_the_slice_alone():
    population = Population(
        np.array([0.6, 0.7]),
        np.array([0.5, 0.5]),
        np.array([0.8, 0.5]),
        np.array([True, False]),
        0.7,
        0.7,
        0.1,
    )
    first, second = population.at(2.0)
    assert math.log(first / (1 - first)) == pytest.approx(2 * math.log(0.6 / 0.4))
    assert second == pytest.approx(0.7)


def test_a_population_of_one_confidence_has_its_gap_as_error_and_the_known_likelihood():
    population = Population(
        np.array([0.75]), np.array([1.0]), np.array([0.5]), np.array([True]), 0.75, 0.75, 0.1
    )
    p = population.at(1.0)
    assert population.smce(p) == pytest.approx(0.25)
    assert population.nll(p) == pytest.approx(-(math.log(0.75) + math.log(0.25)) / 2)


def test_the_likelihood_part_of_the_proposition_holds_and_the_calibration_part_depends_on_the_rest():
    def found(beyond):
        (record,) = run_study({"study": "mismatch", "beyond": beyond}, {"draws": 15}, 0, None)
        return record.values

    alone, beside = found("nothing"), found("overconfident")
    assert alone["nll_falls"] == beside["nll_falls"] == 1
    assert alone["probe_rises"] == beside["probe_rises"] == 1
    assert alone["smce_rises"] == 0
    assert beside["both"] == 1


def test_the_study_of_bandwidths_trains_the_network_of_smart():
    source = load_model_predictions("digits", seed=0)
    layers = train_smart(source.validation.logits, source.validation.labels, sigma=0.05, delta=1e-3)
    found = evaluate(calibrated(SMART(layers), source.validation), measures=["ece"]).metrics["ece"]
    own = SMART.fit(source.validation.logits, source.validation.labels, settled=0.0)
    expected = evaluate(calibrated(own, source.validation), measures=["ece"]).metrics["ece"]
    before = evaluate(source.validation, measures=["ece"]).metrics["ece"]
    assert found < before / 2
    assert found == pytest.approx(expected, abs=0.01)


def test_the_study_of_bandwidths_names_its_setting_as_the_paper_does():
    key = {"study": "sensitivity", "source": "digits", "sigma": 0.1, "delta": 0.01}
    (record,) = run_study(key, {"epochs": 2}, 0, None)
    assert record.labels["setting"] == "lambda=0.10;delta=0.010"


def test_an_unknown_study_is_refused():
    with pytest.raises(InputError, match="^study: expected"):
        list(run_study({"study": "magic"}, {}, 0, None))
