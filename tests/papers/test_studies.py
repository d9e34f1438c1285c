"""Studies: figures, theorems and propositions checked by numbers."""

import math

import numpy as np
import pytest
import torch

from calibrant import evaluate
from calibrant.errors import InputError
from calibrant.evaluation.calibrated import calibrated
from calibrant.evaluation.indicators import solve_temperatures
from calibrant.papers.model_predictions import load_model_predictions
from calibrant.papers.runner import run_study
from calibrant.papers.smart_theory import (
    Population,
    counterexample,
    nll_slope,
    random_outcomes,
    random_population,
    slice_nll_slope,
    spread_control,
    top_logit_advantage,
)
from calibrant.posthoc import SMARTPaper


def test_the_solved_temperature_gives_the_wanted_confidence():
    z = torch.from_numpy(np.random.default_rng(0).normal(scale=4, size=(200, 7)))
    solved = solve_temperatures(z, confidence=0.8)
    assert torch.softmax(z / solved[:, None], dim=1).amax(dim=1).numpy() == pytest.approx(np.full(200, 0.8))


def test_the_largest_logit_alone_leaves_every_temperature_possible():
    # Eqs. 9 and 10: all other logits lie delta below the largest, which is 5 throughout.
    k, wanted = 10, 0.8
    for delta in (1e-3, 0.1, 1.0, 30.0, 1e4):
        z = torch.full((1, k), 5.0 - delta, dtype=torch.float64)
        z[0, 3] = 5.0
        expected = -delta / math.log((1 / wanted - 1) / (k - 1))
        assert float(solve_temperatures(z, confidence=wanted)) == pytest.approx(expected)


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


