"""SMART: a temperature that depends on the margin ("Sample Margin-Aware Recalibration of Temperature").

Also the other inputs that its network can read (Table 4 of the paper), and the temperatures that the margin
alone allows (appendix A.1).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, Self, TypeAlias, Unpack, get_args

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, check_choice, check_count, same_kind, to_tensor
from calibrant.outcomes import margin
from calibrant.posthoc.calibrator import UnusedFeatures, check_weighted_set
from calibrant.posthoc.fitting.affine import check_strength
from calibrant.posthoc.fitting.fitting_set import fitting_set
from calibrant.posthoc.fitting.masked import FAR, lowest_for_masked
from calibrant.posthoc.fitting.sample_temperature import Layers, SampleTemperature, network_temperature
from calibrant.posthoc.fitting.stored import declare, layers_of
from calibrant.posthoc.fitting.temperature_curve import fit_curve
from calibrant.posthoc.fitting.temperature_training import (
    Plan,
    all_steps,
    for_raw_inputs,
    given,
    height_of,
    linear_layers,
    n_batches,
    natural_unit,
    refuse_unused,
    standardised,
    train_temperatures,
)
from calibrant.surrogates import DELTA, N_BINS, SIGMA, Objective, SoftBinning

Indicator: TypeAlias = Literal["margin", "entropy", "confidence", "logits", "max_logit", "max_minus_mean"]

Recipe: TypeAlias = Literal["curve", "network", "paper"]

HIDDEN_UNITS = 16

# Samples per step of the paper's recipe.
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

    _searched: Mapping[str, float] = MappingProxyType({})

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
    def fit(
        cls,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        objective: Objective = "charbonnier",
        indicator: Indicator = "margin",
        recipe: Recipe = "curve",
        strength: float | None = None,
        epochs: int = 200,
        batch_size: int | None = None,
        settled: float = 1.0,
        learning_rate: float | None = None,
        hidden: int | None = None,
        n_bins: int | None = None,
        sigma: float | None = None,
        delta: float | None = None,
        weights: ArrayLike | None = None,
        seed: int = 0,
        **unused: Unpack[UnusedFeatures],
    ) -> Self:
        """Find how the temperature should depend on the margin, no further than chance allows.

        By default (``recipe="curve"``) the network is a curve through six points, fitted in two steps. The
        first finds the likeliest curve; the price of bending it is chosen by cross-validation, and one
        temperature for all samples is one of the candidates. The second step bends it to close the gaps
        between confidence and accuracy, and goes back as far as chance explains them. It minimises squared
        gaps in units of their noise (the statistic of Hosmer and Lemeshow over the soft bins) and a little of
        the log-loss: from few samples that is less noisy than the mean absolute gap of ``charbonnier`` and
        ``soft_ece``, which ``settled=0`` minimises. If the result is less likely than the uncalibrated model,
        beyond chance, the first step is kept, or else the model stays unchanged.

        ``recipe="network"`` trains all weights with Adam from one temperature, and only if the calibration
        error is still evident there.

        ``recipe="paper"`` is the paper's procedure to the letter (section 3.5, Algorithm 1): standardised
        margins, random first weights, Adam on mini-batches for all epochs, last weights. Nothing stops it or
        takes it back, so it can end less likely than the uncalibrated model. From the paper: 16 hidden units,
        learning rate 0.005, batches of 1,024, 15 bins, sigma 0.05 (lambda 200), delta 0.001. The paper leaves
        open: the first weights (here those of ``torch.nn.Linear``), the number of epochs (200; its figure 2
        shows 80), and whether the loss is Eq. (6) for each sample, as printed
        (``objective="charbonnier_pointwise"``, which fails), or the soft-binned error that its text
        describes (the default objective). Algorithm 1 has a plain gradient step where section 3.5 has Adam.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            weights: How much each sample counts, shape ``(n,)``; only their ratios matter.
            seed: Seed of the folds, or of the first weights of the network.
            objective: What to minimise, one of the names of :func:`~calibrant.surrogates.objective_value`.
            indicator: What the network reads, one of the names of
                :func:`indicator_values`; ``"logits"`` needs ``recipe="network"``.
            recipe: How it is fitted.
            strength: The price of bending the curve in the first step; infinity makes that one temperature.
                Chosen if not given.
            epochs: Most passes over the fitting set; 0 leaves the model unchanged. With ``"paper"`` all of
                them are made, and 0 leaves the first weights.
            batch_size: Most samples per step of the recipe ``"network"``; all of them if None, at most
                65,536. The error of a small batch is mostly noise, which pulls confidences to 0 and 1. With
                ``"paper"`` 1,024 unless given.
            settled: Only what exceeds this many times what chance explains is followed; the recipe
                ``"network"`` stops training there. With 0, and for objectives other than ``charbonnier`` and
                ``soft_ece``, the objective itself is trained with Adam for all epochs. Not with ``"paper"``.
            learning_rate: For ``"paper"``: learning rate of Adam; 0.005 unless given.
            hidden: For ``"paper"``: hidden units; 16 unless given.
            n_bins: For ``"paper"``: soft bins of the objective; 15 unless given.
            sigma: For ``"paper"``: standard deviation of the kernel of the bins; 0.05 unless given.
            delta: For ``"paper"``: rounding of the absolute value; 0.001 unless given.
        """
        z, y, w = check_weighted_set(logits, labels, weights, **unused)
        plan = Plan(objective, epochs, batch_size, seed, settled)
        check_choice(indicator, "indicator", INDICATORS)
        check_choice(recipe, "recipe", get_args(Recipe))
        if recipe == "paper":
            refuse_unused(recipe, strength=(strength, None), settled=(settled, 1.0))
            plan = replace(
                plan,
                batch_size=given(batch_size, PAPER_BATCH),
                learning_rate=given(learning_rate, plan.learning_rate),
                binning=SoftBinning(given(n_bins, N_BINS), given(sigma, SIGMA), given(delta, DELTA)),
            )
            units = check_count(given(hidden, HIDDEN_UNITS), "hidden")
            layers = _fit_as_printed(indicator_values(indicator, z), z, y, w, plan, units)
            return cls(layers, indicator=indicator, objective=objective, n_classes=z.shape[1])
        refuse_unused(recipe, learning_rate=(learning_rate, None), hidden=(hidden, None))
        refuse_unused(recipe, n_bins=(n_bins, None), sigma=(sigma, None), delta=(delta, None))
        unit = natural_unit(z, y, plan, w)
        z = z if unit == 1 else z / unit
        x = indicator_values(indicator, z)
        if recipe == "network":
            layers = train_temperatures(x, z, y, hidden=(HIDDEN_UNITS,), plan=plan, weights=w)
            return cls(layers, indicator=indicator, objective=objective, unit=unit, n_classes=z.shape[1])
        _refuse_for_curve(indicator, batch_size)
        curve, found = fit_curve(x[:, 0], z, y, plan, check_strength(strength), w)
        fitted = cls(
            curve.layers(), indicator=indicator, objective=objective, unit=unit, n_classes=z.shape[1]
        )
        fitted._searched = {"strength": found}
        return fitted

    @property
    def searched(self) -> Mapping[str, float]:
        """The price of bending the curve. A file does not keep it."""
        return self._searched

    @property
    def sizes(self) -> dict[str, int]:
        """The number of classes, and that of inputs of the network."""
        known = super().sizes
        return known | {"d": known.get("k", 0) if self.indicator == "logits" else 1}

    def inputs(self, logits: Tensor) -> Tensor:
        """Return the indicator of each sample."""
        return indicator_values(self.indicator, logits)

    def drawn_back(self, share: float) -> "SMART":
        """Return a curve on the way from no change (share 0) to this one (share 1)."""
        *hidden, (weight, bias) = self.layers
        one = height_of(1 / self.unit)
        return SMART(
            [*hidden, (share * weight, one + share * (bias - one))],
            indicator=self.indicator,
            objective=self.objective,
            unit=self.unit,
            n_classes=self.n_classes,
        )

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


def _fit_as_printed(
    inputs: Tensor, logits: Tensor, labels: Tensor, weights: Tensor | None, plan: Plan, hidden: int
) -> Layers:
    """Train the network as the paper does."""
    x, mean, deviation = standardised(inputs.double(), weights)
    start = linear_layers((x.shape[1], hidden, 1), seed=plan.seed, like=x)
    n_steps = plan.epochs * n_batches(len(x), plan.batch_size)
    samples = fitting_set(logits, labels, weights=weights)
    layers = all_steps(x, samples, start, plan, n_steps=n_steps)
    return for_raw_inputs(layers, mean, deviation)


def _refuse_for_curve(indicator: Indicator, batch_size: int | None) -> None:
    if indicator == "logits":
        raise InputError(
            "indicator: expected a single number per sample for a curve, got 'logits'; choose "
            "recipe='network'"
        )
    if batch_size is not None:
        raise InputError(
            f"batch_size: expected None for a curve, which is fitted to all samples, got {batch_size}; "
            "choose recipe='network'"
        )


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
