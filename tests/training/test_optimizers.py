"""Optimisers: torch's own, with the parameters that are to be trained."""

import pytest
import torch
from torch import nn

from calibrant.training.config import OptimizerSettings
from calibrant.training.optimizers import make_optimizer

TORCH = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.8, nesterov=True, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.03, betas=(0.8, 0.95), weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.03, betas=(0.8, 0.95), weight_decay=0.1),
}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))


def train(module, optimizer):
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
    found = train(ours, make_optimizer(settings, ours.parameters()))
    for key, expected in train(theirs, TORCH[name](theirs.parameters())).items():
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
    told = {key: decay[id(parameter)] for key, parameter in module.named_parameters()}
    assert told == {
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
