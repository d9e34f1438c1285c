"""Training of temperature networks, step by step; Adam takes the steps that torch's own takes."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from calibrant.posthoc import SMART, TemperatureScaling
from calibrant.posthoc.fitting.folds import shuffled
from calibrant.posthoc.fitting.sample_temperature import network_temperature
from calibrant.posthoc.fitting.temperature_training import (
    Adam,
    Plan,
    all_steps,
    best_single_temperature,
    first_layers,
    glorot_layers,
    linear_layers,
    simplest_temperature,
    train_temperatures,
)
from calibrant.posthoc.fitting.tempered import TemperedSamples
from calibrant.posthoc.fitting_set import FittingSet
from calibrant.surrogates import OBJECTIVES, LogProbForecasts, objective_value
from tests.conftest import draw

PLAN = Plan(objective="charbonnier", epochs=50, batch_size=10**6)


def tensors(*args, **kwargs):
    logits, labels = draw(*args, **kwargs)
    return torch.tensor(logits), torch.tensor(labels)


def samples(logits, labels):
    return TemperedSamples(FittingSet(logits, labels))


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("k", [3, 60])
def test_objectives_need_no_classes(objective, k):
    """Seen through the log-sum-exp, exact or tabulated, every objective is what log-probabilities give."""
    z, y = tensors(300, k, sharpen=2.0)
    temperature = torch.linspace(0.3, 4.0, 300, dtype=torch.float64, requires_grad=True)
    direct = temperature.detach().clone().requires_grad_()
    through = objective_value(objective, samples(z, y).at(temperature))
    plain = objective_value(objective, LogProbForecasts(torch.log_softmax(z / direct[:, None], dim=1), y))
    (slope,) = torch.autograd.grad(through, temperature)
    (plain_slope,) = torch.autograd.grad(plain, direct)
    torch.testing.assert_close(through, plain, atol=2e-6, rtol=0)
    torch.testing.assert_close(slope, plain_slope, atol=1e-6, rtol=1e-3)


def test_some_rows_are_a_smaller_set():
    z, y = tensors(300, 60, sharpen=2.0)
    rows = torch.arange(0, 300, 7)
    temperature = torch.full((len(rows),), 1.7, dtype=torch.float64)
    some = objective_value("brier", samples(z, y).at(temperature, rows))
    assert float(some) == pytest.approx(
        float(objective_value("brier", samples(z[rows], y[rows]).at(temperature))), abs=1e-5
    )


def test_the_likeliest_temperature_is_that_of_temperature_scaling():
    z, y = tensors(2000, 5, sharpen=3.0)
    expected = float(TemperatureScaling.fit(z, y).temperature)
    assert best_single_temperature(samples(z, y), "nll") == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("sharpen", [0.2, 1.0, 30.0])
def test_the_best_single_temperature_is_the_one_that_a_fine_grid_finds(sharpen):
    reduced = samples(*tensors(2000, 5, sharpen=sharpen))

    def loss(t):
        return float(objective_value("charbonnier", reduced.at_one(t)))

    grid = min(sharpen * np.geomspace(0.5, 2.0, 41), key=loss)
    exact = minimize_scalar(loss, bounds=(0.95 * grid, 1.05 * grid), method="bounded").x
    assert loss(best_single_temperature(reduced, "charbonnier")) <= loss(exact) + 1e-4


@pytest.mark.parametrize("temperature", [0.2, 1.0, 3.0, 5000.0])
@pytest.mark.parametrize("widths", [(1, 16), (10, 5, 5)])
def test_training_starts_at_one_temperature_for_all(temperature, widths):
    x = torch.randn(50, widths[0], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    start = network_temperature(x, first_layers(widths, temperature=temperature, seed=1, like=x))
    assert start.tolist() == pytest.approx([temperature] * 50, rel=1e-12)
    if temperature == 1:
        assert set(start.tolist()) == {1.0}


def test_a_calibrated_model_is_left_as_it_is():
    left = [simplest_temperature(samples(*tensors(400, 5, seed=seed)), PLAN) for seed in range(20)]
    assert sum(temperature == 1.0 for temperature, _ in left) >= 15


@pytest.mark.parametrize("seed", range(4))
def test_chance_alone_moves_temperatures_little(seed):
    z, y = tensors(4000, 5, seed=seed)
    top = z.topk(2, dim=1).values
    layers = train_temperatures(top[:, :1] - top[:, 1:], FittingSet(z, y), hidden=(16,), plan=PLAN)
    moved = network_temperature((top[:, :1] - top[:, 1:]).double(), layers).log().abs()
    assert float(moved.mean()) < 0.05


def test_a_wrong_scale_needs_one_temperature():
    temperature, enough = simplest_temperature(samples(*tensors(4000, 5, sharpen=3.0)), PLAN)
    assert temperature == pytest.approx(3.0, rel=0.05)
    assert enough


def test_what_one_temperature_cannot_repair_is_not_called_enough():
    z, y = tensors(4000, 5, spread=2.0)
    top = z.topk(2, dim=1).values
    bent = z * (0.3 + (top[:, :1] - top[:, 1:]))
    assert not simplest_temperature(samples(bent, y), PLAN)[1]


def test_without_a_mistake_there_is_nothing_to_learn_from():
    z = 4 * torch.eye(3, dtype=torch.float64).repeat(20, 1)
    assert simplest_temperature(samples(z, z.argmax(dim=1)), PLAN) == (1.0, True)


def test_by_chance_calibrated_models_seldom_look_wrong():
    """The threshold of evidence is passed by about one in a hundred, with few samples as with many."""
    rng = np.random.default_rng(0)
    for n in (60, 1500):
        ratios = []
        for _ in range(300):
            p = rng.beta(5, 1, size=n).clip(0.5, 1 - 1e-9)
            z = torch.tensor(np.stack([np.log(p / (1 - p)), np.zeros(n)], axis=1))
            bins = samples(z, torch.tensor((rng.random(n) > p).astype(int))).at_one(1.0).bins
            ratios.append(float(bins.expected_gap() / bins.expected_by_chance()))
        assert np.mean(ratios) == pytest.approx(1.0, abs=0.1)
        assert np.mean(np.array(ratios) > 1.9) < 0.03
        assert math.isclose(np.quantile(ratios, 0.9), 1.4, abs_tol=0.15)


def test_the_steps_are_those_of_torch():
    ours = [torch.tensor([1.0, -2.0, 3.0], requires_grad=True), torch.tensor([[0.5]], requires_grad=True)]
    theirs = [part.detach().clone().requires_grad_() for part in ours]
    adam, reference = Adam(ours, learning_rate=0.05), torch.optim.Adam(theirs, lr=0.05)

    def loss(parts):
        return (parts[0] ** 4).sum() + torch.cos(parts[1] * parts[0].sum()).sum()

    for _ in range(50):
        adam.step(torch.autograd.grad(loss(ours), ours))
        reference.zero_grad()
        loss(theirs).backward()
        reference.step()
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.detach().numpy() == pytest.approx(other.detach().numpy(), rel=1e-4)


def test_very_many_samples_are_thinned_and_the_rest_is_not_seen(monkeypatch):
    monkeypatch.setattr("calibrant.posthoc.smart.MOST_SAMPLES", 500)
    logits, labels = tensors(2000, 3, seed=1, sharpen=3.0)
    seen = shuffled(2000, seed=4)[:500].sort().values
    thinned, alone = SMART.fit(logits, labels, seed=4), SMART.fit(logits[seen], labels[seen], seed=4)
    assert torch.equal(thinned(logits), alone(logits))


def plain_network(start):
    """The layers as torch modules."""
    modules = []
    for weight, bias in start:
        module = torch.nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
        module.weight.data.copy_(weight)
        module.bias.data.copy_(bias)
        modules += [module, torch.nn.ReLU()]
    return torch.nn.Sequential(*modules[:-1])


@pytest.mark.parametrize("link", ["softplus", "absolute"])
def test_all_steps_are_those_of_torch_on_the_same_batches(link):
    """The loop of the papers, written with torch's modules, its optimizer and plain log-probabilities."""
    z, y = tensors(250, 5, sharpen=2.0)
    x = z.topk(3, dim=1).values
    plan = Plan("brier", 0, batch_size=100, learning_rate=2e-3)
    start = linear_layers((3, 6, 1), seed=1, like=x)
    layers = all_steps(x, FittingSet(z, y, seed=3), start, plan, n_steps=7, link=link)
    network = plain_network(start)
    adam = torch.optim.Adam(network.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(3)
    steps = 0
    while steps < 7:
        for rows in torch.randperm(250, generator=generator).split(100):
            if steps == 7:
                break
            output = network(x[rows]).squeeze(1)
            temperature = torch.nn.functional.softplus(output) + 0.1 if link == "softplus" else output.abs()
            probs = torch.softmax(z[rows] / temperature[:, None], dim=1)
            truth = torch.nn.functional.one_hot(y[rows], 5)
            adam.zero_grad()
            (probs - truth).square().sum(dim=1).mean().backward()
            adam.step()
            steps += 1
    for (weight, bias), module in zip(layers, list(network)[::2], strict=True):
        torch.testing.assert_close(weight, module.weight.data, atol=1e-9, rtol=0)
        torch.testing.assert_close(bias, module.bias.data, atol=1e-9, rtol=0)


def test_random_layers_are_as_large_as_those_of_the_libraries():
    like = torch.zeros(1, dtype=torch.float64)
    (weight, bias), (last, _) = linear_layers((40, 3000, 1), seed=0, like=like)
    torch_layer = torch.nn.Linear(40, 3000)
    for ours, theirs in ((weight, torch_layer.weight.data), (bias, torch_layer.bias.data)):
        assert float(ours.abs().max()) == pytest.approx(float(theirs.abs().max()), rel=0.01)
        assert float(ours.std()) == pytest.approx(float(theirs.std()), rel=0.05)
    assert float(last.abs().max()) <= 1 / math.sqrt(3000)
    (weight, bias), _ = glorot_layers((40, 3000, 1), seed=0, like=like)
    xavier = torch.nn.init.xavier_uniform_(torch.empty(3000, 40))
    assert float(weight.std()) == pytest.approx(float(xavier.std()), rel=0.02)
    assert not bias.any()
