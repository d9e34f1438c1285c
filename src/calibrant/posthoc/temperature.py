"""Temperature scaling (Guo et al., "On Calibration of Modern Neural Networks", ICML 2017)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, Self, TypeAlias, Unpack

import torch
from torch import Tensor

from calibrant.bins import Binning
from calibrant.inputs import ArrayLike, at_least_float32, check_count, check_number
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.fitting.masked import finite
from calibrant.posthoc.fitting.stored import POSITIVE, declare, one_number
from calibrant.posthoc.fitting.temperature_search import (
    PRIOR,
    best_calibrated_temperature,
    likeliest_temperature,
    minimise_over_temperature,
)
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads
from calibrant.surrogates import LogProbForecasts, Objective, check_objective, objective_value

TemperatureObjective: TypeAlias = Literal["ece", "ece_equal_mass"] | Objective

_BINNINGS: Mapping[str, Binning] = MappingProxyType({"ece": "width", "ece_equal_mass": "mass"})


class TemperatureScaling(Calibrator):
    """Divide logits by one positive number; the predicted class never changes.

    Above 1 softens an overconfident model, below 1 sharpens an underconfident one.
    """

    preserves_accuracy = True
    masks = True
    stored = declare(temperature=one_number(POSITIVE))

    temperature: Tensor

    def __init__(self, temperature: float, *, n_classes: int | None = None) -> None:
        super().__init__(n_classes=n_classes)
        temperature = check_number(temperature, "temperature")
        self.register_buffers(temperature=torch.tensor(temperature, dtype=torch.float64))

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        objective: TemperatureObjective = "nll",
        start: float = 1.0,
        prior: float = PRIOR,
        n_bins: int = 15,
        **rows: Unpack[Rows],
    ) -> Self:
        r"""Minimise the negative log-likelihood, which is convex in the inverse temperature.

        If every label has the largest logit, or if the logits predict labels no better than chance, there is
        no optimum. Then a weak normal prior on :math:`\log T` decides, with mean 0 and deviation 2.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            objective: ``"nll"`` for the likelihood; ``"ece"`` for the temperature of 0.1, 0.2, ..., 10 with
                the smallest top-label calibration error over bins of equal width; ``"ece_equal_mass"`` for
                that over bins of equal count, as in the AdaFocal paper; or another name that
                :func:`~calibrant.surrogates.objective_value` knows. All but the likelihood are searched on a
                grid, and the result is never worse than a temperature of 1.
            start: Temperature at which the search for the likelihood begins.
            prior: Weight of the prior, the inverse of its variance, where the likelihood has no optimum; 0
                refuses such a fitting set.
            n_bins: Number of bins for ``"ece"`` and ``"ece_equal_mass"``.

        Raises:
            FitError: The likelihood has no optimum, and ``prior`` is 0.
        """
        data = cls.data(logits, labels, **rows)
        check_number(start, "start")
        if objective == "nll":
            prior = check_number(prior, "prior", at_least=0)
            temperature = likeliest_temperature(data, start=start, prior=prior)
        elif objective in _BINNINGS:
            n_bins = check_count(n_bins, "n_bins")
            temperature = best_calibrated_temperature(data, n_bins=n_bins, binning=_BINNINGS[objective])
        else:
            temperature = _best_by(check_objective(objective), data)
        return cls(temperature=temperature, n_classes=data.n_classes)

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        z = at_least_float32(logits)
        return torch.log_softmax(z / self.temperature, dim=1)


def _best_by(objective: Objective, data: FittingSet) -> float:
    def loss(temperature: float) -> float:
        log_probs = finite(torch.log_softmax(data.logits / temperature, dim=1))
        forecasts = LogProbForecasts(log_probs, data.labels, data.weights)
        return float(objective_value(objective, forecasts))

    return minimise_over_temperature(loss)
