"""Training of a network that gives each sample a temperature: one loop for SMART and PTS.

It goes from the simple to the flexible, and only as far as the data require: the uncalibrated model, then one
temperature for all samples, then one for each sample, shrunk towards the common one in proportion to what
chance alone would show. ``docs/results/smart_stopping.md`` tells how the thresholds were chosen.

:func:`all_steps` trains as the papers do instead: mini-batches, every step, last weights.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from calibrant.inputs import check_choice, check_count, check_number, check_seed
from calibrant.outcomes import mean_of
from calibrant.posthoc.fitting.sample_temperature import (
    LOWEST_TEMPERATURE,
    Layers,
    Link,
    network_temperature,
)
from calibrant.posthoc.fitting.temperature_search import likeliest_temperature, walk_over_temperature
from calibrant.posthoc.fitting.tempered import TemperedSamples, tempered
from calibrant.posthoc.fitting.weighing import design_effect, error_of_mean, moments, sum_of
from calibrant.posthoc.fitting_set import FittingSet
from calibrant.surrogates import Forecasts, Objective, SoftBinning, check_objective, objective_value

# Objectives that compare confidence with accuracy; by chance they are above zero for any model.
GAPS: tuple[Objective, ...] = ("charbonnier", "soft_ece")

# How :func:`all_steps` moves: by Adam, or by plain steps along the gradient of the sum over a batch.
Optimizer: TypeAlias = Literal["adam", "sgd"]
_OPTIMIZERS: tuple[Optimizer, ...] = ("adam", "sgd")

# One in a hundred perfectly calibrated models shows more than this many times the error expected by chance,
# whatever the number of samples and the shape of their confidences.
_EVIDENT = 1.9

# A temperature below this is too near the lowest that a network can give.
_SMALL = 0.3

# A network is trained on at most this many samples.
MOST_SAMPLES = 1 << 16

# The hidden units of this many rows are held at a time.
_BLOCK_ROWS = 1 << 14

# softplus of this, plus 0.1, is 1 to the last digit.
_HEIGHT_OF_ONE = 0.37816455709127766


@dataclass(frozen=True)
class Plan:
    """Options of the training.

    Attributes:
        objective: What to minimise.
        epochs: Most passes over the fitting set.
        batch_size: Most samples per step; all of them if None.
        settled: Training on a calibration objective stops at this many times the value that a perfectly
            calibrated model would show by chance.
        learning_rate: Learning rate of the optimizer.
        binning: Bins, bandwidth and rounding of the objective.
        optimizer: What :func:`all_steps` steps with.
    """

    objective: Objective
    epochs: int
    batch_size: int | None = None
    settled: float = 1.0
    learning_rate: float = 5e-3
    binning: SoftBinning = field(default_factory=SoftBinning)
    optimizer: Optimizer = "adam"

    def __post_init__(self) -> None:
        check_objective(self.objective)
        check_choice(self.optimizer, "optimizer", _OPTIMIZERS)
        check_count(self.epochs, "epochs", at_least=0)
        if self.batch_size is not None:
            check_count(self.batch_size, "batch_size")
        check_number(self.settled, "settled", at_least=0)
        check_number(self.learning_rate, "learning_rate")

    def for_units(self, samples: TemperedSamples, units: Tensor | None) -> "Plan":
        """Return the plan for samples that depend on each other: chance alone shows larger errors there."""
        if units is None:
            return self
        now = samples.at_one(1.0)
        effect = design_effect(now.correct - now.confidence, samples.weights, units)
        return replace(self, settled=self.settled * math.sqrt(effect))


def train_temperatures(inputs: Tensor, data: FittingSet, *, hidden: tuple[int, ...], plan: Plan) -> Layers:
    """Train a network from inputs to temperatures and return its layers, for inputs of any scale.

    If the fitting set is less likely than at a temperature of 1, by more than chance explains, the network
    that is returned gives 1 for every sample.
    """
    samples = tempered(data)
    plan = plan.for_units(samples, data.units)
    x, mean, deviation = standardised(inputs.double(), data.weights)
    temperature, settled = (1.0, True) if plan.epochs == 0 else simplest_temperature(samples, plan)
    layers = first_layers((x.shape[1], *hidden), temperature=temperature, seed=data.seed, like=x)
    if not settled:
        with torch.enable_grad():
            trained = descend(x, samples, layers, plan, seed=data.seed)
        layers = drawn_back(trained, layers, x, samples, plan)
    if likelihood_suffers(samples, network_temperature(x, layers), data.units):
        layers = first_layers((x.shape[1], *hidden), temperature=1.0, seed=data.seed, like=x)
    return for_raw_inputs(layers, mean, deviation)


def for_raw_inputs(layers: Layers, mean: Tensor, deviation: Tensor) -> Layers:
    """Return layers for inputs that are not standardised, from those for standardised ones."""
    weight, bias = layers[0]
    weight = weight / deviation
    return [(weight, bias - weight @ mean), *layers[1:]]


def all_steps(
    x: Tensor, data: FittingSet, start: Layers, plan: Plan, *, n_steps: int, link: Link = "softplus"
) -> Layers:
    """Take all steps of the optimizer on mini-batches and return the last layers, as papers train.

    Args:
        x: Inputs of the network, shape ``(n, d)``, in float64.
        data: The fitting set; its seed gives the order of samples.
        start: First layers.
        plan: The objective, the size of a batch, the optimizer and its learning rate.
        n_steps: Number of steps. Samples are shuffled anew for each pass over them; the last batch of a pass
            holds what is left.
        link: How the output becomes a temperature.
    """
    samples, layers = tempered(data), _trainable(start)
    parameters = [part for layer in layers for part in layer]
    optimizer = (Adam if plan.optimizer == "adam" else SGD)(parameters, learning_rate=plan.learning_rate)
    with torch.enable_grad():
        for rows in _batches(len(samples), plan.batch_size, n_steps, seed=data.seed):
            rows = rows.to(x.device)
            temperature = network_temperature(x[rows], layers, link)
            loss = objective_value(plan.objective, samples.at(temperature, rows), plan.binning)
            if plan.optimizer == "sgd":
                loss = loss * len(rows)  # Algorithm 1 of SMART follows the sum over samples, not their mean
            optimizer.step(torch.autograd.grad(loss, parameters))
    return _detached(layers)


def steps_per_pass(n: int, batch_size: int | None) -> int:
    """Return the number of steps of one pass over ``n`` samples."""
    return math.ceil(n / (batch_size or n))


def _batches(n: int, batch_size: int | None, n_steps: int, *, seed: int) -> Iterator[Tensor]:
    """Yield the rows of each batch."""
    generator = torch.Generator().manual_seed(check_seed(seed))
    batches: list[Tensor] = []
    for _ in range(n_steps):
        if not batches:
            batches = list(torch.randperm(n, generator=generator).split(batch_size or n))
        yield batches.pop(0)


def _trainable(layers: Layers) -> Layers:
    return [(weight.clone().requires_grad_(), bias.clone().requires_grad_()) for weight, bias in layers]


def _detached(layers: Layers) -> Layers:
    return [(weight.detach().clone(), bias.detach().clone()) for weight, bias in layers]


def linear_layers(widths: tuple[int, ...], *, seed: int, like: Tensor) -> Layers:
    r"""Return random layers as ``torch.nn.Linear`` has them by default.

    Weights and biases are uniform between :math:`-1/\sqrt{d}` and :math:`1/\sqrt{d}`, with :math:`d` inputs.
    """
    generator = torch.Generator().manual_seed(check_seed(seed))
    layers = []
    for into, out in pairwise(widths):
        bound = 1 / math.sqrt(into)
        weight = _uniform((out, into), bound, generator, like)
        layers.append((weight, _uniform((out,), bound, generator, like)))
    return layers


def glorot_layers(widths: tuple[int, ...], *, seed: int, like: Tensor) -> Layers:
    r"""Return random layers as ``Dense`` of Keras has them by default.

    Weights are uniform between :math:`\pm\sqrt{6 / (d + k)}`, with :math:`d` inputs and :math:`k` outputs;
    biases are 0.
    """
    generator = torch.Generator().manual_seed(check_seed(seed))
    return [
        (_uniform((out, into), math.sqrt(6 / (into + out)), generator, like), like.new_zeros(out))
        for into, out in pairwise(widths)
    ]


def _uniform(shape: tuple[int, ...], bound: float, generator: torch.Generator, like: Tensor) -> Tensor:
    return (bound * (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1)).to(like)


@torch.no_grad()
def natural_unit(data: FittingSet, plan: Plan) -> float:
    """Return the unit of the logits: 1, or the likeliest temperature where that is very small.

    Logits that were trained to stay small, as by LogitNorm, may need a temperature below the lowest that a
    network can give.
    """
    if plan.epochs == 0:
        return 1.0
    likeliest = likeliest_temperature(data)
    # If all labels have the largest logit, it is as small as the prior allows, and means nothing.
    any_wrong = bool((data.logits.argmax(dim=1) != data.labels).any())
    return likeliest if likeliest < _SMALL and any_wrong else 1.0


@torch.no_grad()
def simplest_temperature(samples: TemperedSamples, plan: Plan) -> tuple[float, bool]:
    """Return one temperature for all samples, and whether it is enough.

    It is 1 if another one is neither much likelier (by Akaike's criterion) nor called for by an evident
    calibration error. Otherwise it is the geometric mean of the likeliest temperature and the best one by the
    objective: their errors differ, so the mean has a smaller one than either. It is enough for a calibration
    objective if the remaining error is no larger than by chance.
    """
    best = best_single_temperature(samples, plan.objective)
    if plan.settled == 0:
        return best, False
    if samples.correct.min() == samples.correct.max():
        return 1.0, True  # all right or all wrong: the data do not show which confidence is too high
    likeliest = best_single_temperature(samples, "nll")
    now, then = samples.at_one(1.0), samples.at_one(likeliest)
    gain = sum_of(then.true_log_prob - now.true_log_prob, samples.weights)
    is_enough = float(gain) <= 1 and times_chance(now) <= _EVIDENT
    temperature = 1.0 if is_enough else math.sqrt(likeliest * best)
    return temperature, plan.objective in GAPS and times_chance(samples.at_one(temperature)) <= 1


def times_chance(forecasts: Forecasts) -> float:
    """Return the soft calibration error as a multiple of what a perfectly calibrated model would show."""
    return float(forecasts.bins.expected_gap()) / max(float(forecasts.bins.expected_by_chance()), 1e-300)


def first_layers(widths: tuple[int, ...], *, temperature: float, seed: int, like: Tensor) -> Layers:
    """Return layers that give every sample the same temperature and can learn from all inputs.

    Hidden units are active for typical inputs, so that the first steps move all temperatures together and
    later ones bend the curve; they scale with the temperature, so that steps do too.
    """
    generator = torch.Generator().manual_seed(check_seed(seed))
    layers: list[tuple[Tensor, Tensor]] = []
    for into, out in pairwise(widths):
        weight = (2 * torch.rand(out, into, generator=generator, dtype=torch.float64) - 1) / math.sqrt(into)
        layers.append((weight, torch.ones(out, dtype=torch.float64)))
    layers[-1] = (temperature * layers[-1][0], temperature * layers[-1][1])
    bias = height_of(temperature)
    last = torch.zeros(1, widths[-1], dtype=torch.float64), torch.full((1,), bias, dtype=torch.float64)
    return [(weight.to(like.device), bias.to(like.device)) for weight, bias in (*layers, last)]


def height_of(temperature: float) -> float:
    """Return the number whose softplus, plus 0.1, is the temperature."""
    above = temperature - LOWEST_TEMPERATURE
    return _HEIGHT_OF_ONE if temperature == 1 else above + math.log(-math.expm1(-above))


@torch.no_grad()
def best_single_temperature(samples: TemperedSamples, objective: Objective) -> float:
    """Return the temperature for all samples with the smallest objective, walking downhill from 1."""

    def loss(temperature: float) -> float:
        return float(objective_value(objective, samples.at_one(temperature)))

    return walk_over_temperature(loss, lowest=1.01 * LOWEST_TEMPERATURE)


class Adam:
    """Adam for a few small tensors (Kingma and Ba, ICLR 2015).

    The same steps as ``torch.optim.Adam``, up to rounding. That one imports torch's compiler when the first
    optimizer is made, which takes 2 to 5 seconds; a SMART fit takes a fraction of a second.
    """

    def __init__(self, parameters: Sequence[Tensor], *, learning_rate: float) -> None:
        self._parameters = parameters
        self._learning_rate = learning_rate
        self._means = [torch.zeros_like(part) for part in parameters]
        self._squares = [torch.zeros_like(part) for part in parameters]
        self._steps = 0

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Move every parameter down its gradient."""
        decay, square_decay = 0.9, 0.999
        self._steps += 1
        scale = self._learning_rate / (1 - decay**self._steps)
        square_scale = 1 - square_decay**self._steps
        with torch.no_grad():
            for part, gradient, mean, square in zip(
                self._parameters, gradients, self._means, self._squares, strict=True
            ):
                mean.lerp_(gradient, 1 - decay)
                square.lerp_(gradient.square(), 1 - square_decay)
                part.sub_(scale * mean / ((square / square_scale).sqrt() + 1e-8))


class SGD:
    """Plain steps down the gradient."""

    def __init__(self, parameters: Sequence[Tensor], *, learning_rate: float) -> None:
        self._parameters = parameters
        self._learning_rate = learning_rate

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Move every parameter down its gradient."""
        with torch.no_grad():
            for part, gradient in zip(self._parameters, gradients, strict=True):
                part.sub_(self._learning_rate * gradient)


def descend(x: Tensor, samples: TemperedSamples, start: Layers, plan: Plan, *, seed: int) -> Layers:
    """Minimise the objective by gradient descent and return the layers with the lowest value."""
    layers = _trainable(start)
    parameters = [part for layer in layers for part in layer]
    adam = Adam(parameters, learning_rate=plan.learning_rate)
    batch_size = plan.batch_size or len(samples)
    generator = torch.Generator().manual_seed(check_seed(seed))
    best, lowest = start, math.inf
    for epoch in range(plan.epochs + 1):
        temperature = _temperatures(x, layers)
        forecasts = samples.at(temperature)
        loss = objective_value(plan.objective, forecasts)
        value = float(loss.detach())
        if value < lowest:
            best = _detached(layers)
            lowest = value
        if epoch == plan.epochs or _is_settled(value, forecasts, plan):
            break
        if len(samples) <= batch_size:
            adam.step(_gradients(loss, temperature, x, layers))
            continue
        for rows in torch.randperm(len(samples), generator=generator).to(x.device).split(batch_size):
            temperature = _temperatures(x[rows], layers)
            loss = objective_value(plan.objective, samples.at(temperature, rows))
            adam.step(_gradients(loss, temperature, x[rows], layers))
    return best


def _temperatures(x: Tensor, layers: Layers) -> Tensor:
    """Return the temperatures of all rows; the hidden units of many rows are not stored."""
    if len(x) <= _BLOCK_ROWS:
        return network_temperature(x, layers)
    with torch.no_grad():
        blocks = [network_temperature(some, layers) for some in x.split(_BLOCK_ROWS)]
    return torch.cat(blocks).requires_grad_()


def _gradients(loss: Tensor, temperature: Tensor, x: Tensor, layers: Layers) -> list[Tensor]:
    """Return the gradient of the loss by each parameter of the layers.

    The hidden units of many rows are computed again, block by block, so that memory stays bounded.
    """
    parameters = [part for layer in layers for part in layer]
    if len(x) <= _BLOCK_ROWS:
        return list(torch.autograd.grad(loss, parameters))
    (slope,) = torch.autograd.grad(loss, temperature)
    sums = [torch.zeros_like(part) for part in parameters]
    for some, slopes in zip(x.split(_BLOCK_ROWS), slope.split(_BLOCK_ROWS), strict=True):
        parts = torch.autograd.grad(network_temperature(some, layers), parameters, slopes)
        sums = [total + part for total, part in zip(sums, parts, strict=True)]
    return sums


@torch.no_grad()
def drawn_back(trained: Layers, start: Layers, x: Tensor, samples: TemperedSamples, plan: Plan) -> Layers:
    r"""Return layers between the one temperature and the trained ones, as far as the evidence goes.

    If the one temperature leaves :math:`e` times the error expected by chance, the share of the way is
    :math:`1 - 1/e^2`, as James and Stein shrink a mean: that is the share of signal in the square of the
    error. Only the output layer changes, because it is linear.
    """
    if plan.objective not in GAPS or plan.settled == 0:
        return trained
    excess = times_chance(samples.at(network_temperature(x, start)))
    way = max(0.0, 1 - 1 / excess**2)
    (weight, bias), (_, first) = trained[-1], start[-1]
    return [*trained[:-1], (way * weight, way * bias + (1 - way) * first)]


def _is_settled(value: float, forecasts: Forecasts, plan: Plan) -> bool:
    """Whether a calibration objective has fallen to the value expected by chance."""
    return plan.objective in GAPS and value <= plan.settled * float(forecasts.bins.expected_by_chance())


@torch.no_grad()
def likelihood_suffers(samples: TemperedSamples, temperature: Tensor, units: Tensor | None) -> bool:
    """Whether the samples are less likely than at temperature 1 by more than two standard errors."""
    change = samples.at(temperature).true_log_prob - samples.at_one(1.0).true_log_prob
    error = float(error_of_mean(change, samples.weights, units))
    return float(mean_of(change, samples.weights)) < -2 * error


def standardised(inputs: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs of mean 0 and deviation 1, the means, and the deviations (1 for a constant input)."""
    mean, deviation = moments(inputs, weights)
    # Rounding may give a constant input a tiny deviation.
    deviation = torch.where(deviation <= 1e-9 * mean.abs(), torch.ones_like(deviation), deviation)
    return (inputs - mean) / deviation, mean, deviation
