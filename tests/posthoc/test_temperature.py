"""Temperature scaling: the fit that cannot fail in silence."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.metrics import log_loss

from calibrant.errors import FitError, InputError
from calibrant.metrics import expected_calibration_error
from calibrant.posthoc import TemperatureScaling
from calibrant.posthoc.fitting.temperature_search import minimise_over_temperature
from calibrant.posthoc.names import METHODS
from calibrant.surrogates import LogProbForecasts, objective_value
from tests.conftest import draw, softmax


def exact_data(temperature):
    """Rows whose label frequencies are exactly softmax(z / temperature), and no other temperature's."""
    odds = np.array([[np.log(3), 0, np.log(4)], [np.log(2), np.log(5), 0]])
    labels = [np.repeat([0, 1, 2], [3, 1, 4]), np.repeat([0, 1, 2], [2, 5, 1])]
    return temperature * np.repeat(odds, 8, axis=0), np.concatenate(labels)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("start", [1e-6, 0.1, 1.0, 10.0, 1e6])
@pytest.mark.parametrize("temperature", [0.01, 0.5, 1.0, 2.6, 400.0])
def test_a_known_temperature_is_recovered_from_any_start(temperature, start, dtype):
    logits, labels = exact_data(temperature)
    fitted = TemperatureScaling.fit(logits.astype(dtype), labels, start=start)
    assert float(fitted.temperature) == pytest.approx(temperature, rel=1e-6)


def test_float16_is_as_good_as_its_rounding():
    logits, labels = exact_data(2.0)
    half = logits.astype(np.float16)
    fitted = TemperatureScaling.fit(half, labels)
    rounded_in_double = TemperatureScaling.fit(half.astype(np.float64), labels)
    assert float(fitted.temperature) == pytest.approx(float(rounded_in_double.temperature), rel=1e-6)
    # Powers of two times log-odds that float16 holds exactly leave nothing to rounding.
    exact = np.repeat([[1.5, 0.0]], 1000, axis=0)
    share = 1 / (1 + np.exp(-1.5 / 3))
    labels = (np.arange(1000) >= round(1000 * share)).astype(int)
    expected = 1.5 / np.log(round(1000 * share) / (1000 - round(1000 * share)))
    for dtype in (np.float16, np.float32, np.float64):
        fitted = TemperatureScaling.fit(exact.astype(dtype), labels)
        assert float(fitted.temperature) == pytest.approx(expected, rel=1e-6)


def test_the_fit_is_the_minimum_that_scipy_finds(overconfident):
    logits, labels = overconfident
    found = minimize_scalar(
        lambda t: log_loss(labels, softmax(logits / t)), bounds=(0.1, 20), options={"xatol": 1e-9}
    ).x
    assert float(TemperatureScaling.fit(logits, labels).temperature) == pytest.approx(found, rel=1e-5)
    assert found == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize("factor", [1e-2, 1e2, 1e4])
def test_scaling_the_logits_scales_the_temperature(overconfident, factor):
    logits, labels = overconfident
    base = float(TemperatureScaling.fit(logits, labels).temperature)
    assert float(TemperatureScaling.fit(logits * factor, labels).temperature) == pytest.approx(
        base * factor, rel=1e-8
    )


def test_shifting_a_row_changes_nothing(overconfident):
    logits, labels = overconfident
    shifted = logits + np.linspace(-50, 50, len(logits))[:, None]
    base = float(TemperatureScaling.fit(logits, labels).temperature)
    assert float(TemperatureScaling.fit(shifted, labels).temperature) == pytest.approx(base, rel=1e-9)


SEPARABLE = ([[5.0, 0.0], [0.0, 5.0]], [0, 1])
BY_CHANCE = ([[5.0, 0.0], [0.0, 5.0]], [1, 0])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (SEPARABLE, "no optimum, every label has the largest logit"),
        (([[5.0, 0.0]], [0]), "no optimum, every label has the largest logit"),
        (BY_CHANCE, "no optimum, the logits predict the labels no better than chance"),
        ((np.zeros((4, 3)) + 7.0, [0, 1, 2, 0]), "no optimum, the logits predict the labels no better"),
    ],
)
def test_without_an_optimum_and_a_prior_there_is_no_temperature(data, reason):
    with pytest.raises(FitError, match=reason):
        TemperatureScaling.fit(*data, prior=0)


