"""SMART's curve: linear between knots, likeliest first, then bent to close gaps no further than chance."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from calibrant.errors import InputError
from calibrant.metrics import expected_calibration_error, negative_log_likelihood
from calibrant.outcomes import margin
from calibrant.posthoc import SMART, TemperatureScaling
from calibrant.posthoc.fitting import temperature_curve
from calibrant.posthoc.fitting.sample_temperature import network_temperature
from calibrant.posthoc.fitting.temperature_curve import BENDING_PRICES, Curve, _Problem
from calibrant.posthoc.fitting.temperature_training import (
    Plan,
    simplest_temperature,
)
from calibrant.posthoc.fitting.tempered import TemperedSamples
from calibrant.posthoc.fitting_set import FittingSet
from calibrant.surrogates import objective_value
from tests.conftest import draw, softmax


def bent(n, k=5, seed=0):
    """Logits of a calibrated model times 0.5 plus their margin: too small if hard, too large if easy."""
    logits, labels = draw(n, k, seed=seed)
    top = np.sort(logits, axis=1)
    return logits * (0.5 + top[:, -1:] - top[:, -2:-1]), labels


def margins_of(logits):
    top = np.sort(np.asarray(logits, dtype=np.float64), axis=1)
    return top[:, -1] - top[:, -2]


def right_of(logits, labels):
    return (logits.argmax(axis=1) == labels).astype(float)


def interpolated(number, knots, heights):
    """The definition: a straight line between two knots, constant beyond the outermost."""
    if number <= knots[0]:
        return heights[0]
    for left in range(len(knots) - 1):
        if number <= knots[left + 1]:
            part = (number - knots[left]) / (knots[left + 1] - knots[left])
            return (1 - part) * heights[left] + part * heights[left + 1]
    return heights[-1]


def temperature_at(height):
    return math.log1p(math.exp(height)) + 0.1


@pytest.mark.parametrize("m", [2, 3, 6])
def test_the_network_is_the_line_through_the_points(m):
    rng = np.random.default_rng(m)
    knots, heights = np.sort(rng.normal(size=m) * 5), rng.normal(size=m) * 3
    layers = Curve(torch.tensor(knots), torch.tensor(heights)).layers()
    numbers = np.concatenate([knots, rng.uniform(knots[0] - 9, knots[-1] + 9, size=200), [-1e4, 1e4]])
    expected = [temperature_at(interpolated(number, knots, heights)) for number in numbers]
    found = network_temperature(torch.tensor(numbers)[:, None], layers)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-8)


@pytest.fixture(scope="module")
def problem():
    logits, labels = (torch.tensor(each) for each in bent(1500))
    return (
        _Problem(margin(logits), TemperedSamples(FittingSet(logits, labels))),
        logits.numpy(),
        labels.numpy(),
    )


def test_the_temperatures_of_the_fit_are_those_of_the_network(problem):
    of_fit, logits, _ = problem
    heights = torch.linspace(0.2, 3.0, len(of_fit.knots), dtype=torch.float64)
    layers = of_fit.curve(heights).layers()
    in_network = network_temperature(torch.tensor(margins_of(logits))[:, None], layers)
    torch.testing.assert_close(of_fit.temperature(heights), in_network, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("strength", [300.0, 3.0])
def test_the_first_step_minimises_the_likelihood_and_the_price_of_bending(problem, strength):
    of_fit, logits, labels = problem
    knots, rows = of_fit.knots.numpy(), np.arange(len(labels))
    margins, right = margins_of(logits), logits.argmax(axis=1) == labels

    def loss(heights):
        temperature = np.log1p(np.exp(np.interp(margins, knots, heights))) + 0.1
        probs = softmax(logits / temperature[:, None])
        confidence = probs.max(axis=1)
        question = np.where(right, np.log(confidence), np.log1p(-confidence))
        return -np.mean(0.3 * np.log(probs[rows, labels]) + 0.7 * question)

    one = minimize(lambda height: loss(np.full(len(knots), height[0])), [1.0], tol=1e-10).x[0]

    def objective(heights):
        bends = np.diff(heights) / temperature_at(one)
        return loss(heights) + strength / (2 * len(labels)) * (bends**2).sum()

    best = minimize(objective, np.full(len(knots), one), tol=1e-9)
    found = of_fit.likeliest(strength)
    assert objective(found.numpy()) <= best.fun + 1e-5
    assert objective(found.numpy()) < objective(np.full(len(knots), one)) - 1e-3


def hosmer_lemeshow(confidence, right):
    """The statistic over 15 soft bins, as a plain loop."""
    centers = (np.arange(15) + 0.5) / 15
    kernel = np.exp(-200 * (confidence[:, None] - centers) ** 2)
    shares = kernel / kernel.sum(axis=1, keepdims=True)
    statistic = 0.0
    for share, center in zip(shares.T, centers, strict=True):
        observed, expected = share @ right, share @ confidence
        statistic += (observed - expected) ** 2 / (share.sum() * center * (1 - center))
    return statistic


def test_the_second_step_minimises_squared_gaps_in_units_of_their_noise(problem):
    of_fit, logits, labels = problem
    knots, rows = of_fit.knots.numpy(), np.arange(len(labels))
    margins, right = margins_of(logits), right_of(logits, labels)
    first = of_fit.flat(1.5)

    def objective(heights):
        temperature = np.log1p(np.exp(np.interp(margins, knots, heights))) + 0.1
        probs = softmax(logits / temperature[:, None])
        confidence = probs.max(axis=1)
        statistic = hosmer_lemeshow(confidence, right)
        likelihood = np.mean(np.log(probs[rows, labels]))
        bends = np.diff(np.diff(heights)) / 1.5
        return (statistic / 2 + 30 / 2 * (bends**2).sum()) / len(labels) - 0.2 * likelihood

    best = minimize(objective, first.numpy(), tol=1e-9)
    found = of_fit.closed(first, max_steps=30).numpy()
    assert objective(found) <= best.fun + 1e-5
    assert objective(found) < objective(first.numpy()) - 1e-3


@pytest.mark.parametrize("settled", [0.5, 1.0, 1.4])
def test_the_curve_goes_back_by_what_chance_explains(problem, settled):
    of_fit, logits, labels = problem
    # At this price the first step is nearly one temperature; the largest error settles it.
    fits = {s: SMART.fit(logits, labels, strength=1e6, settled=s) for s in (1e9, settled)}
    first = of_fit.likeliest(1e6)
    closed = of_fit.closed(first, max_steps=30)
    before, after = (
        hosmer_lemeshow(of_fit.samples.at(of_fit.temperature(h)).confidence.numpy(), right_of(logits, labels))
        for h in (first, closed)
    )
    assert before - after > 1.5 * 1.4
    between = first + (1 - (settled * 1.5 / (before - after)) ** 2) * (closed - first)
    for s, heights in ((1e9, first), (settled, between)):
        expected = [temperature_at(height) for height in heights.tolist()]
        np.testing.assert_allclose(fits[s].temperature_curve(of_fit.knots.numpy()), expected, rtol=1e-6)


@pytest.mark.slow
def test_few_samples_are_repaired_better_than_by_the_mean_absolute_gap(new):
    errors = {"cautious": 0.0, "absolute": 0.0, "one": 0.0}
    for seed in range(2, 6):
        few = bent(1000, seed=seed)
        fits = {
            "cautious": SMART.fit(*few),
            "absolute": SMART.fit(*few, settled=0),
            "one": TemperatureScaling.fit(*few),
        }
        for name, fitted in fits.items():
            errors[name] += expected_calibration_error(fitted.predict_proba(new[0]), new[1]) / 4
    assert errors["cautious"] < errors["absolute"]
    assert errors["cautious"] < 0.6 * errors["one"]


@pytest.fixture(scope="module")
def new():
    return bent(20_000, seed=1)


def test_a_bent_truth_is_found_that_one_temperature_cannot_express(new):
    curve, one = (method.fit(*bent(4000)) for method in (SMART, TemperatureScaling))
    (ece, nll), (ece_of_one, nll_of_one) = (
        (expected_calibration_error(probs, new[1]), negative_log_likelihood(probs, new[1]))
        for probs in (each.predict_proba(new[0]) for each in (curve, one))
    )
    assert ece < 0.5 * ece_of_one
    assert nll < nll_of_one - 0.005
    assert curve.for_folds["strength"] in BENDING_PRICES[1:]


def test_the_second_step_closes_gaps_that_the_first_leaves():
    logits, labels = bent(4000)
    # At this price the first step is nearly one temperature.
    stiff, closed = (SMART.fit(logits, labels, strength=1e6, settled=settled) for settled in (1e9, 1.0))
    left, remaining = (expected_calibration_error(c.predict_proba(logits), labels) for c in (stiff, closed))
    assert remaining < 0.6 * left


def test_at_an_infinite_price_the_first_step_is_one_temperature():
    logits, labels = bent(4000)
    # Any error is settled, so that the second step does nothing.
    flat = SMART.fit(logits, labels, strength=math.inf, settled=1e9)
    temperature = np.asarray(flat.temperature_curve(np.linspace(0, 50, 40)))
    assert np.ptp(temperature) < 1e-9
    plan = Plan("charbonnier", 200, settled=1e9)
    simplest, _ = simplest_temperature(
        TemperedSamples(FittingSet(torch.tensor(logits), torch.tensor(labels))), plan
    )
    assert temperature[0] == pytest.approx(simplest)
    assert simplest != pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_a_calibrated_model_stays_nearly_unchanged(seed):
    logits, labels = draw(4000, 5, seed=seed)
    fitted = SMART.fit(logits, labels)
    assert np.abs(fitted.predict_proba(logits) - softmax(logits)).mean() < 0.01
    temperature = np.asarray(fitted.temperature_curve(margins_of(logits)))
    assert np.abs(np.log(temperature)).mean() < 0.06


def test_a_wrong_scale_is_one_temperature_for_all(overconfident):
    fitted = SMART.fit(*overconfident)
    curve = np.asarray(fitted.temperature_curve(margins_of(overconfident[0])))
    assert curve == pytest.approx(3.0, rel=0.06)


HARD = {
    "fewer than a hundred": bent(99),
    "three samples": ([[2.0, 0.0], [1.0, 0.0], [0.0, 3.0]], [0, 1, 1]),
    "constant margins": (np.tile([[2.0, 0.0, -1.0]], (300, 1)), np.arange(300) % 2),
    "two margins": (np.repeat([[2.0, 0.0], [5.0, 0.0]], 150, axis=0), np.arange(300) % 7 // 5),
    "no margins": (np.zeros((300, 3)), np.arange(300) % 3),
    "all right": (draw(300, 4)[0], draw(300, 4)[0].argmax(axis=1)),
    "all wrong": (draw(300, 4)[0], draw(300, 4)[0].argmin(axis=1)),
    "two classes": bent(500, k=2),
    "logits of ten thousand": (1e4 * bent(500)[0], bent(500)[1]),
    "logits of a thousandth": (1e-3 * bent(500)[0], bent(500)[1]),
    "float16": (bent(500)[0].astype(np.float16), bent(500)[1]),
    "clipped probabilities": (np.log(softmax(bent(500)[0]).clip(0.01)), bent(500)[1]),
}


@pytest.mark.parametrize("case", HARD)
def test_hard_data_are_never_made_worse(case):
    logits, labels = HARD[case]
    fitted = SMART.fit(logits, labels)
    probs = np.asarray(fitted.predict_proba(np.asarray(logits, dtype=np.float64)))
    before = softmax(np.asarray(logits, dtype=np.float64))
    assert np.isfinite(probs).all()
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-9)
    assert (probs.argmax(axis=1) == before.argmax(axis=1)).all()
    after = negative_log_likelihood(probs, labels)
    few = len(labels) < 10  # which cannot show a loss beyond chance
    assert after <= negative_log_likelihood(before.clip(1e-300), labels) + (0.02 if few else 1e-3)


@pytest.mark.parametrize("case", ["all right", "all wrong"])
def test_without_both_hits_and_misses_there_is_nothing_to_learn(case):
    fitted = SMART.fit(*HARD[case])
    assert set(np.asarray(fitted.temperature_curve(np.linspace(0, 20, 9)))) == {1.0}
    assert fitted.for_folds == {"strength": math.inf}


def test_fewer_than_a_hundred_samples_cannot_show_how_a_curve_should_bend():
    assert SMART.fit(*bent(99)).for_folds == {"strength": math.inf}
    assert SMART.fit(*bent(1000)).for_folds["strength"] < math.inf


@pytest.mark.parametrize("scale", [1e-3, 1e4])
def test_the_scale_of_the_logits_does_not_matter(scale):
    logits, labels = bent(2000)
    plain, scaled = SMART.fit(logits, labels), SMART.fit(scale * logits, labels)
    moved = np.abs(plain.predict_proba(logits) - scaled.predict_proba(scale * logits))
    assert moved.mean() < 0.01


def test_half_precision_gives_the_curve_of_its_rounded_logits():
    half = bent(2000)[0].astype(np.float16)
    of_half, of_double = (SMART.fit(each, bent(2000)[1]) for each in (half, half.astype(np.float64)))
    margins = np.linspace(0, 15, 30)
    np.testing.assert_allclose(
        of_half.temperature_curve(margins), of_double.temperature_curve(margins), rtol=1e-2
    )


@pytest.mark.parametrize("clip", [1e-2, 1e-3])
def test_no_part_of_a_curve_is_too_steep_for_single_precision(clip):
    # Clipped probabilities have margins that are nearly the same for most samples.
    logits, labels = draw(2000, 5, spread=3.0, sharpen=3.0)
    clipped = np.log(softmax(logits).clip(clip))
    fitted = SMART.fit(clipped, labels)
    single = SMART([(w.float(), b.float()) for w, b in fitted.layers])
    z = torch.tensor(clipped)
    torch.testing.assert_close(
        single.temperature(z.float()).double(), fitted.temperature(z), rtol=1e-4, atol=0
    )


def test_what_was_searched_saves_the_search_and_gives_the_same_fit(monkeypatch):
    logits, labels = bent(2000)
    fitted = SMART.fit(logits, labels)
    monkeypatch.setattr(
        "calibrant.posthoc.fitting.temperature_curve._chosen_strength",
        lambda *_: pytest.fail("the price was searched again"),
    )
    again = SMART.fit(logits, labels, **fitted.for_folds)
    assert again.for_folds == fitted.for_folds
    assert all(torch.equal(a, b) for a, b in zip(fitted.buffers(), again.buffers(), strict=True))


def test_equal_seeds_give_equal_fits():
    one, two = (SMART.fit(*bent(1000), seed=3) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.buffers(), two.buffers(), strict=True))


def test_a_lower_price_bends_the_first_step_more(problem):
    of_fit, _, _ = problem
    bends = [float(of_fit.likeliest(strength).diff().square().sum()) for strength in BENDING_PRICES]
    assert bends[0] == 0
    assert bends == sorted(bends)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"indicator": "logits"},
            r"^indicator: expected a single number per sample for a curve, got 'logits'; use SMARTPaper$",
        ),
        ({"strength": 0}, r"^strength: expected a positive number, got 0$"),
        ({"strength": -1.0}, r"^strength: expected a positive number, got -1.0$"),
        ({"strength": math.nan}, r"^strength: expected a positive number, got nan$"),
        ({"strength": "high"}, r"^strength: expected a positive number, got high$"),
    ],
)
def test_what_a_curve_cannot_be_is_refused_in_one_sentence(options, message):
    with pytest.raises(InputError, match=message):
        SMART.fit([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0]], [0, 1, 1], **options)


def test_without_caution_all_epochs_are_trained_on_the_objective(monkeypatch):
    calls = []

    def counted(objective, forecasts):
        calls.append(objective)
        return objective_value(objective, forecasts)

    monkeypatch.setattr(temperature_curve, "objective_value", counted)
    SMART.fit(*bent(500), strength=3.0, settled=0, objective="soft_ece", epochs=7)
    assert calls == ["soft_ece"] * 8
    calls.clear()
    SMART.fit(*bent(500), strength=3.0, objective="brier", epochs=5)
    assert calls == ["brier"] * 6
