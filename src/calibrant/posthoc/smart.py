"""SMART: a temperature that depends on the margin ("Sample Margin-Aware Recalibration of Temperature").

Also the other inputs that its network can read (Table 4 of the paper), and the temperatures that the margin
alone allows (appendix A.1).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, Self, TypeAlias, Unpack

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, check_choice, check_count, same_kind, to_tensor
from calibrant.outcomes import margin
from calibrant.posthoc.fitting.affine import check_strength
from calibrant.posthoc.fitting.masked import FAR, lowest_for_masked
from calibrant.posthoc.fitting.sample_temperature import Layers, SampleTemperature, network_temperature
from calibrant.posthoc.fitting.stored import declare, layers_of
from calibrant.posthoc.fitting.temperature_curve import fit_curve
from calibrant.posthoc.fitting.temperature_training import (
    MOST_SAMPLES,
    Optimizer,
    Plan,
    all_steps,
    for_raw_inputs,
    linear_layers,
    natural_unit,
    standardised,
    steps_per_pass,
)
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads
from calibrant.surrogates import DELTA, N_BINS, SIGMA, Objective, SoftBinning

Indicator: TypeAlias = Literal["margin", "entropy", "confidence", "logits", "max_logit", "max_minus_mean"]

HIDDEN_UNITS = 16

# Samples per step, as printed.
PAPER_BATCH = 1024


class SMART(SampleTemperature):
    r"""Divide logits by a temperature that depends on their margin; the predicted class never changes.

    .. math:: T(m) = \mathrm{softplus}(W_2\,\mathrm{relu}(W_1 m + b_1) + b_2) + 0.1, \quad
        m = z_{(1)} - z_{(2)}

    A network of a few hidden units (19 parameters for any number of classes) is fitted to close the gap
    between confidence and accuracy. A small margin marks a hard sample, a large one an easy sample. Their
    confidences are off by different amounts, which one temperature for both cannot repair.
    """

    options = ("indicator", "objective", "unit")
    masks = True
    n_layers = 2
    stored = declare(**layers_of(n_layers))

    indicator: Indicator
    objective: Objective

    def __init__(
        self,
        layers: Layers,
        *,
        indicator: Indicator = "margin",
        objective: Objective = "charbonnier",
        unit: float = 1.0,
        n_classes: int | None = None,
    ) -> None:
        super().__init__(layers, unit=unit, n_classes=n_classes)
        self.indicator = indicator
        self.objective = objective

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        objective: Objective = "charbonnier",
        indicator: Indicator = "margin",
        strength: float | None = None,
        epochs: int = 200,
        settled: float = 1.0,
        **rows: Unpack[Rows],
    ) -> Self:
        """Find how the temperature should depend on the margin, no further than chance allows.

        The network is a curve through six points, fitted in two steps. The first finds the likeliest curve;
        the price of bending it is chosen by cross-validation, and one temperature for all samples is one of
        the candidates. The second step bends it to close the gaps between confidence and accuracy, and goes
        back as far as chance explains them. It minimises squared gaps in units of their noise (the statistic
        of Hosmer and Lemeshow over the soft bins) and a little of the log-loss: from few samples that is less
        noisy than the mean absolute gap of ``charbonnier`` and ``soft_ece``, which ``settled=0`` minimises.
        If the result is less likely than the uncalibrated model, beyond chance, the first step is kept, or
        else the model stays unchanged. :class:`SMARTPaper` trains as the paper does.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            objective: What to minimise, one of the names of :func:`~calibrant.surrogates.objective_value`.
            indicator: What the temperature depends on: a name of :func:`indicator_values` that stands for one
                number per sample.
            strength: The price of bending the curve in the first step; infinity makes that one temperature.
                Chosen if not given.
            epochs: Most passes over the fitting set; 0 leaves the model unchanged.
            settled: Only what exceeds this many times what chance explains is followed. With 0, and for
                objectives other than ``charbonnier`` and ``soft_ece``, the objective itself is trained with
                Adam for all epochs.
        """
        data = cls.data(logits, labels, **rows)
        plan = Plan(objective, epochs, settled=settled)
        check_choice(indicator, "indicator", INDICATORS)
        if indicator == "logits":
            raise InputError(
                "indicator: expected a single number per sample for a curve, got 'logits'; use SMARTPaper"
            )
        unit = natural_unit(data, plan)
        scaled = data if unit == 1 else data.with_logits(data.logits / unit)
        some = scaled.thinned(MOST_SAMPLES)
        x = indicator_values(indicator, some.logits)[:, 0]
        curve, found = fit_curve(x, some, plan, check_strength(strength))
        fitted = cls(
            curve.layers(), indicator=indicator, objective=objective, unit=unit, n_classes=data.n_classes
        )
        fitted.for_folds = {"strength": found}
        return fitted

    @property
    def sizes(self) -> dict[str, int]:
        """The number of classes, and that of inputs of the network."""
        known = super().sizes
        return known | {"d": known.get("k", 0) if self.indicator == "logits" else 1}

    def inputs(self, logits: Tensor) -> Tensor:
        """Return the indicator of each sample."""
        return indicator_values(self.indicator, logits)

    @torch.no_grad()
    def temperature_curve(self, margins: ArrayLike) -> ArrayLike:
        """Return the temperature learned for each margin, in the caller's kind of array.

        Args:
            margins: Margins, or values of the scalar indicator that was chosen, of shape ``(m,)``.
        """
        if self.indicator == "logits":
            raise InputError("indicator: expected a single number per sample for a curve, got 'logits'")
        m = to_tensor(margins, "margins")
        if m.ndim != 1:
            raise InputError(f"margins: expected shape (m,), got shape {tuple(m.shape)}")
        layers = self.layers
        seen = m[:, None].to(layers[0][0])
        if self.indicator not in ("entropy", "confidence"):  # the others are differences of logits
            seen = seen / self.unit
        return same_kind(self.unit * network_temperature(seen, layers), like=margins)


class SMARTPaper(SMART):
    """SMART as its paper prints it (section 3.5, Algorithm 1); the predicted class never changes.

    Nothing stops the training or takes it back, so it can end less likely than the uncalibrated model.
    """

    @classmethod
    @sparing_threads
    def fit(  # type: ignore[override]  # its own options
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        objective: Objective = "charbonnier",
        indicator: Indicator = "margin",
        epochs: int = 200,
        batch_size: int = PAPER_BATCH,
        learning_rate: float = 0.005,
        optimizer: Optimizer = "adam",
        hidden: int = HIDDEN_UNITS,
        n_bins: int = N_BINS,
        sigma: float = SIGMA,
        delta: float = DELTA,
        **rows: Unpack[Rows],
    ) -> Self:
        """Train on standardised margins from random first weights, on mini-batches, for all epochs.

        The defaults are the paper's. It leaves open: the first weights (here those of ``torch.nn.Linear``),
        the number of epochs (200; its figure 2 shows 80), and whether the loss is Eq. (6) for each sample, as
        printed (``objective="charbonnier_pointwise"``, which fails), or the soft-binned error that its text
        describes (the default objective). Section 3.5 trains with Adam; Algorithm 1 steps down the gradient
        of the sum over all samples: ``optimizer="sgd"`` and a ``batch_size`` of their number.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            objective: What to minimise, one of the names of :func:`~calibrant.surrogates.objective_value`.
            indicator: What the network reads, one of the names of :func:`indicator_values`.
            epochs: Passes over the fitting set; 0 leaves the first weights.
            batch_size: Most samples per step.
            learning_rate: Learning rate of the optimizer.
            optimizer: ``"adam"``, or ``"sgd"`` for plain steps along the gradient of the sum over a batch.
            hidden: Hidden units.
            n_bins: Soft bins of the objective.
            sigma: Standard deviation of the kernel of the bins (lambda is 200 for 0.05).
            delta: Rounding of the absolute value.
        """
        data = cls.data(logits, labels, **rows)
        binning = SoftBinning(n_bins, sigma, delta)
        plan = Plan(
            objective,
            epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            binning=binning,
            optimizer=optimizer,
        )
        check_choice(indicator, "indicator", INDICATORS)
        inputs = indicator_values(indicator, data.logits).double()
        x, mean, deviation = standardised(inputs, data.weights)
        start = linear_layers((x.shape[1], check_count(hidden, "hidden"), 1), seed=data.seed, like=x)
        n_steps = epochs * steps_per_pass(len(x), batch_size)
        layers = all_steps(x, data, start, plan, n_steps=n_steps)
        layers = for_raw_inputs(layers, mean, deviation)
        return cls(layers, indicator=indicator, objective=objective, n_classes=data.n_classes)


def indicator_values(name: Indicator, logits: Tensor) -> Tensor:
    """Return the named indicator of each sample, shape ``(n, 1)``, or ``(n, k)`` for all logits.

    ================== =========================================================
    ``margin``         largest minus second largest logit
    ``entropy``        entropy of the model's distribution
    ``confidence``     largest probability
    ``logits``         all logits
    ``max_logit``      largest logit
    ``max_minus_mean`` largest minus mean logit
    ================== =========================================================

    A masked class counts as the least likely one that exists for ``logits``, and does not count for the mean.
    """
    return INDICATORS[name](logits)


def _entropy(logits: Tensor) -> Tensor:
    log_probs = torch.log_softmax(logits, dim=1).clamp(min=-FAR)
    return -(log_probs.exp() * log_probs).sum(dim=1, keepdim=True)


def _mean(logits: Tensor) -> Tensor:
    exists = logits > -torch.inf
    return logits.masked_fill(~exists, 0.0).sum(dim=1, keepdim=True) / exists.sum(dim=1, keepdim=True)


INDICATORS: Mapping[Indicator, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        # Of a single class that is not masked the margin would be infinite.
        "margin": lambda z: margin(z).clamp(max=FAR)[:, None],
        "entropy": _entropy,
        "confidence": lambda z: torch.softmax(z, dim=1).amax(dim=1, keepdim=True),
        "logits": lowest_for_masked,
        "max_logit": lambda z: z.amax(dim=1, keepdim=True),
        "max_minus_mean": lambda z: z.amax(dim=1, keepdim=True) - _mean(z),
    }
)


@dataclass(frozen=True, eq=False)
class TemperatureInterval:
    """The lowest and highest possible temperature of each sample, in the caller's kind of array."""

    lowest: ArrayLike
    highest: ArrayLike


