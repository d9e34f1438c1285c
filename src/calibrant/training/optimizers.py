"""Optimisers as a configuration names them."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from calibrant.training.config.settings import OptimizerSettings


def make_optimizer(settings: OptimizerSettings, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Make an optimiser of the parameters that are to be trained."""
    groups = _groups(settings, [each for each in parameters if each.requires_grad])
    if settings.name == "sgd":
        return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum, nesterov=settings.nesterov)
    kind = torch.optim.Adam if settings.name == "adam" else torch.optim.AdamW
    return kind(groups, lr=settings.lr, betas=settings.betas)


def _groups(settings: OptimizerSettings, parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
    """Divide parameters into those that decay and those that do not."""
    free = [each for each in parameters if settings.decay == "matrices" and each.ndim < 2]
    kept = {id(each) for each in free}
    groups: list[dict[str, Any]] = [
        {
            "params": [each for each in parameters if id(each) not in kept],
            "weight_decay": settings.weight_decay,
        },
        {"params": free, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
