"""SMART: a temperature that depends on the margin ("Sample Margin-Aware Recalibration of Temperature")."""

from typing import Self

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, check_count, same_kind, to_tensor
from calibrant.posthoc.calibrator import check_fitting_set
from calibrant.posthoc.fitting.indicators import Indicator, check_indicator, indicator_values
from calibrant.posthoc.fitting.sample_temperature import Layers, SampleTemperature, network_temperature
from calibrant.posthoc.fitting.temperature_training import (
    Plan,
    check_settled,
    natural_unit,
    train_temperatures,
)
from calibrant.surrogates.objectives import Objective, check_objective

HIDDEN_UNITS = 16


class SMART(SampleTemperature):
    r"""Divide logits by a temperature read off the margin between the two largest; predictions never change.

    .. math:: T(m) = \mathrm{softplus}(W_2\,\mathrm{relu}(W_1 m + b_1) + b_2) + 0.1, \quad
        m = z_{(1)} - z_{(2)}

    A network of 16 hidden units, 49 numbers for any number of classes, is trained to close the gap between
    confidence and accuracy. A small margin marks a hard sample, a large one an easy sample, and the two are
    wrong about themselves by different amounts: one temperature for both cannot repair that.
    """

    options = ("indicator", "objective", "unit")
    n_layers = 2

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
        features: ArrayLike | None = None,
        seed: int = 0,
        objective: Objective = "charbonnier",
        indicator: Indicator = "margin",
        epochs: int = 200,
        batch_size: int = 1 << 17,
        settled: float = 1.0,
    ) -> Self:
        """Train the network on the calibration error of the fitting set, no further than chance allows.

        What a perfectly calibrated model would show by chance is known, and learning more than that would
        spoil new data. So a model that is calibrated is left as it is; otherwise the best single
        temperature is found, and only if the error is still evident the network is trained from there with
        Adam, until the error is no larger than by chance. The result is never worse than doing nothing on
        the fitting set by the objective; if it is by the likelihood, beyond chance, nothing is done.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            features: Not used.
            seed: For the first weights of the network.
            objective: What to minimise, one of the names of :func:`~calibrant.surrogates.objective_value`.
            indicator: What the network looks at, one of the names of
                :func:`~calibrant.posthoc.fitting.indicators.indicator_values`.
            epochs: Most passes over the fitting set; 0 leaves the model as it is.
            batch_size: Most samples per step. The error of a small batch is mostly noise, which pulls
                confidences to 0 and 1, so almost any set is better taken as a whole.
            settled: Stop training at this many times the error expected by chance. With 0, and for
                objectives other than ``charbonnier`` and ``soft_ece``, all epochs are trained.
        """
        z, y = check_fitting_set(logits, labels)
        plan = Plan(
            objective=check_objective(objective),
            epochs=check_count(epochs, "epochs", at_least=0),
            batch_size=check_count(batch_size, "batch_size"),
            seed=seed,
            settled=check_settled(settled),
        )
        check_indicator(indicator)
        unit = natural_unit(z, y, plan)
        z = z / unit
        layers = train_temperatures(indicator_values(indicator, z), z, y, hidden=(HIDDEN_UNITS,), plan=plan)
        return cls(layers, indicator=indicator, objective=objective, unit=unit, n_classes=z.shape[1])

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
