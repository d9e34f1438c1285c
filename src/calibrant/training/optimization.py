"""Seeds, optimisers and step sizes, each a function of the settings and the place in a run."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from lightning_fabric.utilities.seed import seed_everything
from torch import nn

from calibrant.training.config.settings import OptimizerSettings, ScheduleSettings


def seed_of(seed: int, *place: int) -> int:
    """Return the seed of a place in a run, such as the numbers of a stage and an epoch.

    Random numbers depend on the place alone, so a resumed run repeats those of an uninterrupted one.

    Example:
        >>> seed_of(0, 1, 5) == seed_of(0, 1, 5) != seed_of(0, 1, 6)
        True
    """
    return int(np.random.SeedSequence([seed, *place]).generate_state(1)[0])


def start_from(seed: int, *place: int) -> None:
    """Seed every generator of this process for a place in a run."""
    seed_everything(seed_of(seed, *place), verbose=False)


def make_optimizer(settings: OptimizerSettings, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimiser of those parameters that require gradients."""
    groups = _groups(settings, [each for each in parameters if each.requires_grad])
    if settings.name == "sgd":
        return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum, nesterov=settings.nesterov)
    kind = torch.optim.Adam if settings.name == "adam" else torch.optim.AdamW
    return kind(groups, lr=settings.lr, betas=settings.betas)


def _groups(settings: OptimizerSettings, parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
    """Divide parameters into those that decay and those that do not."""
    decay: list[nn.Parameter] = []
    no_decay: list[nn.Parameter] = []
    for each in parameters:
        (no_decay if settings.decay == "matrices" and each.ndim < 2 else decay).append(each)
    groups = ((decay, settings.weight_decay), (no_decay, 0.0))
    return [{"params": members, "weight_decay": strength} for members, strength in groups if members]


def step_size_factor(settings: ScheduleSettings, done: float, *, epochs: int) -> float:
    """Return the current step size as a share of the highest one.

    Args:
        settings: The schedule.
        done: Share of all steps that are done, from 0 to 1.
        epochs: Number of epochs, in which milestones are counted.

    Example:
        >>> round(step_size_factor(ScheduleSettings("cosine", warmup=0.1), 0.55, epochs=10), 6)
        0.5
        >>> step_size_factor(ScheduleSettings("multistep", milestones=(5, 8)), 0.5, epochs=10)
        0.1
    """
    if done < settings.warmup:
        return done / settings.warmup
    if settings.name == "constant":
        return 1.0
    if settings.name == "multistep":
        # Rounding must not delay a milestone by a step.
        passed = sum(milestone <= done * epochs + 1e-9 for milestone in settings.milestones)
        return float(settings.factor**passed)
    share = (done - settings.warmup) / (1 - settings.warmup)
    left = 1 - share if settings.name == "linear" else (1 + math.cos(math.pi * share)) / 2
    return settings.final + (1 - settings.final) * left
