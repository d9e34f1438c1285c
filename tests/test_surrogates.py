"""Surrogates: soft bins, the soft calibration error with and without its kink, and objectives by name."""

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

from calibrant.errors import InputError
from calibrant.metrics import brier_score, charbonnier_error, expected_calibration_error
from calibrant.surrogates import (
    OBJECTIVES,
    LogProbForecasts,
    SoftBinning,
    charbonnier_pointwise,
    charbonnier_soft_ece,
    check_objective,
    objective_value,
    soft_bins,
    soft_ece,
    soft_membership,
)
from tests.conftest import draw, softmax


def test_weights_of_soft_bins_and_of_objectives_count_samples():
    rng = np.random.default_rng(3)
    log_probs = torch.log_softmax(torch.from_numpy(2 * rng.normal(size=(60, 3))), dim=1)
    labels, w = torch.from_numpy(rng.integers(0, 3, size=60)), torch.from_numpy(rng.integers(1, 4, size=60))
    rows = torch.repeat_interleave(torch.arange(60), w)
    weighted = LogProbForecasts(log_probs, labels, w.double())
    repeated = LogProbForecasts(log_probs[rows], labels[rows])
    for binning in (SoftBinning(), SoftBinning(n_bins=7)):
        for name in OBJECTIVES:
            values = (float(objective_value(name, each, binning)) for each in (weighted, repeated))
            assert next(values) == pytest.approx(next(values), rel=1e-12)
    # The copies of a sample do not vary independently: its variance has the square of its weight.
    p, share = weighted.confidence, w[:, None] * soft_membership(weighted.confidence)
    for b, noise in enumerate(weighted.bins.noise):
        variance = sum(float(share[i, b]) ** 2 * float(p[i] * (1 - p[i])) for i in range(60))
        assert float(noise) == pytest.approx(variance**0.5 / float(share[:, b].sum()), rel=1e-9)


@pytest.fixture(scope="module")
def outcomes():
    rng = np.random.default_rng(0)
    confidence = rng.beta(4, 1, size=2000)
    return torch.tensor(confidence), torch.tensor(rng.random(2000) < confidence**2)


def loop_shares(confidence, n_bins, lam):
    """The definition, one sample and one bin at a time."""
    shares = np.zeros((len(confidence), n_bins))
    for i, p in enumerate(confidence):
        for b in range(n_bins):
            shares[i, b] = np.exp(-lam * (p - (b + 0.5) / n_bins) ** 2)
        shares[i] /= shares[i].sum()
    return shares


@pytest.mark.parametrize(("n_bins", "lam"), [(15, 200.0), (1, 5.0), (7, 30.0)])
def test_shares_are_those_of_the_definition(outcomes, n_bins, lam):
    confidence = outcomes[0][:50]
    shares = soft_membership(confidence, n_bins=n_bins, lam=lam)
    np.testing.assert_allclose(shares, loop_shares(confidence.tolist(), n_bins, lam), atol=1e-12)


def test_the_error_is_that_of_the_definition(outcomes):
    confidence, correct = outcomes
    shares = loop_shares(confidence.tolist(), 15, 200.0)
    residual = (confidence - correct.double()).numpy()
    expected = sum(abs(shares[:, b] @ residual) for b in range(15)) / len(residual)
    assert float(soft_ece(confidence, correct)) == pytest.approx(expected, abs=1e-12)


def test_sharp_bins_are_hard_bins(outcomes):
    confidence, correct = outcomes
    hard = expected_calibration_error(confidence=confidence, correct=correct, n_bins=10)
    assert float(soft_ece(confidence, correct, n_bins=10, lam=1e6)) == pytest.approx(hard, abs=1e-6)


def test_weights_sum_to_one(outcomes):
    assert float(soft_bins(*outcomes).weight.sum()) == pytest.approx(1.0, abs=1e-12)


def test_gradients_are_those_of_finite_differences(outcomes):
    confidence, correct = outcomes[0][:30].clone().requires_grad_(), outcomes[1][:30]
    assert torch.autograd.gradcheck(lambda p: soft_ece(p, correct), confidence)