@pytest.mark.parametrize(("data", "lowest", "highest"), [(SEPARABLE, 0.05, 1), (BY_CHANCE, 1, 1000)])
@pytest.mark.parametrize("prior", [0.01, 0.25, 1.0])
def test_without_an_optimum_the_prior_decides(data, lowest, highest, prior):
    """The temperature is the minimum of the likelihood with the prior, by a plain search."""
    logits, labels = np.array(data[0]), np.array(data[1])

    def objective(t):
        z = logits / t
        nll = np.logaddexp(*z.T) - z[np.arange(len(z)), labels]
        return nll.sum() + prior / 2 * np.log(t) ** 2

    grid = np.geomspace(1e-3, 1e5, 400_001)
    best = grid[np.argmin([objective(t) for t in grid[::100]]) * 100]
    near = grid[(grid > best / 1.1) & (grid < best * 1.1)]
    expected = near[np.argmin([objective(t) for t in near])]
    found = float(TemperatureScaling.fit(*data, prior=prior).temperature)
    assert found == pytest.approx(expected, rel=1e-4)
    assert prior != 0.25 or lowest < found < highest
    assert float(TemperatureScaling.fit(*data, prior=prior, start=50.0).temperature) == pytest.approx(found)


def test_constant_logits_keep_a_temperature_of_one():
    assert float(TemperatureScaling.fit(np.full((4, 3), 7.0), [0, 1, 2, 0]).temperature) == 1


def test_where_there_is_an_optimum_the_prior_has_no_say(overconfident):
    plain = float(TemperatureScaling.fit(*overconfident, prior=0).temperature)
    assert float(TemperatureScaling.fit(*overconfident, prior=100.0).temperature) == plain


def test_one_miss_among_many_hits_is_enough():
    logits = np.repeat([[1e-3, 0.0]], 10_000, axis=0)
    labels = np.zeros(10_000, dtype=int)
    labels[0] = 1
    assert float(TemperatureScaling.fit(logits, labels).temperature) == pytest.approx(
        1e-3 / np.log(9999), rel=1e-6
    )


def test_the_predicted_class_never_changes_and_ties_stay_ties():
    logits = np.array([[1.0, 1.0, 0.5], [3.0, 2.0, 1.0]])
    probs = TemperatureScaling(0.05).predict_proba(logits)
    assert probs[0, 0] == probs[0, 1] > probs[0, 2]
    assert np.argmax(probs, axis=1).tolist() == [0, 0]


@pytest.mark.parametrize("temperature", [0.0, -189.0, np.inf, np.nan])
def test_a_temperature_is_positive_and_finite(temperature):
    with pytest.raises(InputError, match="^temperature: expected a positive number, got"):
        TemperatureScaling(temperature)


def test_a_start_is_positive_and_finite():
    with pytest.raises(InputError, match="^start: expected a positive number, got -1"):
        TemperatureScaling.fit([[1.0, 0.0]], [0], start=-1)


def test_probabilities_come_back_in_the_kind_that_went_in():
    calibrator = TemperatureScaling(2.0)
    assert isinstance(calibrator.predict_proba([[1.0, 2.0]]), list)
    assert calibrator.predict_proba(np.float32([[1, 2]])).dtype == np.float32
    assert calibrator.predict_proba(torch.ones(1, 2, dtype=torch.float16)).dtype == torch.float32
    assert calibrator.predict_proba([2.0]) == pytest.approx(np.array([[0.2689414, 0.7310586]]), abs=1e-6)


def test_a_calibrator_is_a_module_with_a_state():
    state = TemperatureScaling(2.5).state_dict()
    assert state["temperature"].item() == 2.5
    other = TemperatureScaling(1.0)
    other.load_state_dict(state)
    assert other.temperature.item() == 2.5


