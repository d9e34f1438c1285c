"""Figure 3 of the SMART paper: how the training loss and its gradient develop, by objective."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from calibrant.errors import InputError
from calibrant.outcomes import margin
from calibrant.papers.model_predictions import load_model_predictions
from calibrant.papers.rows import Record
from calibrant.posthoc.fitting.sample_temperature import network_temperature
from calibrant.posthoc.fitting.temperature_training import Adam, linear_layers, standardised
from calibrant.posthoc.fitting.tempered import TemperedSamples
from calibrant.posthoc.fitting_set import FittingSet
from calibrant.posthoc.smart import HIDDEN_UNITS
from calibrant.surrogates import check_objective, objective_value

_LEARNING_RATE = 5e-3
_BATCH = 1024


def convergence_study(
    key: Mapping[str, Any], settings: Mapping[str, Any], seed: int, data: Path | None
) -> Iterator[Record]:
    """Yield the loss and the norm of its gradient at some epochs of training as the paper does.

    ``gradient_change`` is the mean absolute change of the norm from one epoch to the next since the last of
    these epochs. The key has a ``source`` of predictions and an ``objective``.
    """
    fitting = load_model_predictions(key["source"], seed=seed, data=data).validation
    if fitting.labels is None:
        raise InputError("labels: expected the true class of each sample to fit on, got none")
    logits = fitting.to_logits()
    samples = TemperedSamples(FittingSet.of(logits, fitting.labels))
    x, _, _ = standardised(margin(logits)[:, None].double())
    objective = check_objective(key["objective"])
    start = linear_layers((1, HIDDEN_UNITS, 1), seed=seed, like=x)
    layers = [(weight.requires_grad_(), bias.requires_grad_()) for weight, bias in start]
    parameters = [part for layer in layers for part in layer]
    adam = Adam(parameters, learning_rate=_LEARNING_RATE)
    generator = torch.Generator().manual_seed(seed)
    norms: list[float] = []
    since = 0
    for epoch in range(1, max(settings["epochs"]) + 1):
        losses, lengths = [], []
        for rows in torch.randperm(len(x), generator=generator).split(_BATCH):
            temperature = network_temperature(x[rows], layers)
            loss = objective_value(objective, samples.at(temperature, rows))
            gradients = torch.autograd.grad(loss, parameters)
            losses.append(float(loss.detach()))
            lengths.append(float(torch.cat([each.flatten() for each in gradients]).norm()))
            adam.step(gradients)
        norms.append(fmean(lengths))
        if epoch in settings["epochs"]:
            own = norms[since:]
            changes = [abs(after - before) for before, after in pairwise(own)]
            yield Record(
                {"epoch": epoch},
                {
                    "loss": fmean(losses),
                    "gradient_norm": norms[-1],
                    "gradient_change": fmean(changes) if changes else None,
                },
            )
            since = epoch - 1