@pytest.mark.parametrize("confidence", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_bins_that_no_sample_reaches_do_no_harm(confidence, dtype):
    p = torch.full((20,), confidence, dtype=dtype, requires_grad=True)
    error = soft_ece(p, torch.arange(20) % 2, lam=1e4)
    error.backward()
    assert float(error.detach()) == pytest.approx(abs(confidence - 0.5), abs=1e-3)
    assert torch.isfinite(p.grad).all()


@pytest.mark.parametrize("n", [50, 5000])
def test_what_chance_shows_is_what_calibrated_models_show(n):
    rng = np.random.default_rng(1)
    confidence = torch.tensor(rng.beta(5, 1, size=n))
    draws = torch.tensor(rng.random((400, n))) < confidence
    observed = np.mean([float(soft_ece(confidence, draw)) for draw in draws])
    predicted = float(soft_bins(confidence, draws[0]).expected_by_chance())
    assert predicted == pytest.approx(observed, rel=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_bins": 0}, "^n_bins: expected a whole number of at least 1, got 0"),
        ({"lam": -1.0}, "^lam: expected a positive number, got -1.0"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(InputError, match=message):
        soft_membership(torch.tensor([0.5]), **options)


@pytest.fixture(scope="module")
def few_outcomes():
    rng = np.random.default_rng(0)
    confidence = rng.beta(4, 1, size=300)
    return torch.tensor(confidence), torch.tensor(rng.random(300) < confidence**2)


def test_the_value_without_the_kink_is_that_of_the_definition(few_outcomes):
    confidence, correct = (array.double().tolist() for array in few_outcomes)
    total = 0.0
    kernels = [[np.exp(-200 * (p - (b + 0.5) / 15) ** 2) for b in range(15)] for p in confidence]
    samples = list(zip(kernels, confidence, correct, strict=True))
    for b in range(15):
        held = sum(kernel[b] / sum(kernel) for kernel in kernels)
        residual = sum(kernel[b] / sum(kernel) * (p - a) for kernel, p, a in samples)
        total += held / 300 * np.sqrt((residual / held) ** 2 + 1e-6)
    assert float(charbonnier_soft_ece(*few_outcomes)) == pytest.approx(total, abs=1e-12)


def test_it_lies_above_the_soft_error_by_at_most_delta(few_outcomes):
    for delta in (1e-3, 0.1):
        excess = float(charbonnier_soft_ece(*few_outcomes, delta=delta) - soft_ece(*few_outcomes))
        assert 0 < excess <= delta


def test_the_floor_is_delta_not_zero():
    confidence = torch.full((10,), 0.7, dtype=torch.float64, requires_grad=True)
    correct = torch.tensor([1.0] * 7 + [0.0] * 3)
    value = charbonnier_soft_ece(confidence, correct, delta=0.02)
    value.backward()
    assert float(value.detach()) == pytest.approx(0.02, abs=1e-12)
    assert torch.isfinite(confidence.grad).all()


def test_certainty_does_not_pay():
    correct = torch.tensor([1.0] * 7 + [0.0] * 3)
    honest = charbonnier_soft_ece(torch.full((10,), 0.7), correct)
    certain = charbonnier_soft_ece(torch.full((10,), 1.0), correct)
    assert honest < 0.01 < 0.29 < certain


def test_gradients_without_the_kink_are_those_of_finite_differences(few_outcomes):
    confidence, correct = few_outcomes[0][:30].clone().requires_grad_(), few_outcomes[1][:30]
    assert torch.autograd.gradcheck(lambda p: charbonnier_soft_ece(p, correct), confidence)


def test_delta_is_checked():
    with pytest.raises(InputError, match="^delta: expected a positive number, got 0"):
        charbonnier_soft_ece(torch.tensor([0.5]), torch.tensor([1.0]), delta=0)


def loop_pointwise(confidence, correct, n_bins, lam, delta):
    """Eq. (6) of the SMART paper, one sample and one bin at a time."""
    shares = loop_shares(confidence, n_bins, lam)
    total = 0.0
    for i, a in enumerate(correct):
        for b in range(n_bins):
            total += shares[i, b] * np.sqrt((a - (b + 0.5) / n_bins) ** 2 + delta**2)
    return total / len(correct)


@pytest.mark.parametrize(("n_bins", "sigma", "delta"), [(15, 0.05, 1e-3), (7, 0.1, 0.2)])
def test_equation_6_to_the_letter_is_a_mean_of_distances(few_outcomes, n_bins, sigma, delta):
    confidence, correct = few_outcomes
    lam = 1 / (2 * sigma**2)
    expected = loop_pointwise(confidence.tolist(), correct.double().tolist(), n_bins, lam, delta)
    found = charbonnier_pointwise(confidence, correct, n_bins=n_bins, lam=lam, delta=delta)
    assert float(found) == pytest.approx(expected, abs=1e-12)


def test_many_bins_of_equation_6_are_its_integral(few_outcomes):
    confidence, correct = few_outcomes
    measured = charbonnier_error(confidence=confidence, correct=correct)
    assert float(charbonnier_pointwise(confidence, correct, n_bins=2000)) == pytest.approx(measured, abs=1e-5)


def test_equation_6_to_the_letter_rewards_certainty():
    """A calibrated model of confidence 0.7 or 0.3 does better by claiming 1 or 0."""
    grid = torch.linspace(0, 1, 101, dtype=torch.float64)
    for hits, best in ((7, 1.0), (3, 0.0)):
        correct = torch.tensor([1.0] * hits + [0.0] * (10 - hits))
        values = [float(charbonnier_pointwise(p.expand(10), correct)) for p in grid]
        assert float(grid[int(np.argmin(values))]) == best
        binned = [float(charbonnier_soft_ece(p.expand(10), correct)) for p in grid]
        assert float(grid[int(np.argmin(binned))]) == pytest.approx(hits / 10)


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
    assert value("charbonnier_pointwise") == pytest.approx(float(charbonnier_pointwise(*top)), abs=1e-12)


def test_bins_bandwidth_and_rounding_of_an_objective_can_be_chosen():
    top = torch.tensor(PROBS.max(axis=1)), torch.tensor(PROBS.argmax(axis=1) == LABELS)
    binning = SoftBinning(n_bins=8, sigma=0.1, delta=0.3)
    for name, function in (
        ("charbonnier", charbonnier_soft_ece),
        ("charbonnier_pointwise", charbonnier_pointwise),
    ):
        found = float(objective_value(name, FORECASTS, binning))
        assert found == pytest.approx(float(function(*top, n_bins=8, lam=50.0, delta=0.3)), abs=1e-12)
    soft = float(objective_value("soft_ece", FORECASTS, binning))
    assert soft == pytest.approx(float(soft_ece(*top, n_bins=8, lam=50.0)), abs=1e-12)
    rounded = float(objective_value("charbonnier", FORECASTS, SoftBinning(delta=0.3)))
    assert rounded == pytest.approx(float(charbonnier_soft_ece(*top, delta=0.3)), abs=1e-12)


@pytest.mark.parametrize("option", ["n_bins", "sigma", "delta"])
def test_a_binning_has_positive_numbers(option):
    with pytest.raises(InputError, match=f"^{option}: expected"):
        SoftBinning(**{option: 0})


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