def random_samples(k, *, seed=0, n=3000):
    """Logits of many scales, temperatures, true distributions that need not fit them, and margins."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, k)) * np.exp(rng.normal(scale=1.5, size=(n, 1)))
    truth = rng.dirichlet(np.full(k, 0.5), size=n)
    top = np.sort(logits, axis=1)
    return logits, np.exp(rng.normal(size=n)), truth, top[:, -1] - top[:, -2]


def softmax_of(row):
    powers = np.exp(row - row.max())
    return powers / powers.sum()


@pytest.mark.parametrize("k", [2, 3, 10, 100])
def test_lemma_2_bounds_the_advantage_of_the_largest_logit_from_below(k):
    logits, temperature, _, margins = random_samples(k)
    found = top_logit_advantage(logits, temperature=temperature)
    for i in range(50):
        t = logits[i] / temperature[i]
        q = softmax_of(t)
        assert float(found.value[i]) == pytest.approx(t.max() - q @ t, abs=1e-9)
        assert float(found.bound[i]) == pytest.approx((1 - q.max()) * margins[i] / temperature[i], abs=1e-9)
    assert (found.value >= found.bound - 1e-9).all()
    assert bool(torch.allclose(found.value, found.bound)) is (k == 2)


@pytest.mark.parametrize("k", [2, 3, 10, 100])
def test_equation_28_bounds_the_slope_of_the_likelihood_from_above(k):
    logits, temperature, truth, _ = random_samples(k)
    found = nll_slope(logits, truth, temperature=temperature)
    for i in range(50):
        t = logits[i] / temperature[i]
        top, r = np.sort(t)[::-1], truth[i, t.argmax()]
        gap, spread = top[0] - top[1], top[1] - top[-1]
        bound = (softmax_of(t).max() - r) * gap + (1 - r) * spread
        assert float(found.bound[i]) == pytest.approx(bound, abs=1e-9)

        def nll(s, t=t, i=i):
            return -float(truth[i] @ np.log(softmax_of(s * t)))

        if np.abs(t).max() < 20:  # else the difference quotient loses its digits
            assert float(found.value[i]) == pytest.approx((nll(1 + 1e-6) - nll(1 - 1e-6)) / 2e-6, abs=1e-4)
    assert (found.value <= found.bound + 1e-9).all()
    assert bool(torch.allclose(found.value, found.bound, atol=1e-9)) is (k == 2)


@pytest.mark.parametrize("k", [2, 10])
@pytest.mark.parametrize(("low", "high"), [(0.0, 0.5), (0.5, 3.0), (0.0, np.inf), (1e9, np.inf)])
def test_equations_29_and_30_bound_the_slope_of_a_slice(k, low, high):
    logits, temperature, truth, margins = random_samples(k, seed=1)
    inside = (margins >= low) & (margins < high)
    found = slice_nll_slope(logits, truth, inside, temperature=temperature)
    control = spread_control(logits, inside, temperature=temperature)
    value, bound, spreads = 0.0, 0.0, [0.0]
    for row, divisor, eta, chosen in zip(logits, temperature, truth, inside, strict=True):
        if chosen:
            t = row / divisor
            q, top = softmax_of(t), np.sort(t)[::-1]
            value += (q @ t - eta @ t) / len(logits)
            bound += (q.max() - eta[t.argmax()]) * (top[0] - top[1]) / len(logits)
            spreads.append(top[1] - top[-1])
    assert control == pytest.approx(max(spreads))
    assert float(found.value) == pytest.approx(value, abs=1e-9)
    assert float(found.bound) == pytest.approx(bound + max(spreads) * inside.mean(), abs=1e-9)
    assert float(found.value) <= float(found.bound) + 1e-12


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda z: nll_slope(z, [[1.0, 0.0]]), "^truth: expected shape"),
        (lambda z: spread_control(z, [True]), "^inside: expected shape"),
        (lambda z: top_logit_advantage(z, temperature=0.0), "^temperature: expected positive"),
        (lambda z: top_logit_advantage(z, temperature=[1.0]), "^temperature: expected one number"),
    ],
)
def test_bounds_check_their_arguments(call, message):
    with pytest.raises(InputError, match=message):
        call([[1.0, 0.0, 2.0], [0.0, 0.0, 1.0]])


def condition_31(population: Population, *, rho_u: float, rho_o: float) -> bool:
    """Whether a population of two classes without samples between U and O satisfies Eq. (31)."""
    gap, slice_ = population.accuracy - population.confidence, population.sharpened
    odds = np.log(population.confidence / (1 - population.confidence))[slice_]
    mass_u, mass_o = (population.mass[slice_ & side].sum() for side in (gap > 0, gap < 0))
    return bool(rho_u * odds.min() * mass_u > odds.max() * rho_o * mass_o)


def test_proposition_a_2_is_false_as_printed_the_likelihood_of_the_counterexample_falls():
    population = counterexample()
    gap = population.accuracy - population.confidence
    under = gap > 0
    # Its assumptions: gaps of at least rho, disjoint intervals, and Eq. (31).
    assert gap[under].min() >= 0.1 - 1e-12
    assert gap[~under].max() <= -0.01
    assert population.confidence[under].max() < population.confidence[~under].min()
    assert condition_31(population, rho_u=0.1, rho_o=0.01)
    # With the gap of O as it is, the condition does not hold: with equality there is no contradiction.
    assert not condition_31(population, rho_u=0.1, rho_o=0.7)
    nll = [population.nll(population.at(s)) for s in (1.0, 1.001, 1.1, 2.0)]
    assert nll == sorted(nll)
    assert nll[0] < nll[1]


def test_with_gaps_that_only_exceed_rho_the_likelihood_may_rise():
    key = {"study": "mismatch", "gaps": "at least", "beyond": "nothing"}
    (record,) = run_study(key, {"draws": 60}, 0, None)
    assert 0 < record.values["nll_falls"] < 1


def test_gaps_that_exceed_rho_are_never_below_those_of_the_same_draw():
    for seed in range(30):
        draws = [np.random.default_rng(seed) for _ in range(2)]
        exact, larger = (
            random_population(rng, beyond=False, larger=each)
            for rng, each in zip(draws, (False, True), strict=True)
        )
        gaps = [each.accuracy - each.confidence for each in (exact, larger)]
        assert (np.sign(gaps[0]) == np.sign(gaps[1])).all()
        assert (np.abs(gaps[1]) >= np.abs(gaps[0])).all()
        assert (larger.accuracy >= 0).all()
        assert (larger.accuracy <= 1).all()


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


def test_with_equal_gaps_the_likelihood_rises_and_the_calibration_error_depends_on_the_rest():
    def found(beyond):
        key = {"study": "mismatch", "gaps": "equal", "beyond": beyond}
        (record,) = run_study(key, {"draws": 15}, 0, None)
        return record.values

    alone, beside = found("nothing"), found("overconfident")
    assert alone["nll_falls"] == beside["nll_falls"] == 1
    assert alone["probe_rises"] == beside["probe_rises"] == 1
    assert alone["smce_rises"] == 0
    assert beside["both"] == 1


def test_the_study_of_bandwidths_trains_the_network_of_smart():
    source = load_model_predictions("digits", seed=0)
    val, test = source.validation, source.tests["test"]
    found = {}
    for sigma in (0.05, 0.5):
        key = {"study": "sensitivity", "source": "digits", "sigma": sigma, "delta": 0.01}
        (record,) = run_study(key, {"epochs": 30}, 0, None)
        found[sigma] = record.values["ece"]
        own = SMARTPaper.fit(val.logits, val.labels, sigma=sigma, delta=0.01, epochs=30)
        assert found[sigma] == evaluate(calibrated(own, test), measures=["ece"]).metrics["ece"]
    assert found[0.05] != found[0.5]


def test_the_study_of_bandwidths_names_its_setting_as_the_paper_does():
    key = {"study": "sensitivity", "source": "digits", "sigma": 0.1, "delta": 0.01}
    (record,) = run_study(key, {"epochs": 2}, 0, None)
    assert record.labels == {"method": "smart_paper", "setting": "lambda=0.10;delta=0.010"}


def test_an_unknown_study_is_refused():
    with pytest.raises(InputError, match="^study: expected"):
        list(run_study({"study": "magic"}, {}, 0, None))