def test_samples_of_the_rows_only_say_where_to_begin():
    logits, labels = draw(20_000, 6, seed=3, sharpen=2.0)
    found = minimize_scalar(
        lambda t: log_loss(labels, softmax(logits / t)), bounds=(1, 4), options={"xatol": 1e-9}
    ).x
    for dtype in (np.float32, np.float64):
        for start in (0.01, 1.0, 100.0):
            fitted = TemperatureScaling.fit(logits.astype(dtype), labels, start=start)
            assert float(fitted.temperature) == pytest.approx(found, rel=1e-6)


def test_samples_without_an_optimum_do_no_harm():
    logits, labels = exact_data(2.0)
    n = 20_000
    rows = np.tile(logits, (n // len(logits) + 1, 1))[:n]
    tiled = np.tile(labels, n // len(labels) + 1)[:n]
    tiled[::10] = rows[::10].argmax(axis=1)  # the rows that samples of 2,000 take are all right
    whole = TemperatureScaling.fit(rows, tiled)
    shuffled = np.random.default_rng(0).permutation(n)
    assert float(whole.temperature) == pytest.approx(
        float(TemperatureScaling.fit(rows[shuffled], tiled[shuffled]).temperature), rel=1e-6
    )


def test_the_logits_are_never_copied_whole(monkeypatch):
    logits, labels = draw(3000, 5, sharpen=2.0)
    whole = float(TemperatureScaling.fit(logits, labels).temperature)
    monkeypatch.setattr("calibrant.posthoc.fitting.temperature_search._BLOCK_ENTRIES", 35)
    assert float(TemperatureScaling.fit(logits, labels).temperature) == pytest.approx(whole, rel=1e-9)


def test_the_ece_objective_is_the_best_of_the_grid(overconfident):
    logits, labels = overconfident
    grid = [step / 10 for step in range(1, 101)]
    errors = [expected_calibration_error(softmax(logits / t), labels, n_bins=10) for t in grid]
    fitted = TemperatureScaling.fit(logits, labels, objective="ece", n_bins=10)
    assert float(fitted.temperature) == grid[int(np.argmin(errors))]


@pytest.mark.parametrize("objective", ["label_smoothing", "mse", "brier", "soft_ece", "charbonnier"])
def test_other_objectives_are_at_their_minimum(overconfident, objective):
    logits, labels = (torch.as_tensor(a) for a in overconfident)

    def value(t):
        log_probs = torch.log_softmax(logits / t, dim=1)
        return float(objective_value(objective, LogProbForecasts(log_probs, labels)))

    fitted = TemperatureScaling.fit(logits, labels, objective=objective)
    grid = np.append(np.geomspace(0.06, 19, 100), 1.0)
    assert value(float(fitted.temperature)) <= min(value(t) for t in grid) + 1e-9
    assert float(fitted.temperature) == pytest.approx(3.0, rel=0.4)


def test_an_unknown_objective_is_refused():
    with pytest.raises(InputError, match="^objective: expected one of"):
        TemperatureScaling.fit([[1.0, 0.0]], [0], objective="accuracy")


def test_one_dimensional_search_finds_the_deepest_of_several_valleys():
    def bumpy(t):
        return min((np.log(t) - 1.5) ** 2, (np.log(t) + 1.0) ** 2 - 0.2)

    assert minimise_over_temperature(bumpy) == pytest.approx(np.exp(-1.0), rel=1e-4)
    assert minimise_over_temperature(lambda _: 0.0) == 1.0


def test_the_best_temperature_by_bins_of_equal_count_is_that_of_a_plain_search():
    found = []
    for seed in range(4):
        logits, labels = draw(400, 5, seed=seed, sharpen=2.3)
        grid = [step / 10 for step in range(1, 101)]
        errors = [expected_calibration_error(softmax(logits / t), labels, binning="mass") for t in grid]
        expected = min(zip(errors, grid, strict=True), key=lambda each: (each[0], abs(math.log(each[1]))))[1]
        fitted = METHODS["temperature_ece_equal_mass"].fit(logits, labels)
        assert float(fitted.temperature) == expected
        found.append(expected == float(TemperatureScaling.fit(logits, labels, objective="ece").temperature))
    assert not all(found)  # the bins matter
