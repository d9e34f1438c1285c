"""How a network that gives each sample a temperature is trained: one loop for SMART and PTS.

It goes from the simple to the flexible and no further than the data ask for: the model as it is, one
temperature for all samples, then a temperature for each, drawn back towards the one in proportion to what
chance alone would show. How the thresholds were chosen is written down in ``docs/results/smart_stopping.md``.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from calibrant.errors import FitError, InputError
from calibrant.posthoc.fitting.adam import Adam
from calibrant.posthoc.fitting.fitting_set import FittingSet
from calibrant.posthoc.fitting.sample_temperature import LOWEST_TEMPERATURE, Layers, network_temperature
from calibrant.posthoc.temperature import TemperatureScaling
from calibrant.surrogates.objectives import Forecasts, Objective, objective_value

# Objectives that compare confidence with accuracy, which chance alone keeps from being zero.
_GAPS: tuple[Objective, ...] = ("charbonnier", "soft_ece")

# One in a hundred perfectly calibrated models shows more than this many times the error expected by chance,
# whatever the number of samples and the shape of their confidences.
_EVIDENT = 1.9

# A temperature below this is near the lowest that a network can give, which leaves it no room.
_SMALL = 0.3

# softplus of this, plus 0.1, is 1 to the last digit.
_BIAS_OF_ONE = 0.37816455709127766


def check_settled(settled: float) -> float:
    """Check a multiple of the error expected by chance."""
    if not 0 <= settled < math.inf:
        raise InputError(f"settled: expected a number of at least 0, got {settled}")
    return float(settled)


@dataclass(frozen=True)
class Plan:
    """How to train.

    Attributes:
        objective: What to minimise.
        epochs: Most passes over the fitting set.
        batch_size: Most samples per step.
        seed: For the first weights and the order of batches.
        settled: A calibration objective counts as reached at this many times what a perfectly calibrated
            model would show by chance.
        learning_rate: Of Adam.
    """

    objective: Objective
    epochs: int
    batch_size: int
    seed: int
    settled: float
    learning_rate: float = 5e-3


def train_temperatures(
    inputs: Tensor, logits: Tensor, labels: Tensor, *, hidden: tuple[int, ...], plan: Plan
) -> Layers:
    """Train a network from inputs to temperatures and return its layers, which take the inputs as they are.

    If the fitting set became less likely than at a temperature of 1, beyond what chance explains, the network
    returned gives 1 for every sample.
    """
    samples = FittingSet(logits, labels)
    x, mean, deviation = _standardised(inputs.double())
    temperature, settled = (1.0, True) if plan.epochs == 0 else simplest_temperature(samples, plan)
    layers = first_layers((x.shape[1], *hidden), temperature=temperature, seed=plan.seed, like=x)
    if not settled:
        with torch.enable_grad():
            trained = descend(x, samples, layers, plan)
        layers = drawn_back(trained, layers, x, samples, plan)
    if _likelihood_suffers(samples, network_temperature(x, layers)):
        layers = first_layers((x.shape[1], *hidden), temperature=1.0, seed=plan.seed, like=x)
    weight, bias = layers[0]
    weight = weight / deviation
    return [(weight, bias - weight @ mean), *layers[1:]]


@torch.no_grad()
def natural_unit(logits: Tensor, labels: Tensor, plan: Plan) -> float:
    """Return what to measure logits in: 1, or the likeliest temperature where it is very small.

    Logits that were trained to stay small, as by LogitNorm, may need a temperature below the lowest that a
    network can give.
    """
    if plan.epochs == 0:
        return 1.0
    try:
        likeliest = float(TemperatureScaling.fit(logits, labels).temperature)
    except FitError:
        return 1.0
    return likeliest if likeliest < _SMALL else 1.0


@torch.no_grad()
def simplest_temperature(samples: FittingSet, plan: Plan) -> tuple[float, bool]:
    """Return one temperature for all samples, and whether it is enough.

    It is 1 if neither the likelihood asks for another one, by Akaike's criterion, nor the calibration error
    is evident. Else it lies half-way, in proportion, between the likeliest temperature and the best one by
    the objective: they err differently, so their mean errs less than either. It is enough for a
    calibration objective if the error it leaves is no larger than by chance.
    """
    best = best_single_temperature(samples, plan.objective)
    if plan.settled == 0:
        return best, False
    if samples.correct.min() == samples.correct.max():
        return 1.0, True  # all right or all wrong: nothing says which confidence is too much
    likeliest = best_single_temperature(samples, "nll")
    now, then = samples.at_one(1.0), samples.at_one(likeliest)
    if float((then.true_log_prob - now.true_log_prob).sum()) <= 1 and times_chance(now) <= _EVIDENT:
        temperature = 1.0
    else:
        temperature = math.sqrt(likeliest * best)
    return temperature, plan.objective in _GAPS and times_chance(samples.at_one(temperature)) <= 1


def times_chance(forecasts: Forecasts) -> float:
    """Return the soft calibration error as a multiple of what a perfectly calibrated model would show."""
    return float(forecasts.bins.expected_gap()) / max(float(forecasts.bins.expected_by_chance()), 1e-300)


def first_layers(widths: tuple[int, ...], *, temperature: float, seed: int, like: Tensor) -> Layers:
    """Return layers that give every sample the same temperature and are ready to learn from all inputs.

    Hidden units are switched on for typical inputs, so that the first steps move all temperatures together
    and later ones bend the curve; they are as large as the temperature, so that steps are in proportion.
    """
    generator = torch.Generator().manual_seed(seed)
    layers: list[tuple[Tensor, Tensor]] = []
    for into, out in pairwise(widths):
        weight = (2 * torch.rand(out, into, generator=generator, dtype=torch.float64) - 1) / math.sqrt(into)
        layers.append((weight, torch.ones(out, dtype=torch.float64)))
    layers[-1] = (temperature * layers[-1][0], temperature * layers[-1][1])
    above = temperature - LOWEST_TEMPERATURE
    bias = _BIAS_OF_ONE if temperature == 1 else above + math.log(-math.expm1(-above))
    last = torch.zeros(1, widths[-1], dtype=torch.float64), torch.full((1,), bias, dtype=torch.float64)
    return [(weight.to(like.device), bias.to(like.device)) for weight, bias in (*layers, last)]


@torch.no_grad()
def best_single_temperature(samples: FittingSet, objective: Objective) -> float:
    """Find the temperature for all samples with the smallest objective, walking downhill from 1."""
    from scipy.optimize import minimize_scalar

    lowest, highest = math.log(1.01 * LOWEST_TEMPERATURE), math.log(1e6)

    def loss(log_temperature: float) -> float:
        return float(objective_value(objective, samples.at_one(math.exp(log_temperature))))

    here, value, step = 0.0, loss(0.0), 0.1
    direction = 1 if loss(0.01) < value else -1
    while lowest < here + direction * step < highest:
        following = loss(here + direction * step)
        if following >= value:
            break
        here, value, step = here + direction * step, following, 1.3 * step
    bounds = max(here - step, lowest), min(here + step, highest)
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-3})
    return math.exp(float(found.x) if float(found.fun) < value else here)


def descend(x: Tensor, samples: FittingSet, start: Layers, plan: Plan) -> Layers:
    """Walk down the objective and return the lowest point seen."""
    layers = [(weight.clone().requires_grad_(), bias.clone().requires_grad_()) for weight, bias in start]
    adam = Adam([part for layer in layers for part in layer], learning_rate=plan.learning_rate)
    generator = torch.Generator().manual_seed(plan.seed)
    best, lowest = start, math.inf
    for epoch in range(plan.epochs + 1):
        forecasts = samples.at(network_temperature(x, layers))
        loss = objective_value(plan.objective, forecasts)
        value = float(loss.detach())
        if value < lowest:
            best = [(weight.detach().clone(), bias.detach().clone()) for weight, bias in layers]
            lowest = value
        if epoch == plan.epochs or _is_settled(value, forecasts, plan):
            break
        if len(samples) <= plan.batch_size:
            adam.step(loss)
            continue
        for rows in torch.randperm(len(samples), generator=generator).to(x.device).split(plan.batch_size):
            some = samples.at(network_temperature(x[rows], layers), rows)
            adam.step(objective_value(plan.objective, some))
    return best


@torch.no_grad()
def drawn_back(trained: Layers, start: Layers, x: Tensor, samples: FittingSet, plan: Plan) -> Layers:
    r"""Return layers part of the way from one temperature to the trained ones, as far as there is evidence.

    If the one temperature leaves :math:`e` times the error expected by chance, the way is
    :math:`1 - 1/e^2`, as James and Stein shrink a mean: most of the error's square is then signal or noise
    in that proportion. Only the output layer changes, because it is linear.
    """
    if plan.objective not in _GAPS or plan.settled == 0:
        return trained
    excess = times_chance(samples.at(network_temperature(x, start)))
    way = max(0.0, 1 - 1 / excess**2)
    (weight, bias), (_, first) = trained[-1], start[-1]
    return [*trained[:-1], (way * weight, way * bias + (1 - way) * first)]


def _is_settled(value: float, forecasts: Forecasts, plan: Plan) -> bool:
    """Whether an objective of gaps is down to what chance would make it."""
    return plan.objective in _GAPS and value <= plan.settled * float(forecasts.bins.expected_by_chance())


@torch.no_grad()
def _likelihood_suffers(samples: FittingSet, temperature: Tensor) -> bool:
    """Whether the samples are less likely than at temperature 1 by more than two standard errors."""
    change = samples.at(temperature).true_log_prob - samples.at_one(1.0).true_log_prob
    error = float(change.std(correction=0)) / math.sqrt(len(samples))
    return float(change.mean()) < -2 * error


def _standardised(inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs of mean 0 and deviation 1, the means, and the deviations: 1 where there is none."""
    mean, deviation = inputs.mean(dim=0), inputs.std(dim=0, correction=0)
    # Rounding may leave an input that is the same everywhere a trace of a deviation.
    deviation = torch.where(deviation <= 1e-9 * mean.abs(), torch.ones_like(deviation), deviation)
    return (inputs - mean) / deviation, mean, deviation