def feasible_temperatures(
    margins: ArrayLike, *, confidence: float, n_classes: int = 2
) -> TemperatureInterval:
    r"""Bound the temperature at which a sample has a given confidence, if only its margin is known.

    With :math:`S = 1/p - 1` the probabilities of the other classes sum to :math:`S` times that of the top
    class. Their logits all lie at least the margin :math:`m` below its logit, and one exactly there, so

    .. math:: \frac{m}{\log((k - 1) / S)} \le T \le \frac{m}{\log(1 / S)},

    where the upper bound exists for confidences above one half. With two classes both bounds are the same;
    with more the interval is proportional to the margin. The largest logit alone bounds nothing.

    Args:
        margins: Largest minus second largest logit of each sample, shape ``(n,)``.
        confidence: The probability of the predicted class, above ``1 / n_classes`` and below 1.
        n_classes: Number of classes.

    Example:
        >>> interval = feasible_temperatures([2.0, 4.0], confidence=0.8, n_classes=10)
        >>> [round(t, 3) for t in interval.lowest], [round(t, 3) for t in interval.highest]
        ([0.558, 1.116], [1.443, 2.885])
    """
    k = check_count(n_classes, "n_classes", at_least=2)
    if not 1 / k < confidence < 1:
        raise InputError(f"confidence: expected a number between 1/{k} and 1, got {confidence}")
    m = to_tensor(margins, "margins")
    if m.ndim != 1 or not bool(((m >= 0) & (m < math.inf)).all()):
        raise InputError("margins: expected finite numbers of at least 0 in shape (n,), got others")
    m = m.double()
    rest = 1 / confidence - 1
    lowest = m / math.log((k - 1) / rest)
    highest = m / -math.log(rest) if rest < 1 else torch.full_like(m, math.inf)
    return TemperatureInterval(same_kind(lowest, like=margins), same_kind(highest, like=margins))
