"""Seeds, optimisers and step sizes: a function of the settings and of the place in a run alone."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from calibrant.training import train
from calibrant.training.config.settings import OptimizerSettings, ScheduleSettings
from calibrant.training.optimization import make_optimizer, seed_of, start_from, step_size_factor
from calibrant.training.processes import ProcessShare
from tests.training.small import small_config

TORCH = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.8, nesterov=True, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.03, betas=(0.8, 0.95), weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.03, betas=(0.8, 0.95), weight_decay=0.1),
}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))


def trained(module, optimizer):
    inputs = torch.randn(6, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    for _ in range(4):
        optimizer.zero_grad()
        module(inputs).square().sum().backward()
        optimizer.step()
    return module.state_dict()


@pytest.mark.parametrize("name", TORCH)
def test_several_steps_are_those_of_torch(name):
    settings = OptimizerSettings(
        name, lr=0.03, momentum=0.8, nesterov=name == "sgd", betas=(0.8, 0.95), weight_decay=0.1
    )
    ours, theirs = network(), network()
    found = trained(ours, make_optimizer(settings, ours.parameters()))
    for key, expected in trained(theirs, TORCH[name](theirs.parameters())).items():
        assert torch.equal(found[key], expected), key


def test_sgd_without_momentum_follows_the_gradient_and_decays():
    weight = nn.Parameter(torch.tensor([[2.0, -1.0]]))
    optimizer = make_optimizer(OptimizerSettings("sgd", lr=0.1, momentum=0.0, weight_decay=0.5), [weight])
    weight.grad = torch.tensor([[1.0, 1.0]])
    optimizer.step()
    assert weight.tolist() == [pytest.approx([2 - 0.1 * (1 + 0.5 * 2), -1 - 0.1 * (1 - 0.5)])]


@pytest.mark.parametrize("name", TORCH)
def test_decay_of_matrices_leaves_biases_and_scales_alone(name):
    module = network()
    optimizer = make_optimizer(
        OptimizerSettings(name, weight_decay=0.1, decay="matrices"), module.parameters()
    )
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    found = {key: decay[id(parameter)] for key, parameter in module.named_parameters()}
    assert found == {
        "0.weight": 0.1,
        "0.bias": 0.0,
        "1.weight": 0.0,
        "1.bias": 0.0,
        "3.weight": 0.1,
        "3.bias": 0.0,
    }


def test_all_weights_decay_by_default_in_one_group():
    optimizer = make_optimizer(OptimizerSettings(weight_decay=0.1), network().parameters())
    assert [(len(group["params"]), group["weight_decay"]) for group in optimizer.param_groups] == [(6, 0.1)]


@pytest.mark.parametrize("decay", ["all", "matrices"])
def test_frozen_parameters_are_left_out(decay):
    module = network()
    module[0].requires_grad_(False)
    optimizer = make_optimizer(OptimizerSettings(decay=decay), module.parameters())
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    assert held == {id(p) for key, p in module.named_parameters() if not key.startswith("0.")}


def drawn():
    return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()  # noqa: NPY002  # what is seeded


def test_a_place_has_its_numbers_whatever_happened_before():
    start_from(5, 1, 2)
    first = drawn()
    torch.rand(7)
    start_from(5, 1, 2)
    assert drawn() == first


@pytest.mark.parametrize("other", [(6, 1, 2), (5, 0, 2), (5, 1, 3), (5, 2, 1)])
def test_another_run_stage_or_epoch_has_others(other):
    assert seed_of(*other) != seed_of(5, 1, 2)


def test_order_dropout_and_augmentation_of_an_epoch_come_from_different_seeds(tmp_path, monkeypatch):
    asked = []

    def noting(seed, *place):
        asked.append(seed_of(seed, *place))
        return asked[-1]

    monkeypatch.setattr("calibrant.training.stage.seed_of", noting)
    monkeypatch.setattr("calibrant.training.stage.start_from", lambda *place: noting(*place))
    train(small_config("training.epochs=2"), tmp_path / "run")
    assert len(asked) == 6  # three in each of two epochs
    assert len(set(asked)) == 6


def test_processes_drop_out_different_units(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("calibrant.training.stage.start_from", lambda *place: asked.append(seed_of(*place)))
    for rank in (0, 1):
        monkeypatch.setattr("calibrant.training.stage.share_of", lambda _, rank=rank: ProcessShare(rank, 2))
        train(small_config("training.epochs=1"), tmp_path / str(rank))
    assert asked[0] != asked[1]


def factors_of_torch(make, n):
    """The factor before each of ``n`` steps of a torch scheduler, and after the last."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimizer)
    factors = []
    for _ in range(n + 1):
        factors.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return factors


def our_factors(settings, n, *, epochs=10):
    return [step_size_factor(settings, step / n, epochs=epochs) for step in range(n + 1)]


@pytest.mark.parametrize("final", [0.0, 0.05])
def test_cosine_is_that_of_torch_at_every_step(final):
    def make(optimizer):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=73, eta_min=final)

    ours = our_factors(ScheduleSettings("cosine", final=final), 73)
    assert ours == pytest.approx(factors_of_torch(make, 73), abs=1e-12)


@pytest.mark.parametrize("final", [0.0, 0.25])
def test_linear_is_that_of_torch_at_every_step(final):
    def make(optimizer):
        return torch.optim.lr_scheduler.LinearLR(
            optimizer, start_factor=1.0, end_factor=final, total_iters=73
        )

    ours = our_factors(ScheduleSettings("linear", final=final), 73)
    assert ours == pytest.approx(factors_of_torch(make, 73), abs=1e-12)


@pytest.mark.parametrize("steps", [1, 3, 7, 391])
def test_milestones_count_whole_epochs_as_torch_counts_them(steps):
    epochs, milestones = 49, (7, 21, 35)

    def make(optimizer):
        return torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=list(milestones), gamma=0.2)

    per_epoch = factors_of_torch(make, epochs - 1)
    settings = ScheduleSettings("multistep", milestones=milestones, factor=0.2)
    ours = our_factors(settings, epochs * steps, epochs=epochs)[:-1]
    assert ours == pytest.approx([factor for factor in per_epoch for _ in range(steps)])


def test_milestones_are_met_exactly_for_any_number_of_steps_and_epochs():
    settings = ScheduleSettings("multistep", milestones=(3, 6))
    for epochs in range(7, 40):
        for steps in range(1, 20):
            total = epochs * steps
            factors = [step_size_factor(settings, step / total, epochs=epochs) for step in range(total)]
            assert [step for step in range(1, total) if factors[step] != factors[step - 1]] == [
                3 * steps,
                6 * steps,
            ]


@pytest.mark.parametrize("name", ["constant", "cosine", "linear"])
def test_warm_up_rises_in_a_line_as_in_torch_and_the_rest_follows_its_own_schedule(name):
    def warmup(optimizer):
        return torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1e-9, total_iters=20)

    settings = ScheduleSettings(name, warmup=0.2)
    ours = our_factors(settings, 100)
    assert ours[:21] == pytest.approx(factors_of_torch(warmup, 20), abs=1e-8)
    assert ours[20:] == pytest.approx(our_factors(ScheduleSettings(name), 80), abs=1e-12)


def test_a_constant_step_size_stays():
    assert set(our_factors(ScheduleSettings("constant"), 50)) == {1.0}
