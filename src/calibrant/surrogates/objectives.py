"""What a calibrator that is trained can minimise, by name; each is a function of few numbers per sample.

The names are the columns of the objective ablation (Table 3) of the SMART paper.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.surrogates.charbonnier import charbonnier_gap
from calibrant.surrogates.soft_bins import SoftBins, soft_bins

Objective: TypeAlias = Literal["charbonnier", "soft_ece", "nll", "label_smoothing", "mse", "brier"]

SMOOTHING = 0.05


class Forecasts(Protocol):
    """What the objectives ask of predictions: few numbers per sample, each computed only when asked for."""

    @property
    def confidence(self) -> Tensor:
        """Probability of the predicted class."""

    @property
    def correct(self) -> Tensor:
        """Whether the predicted class was the true one, as 1 or 0."""

    @property
    def bins(self) -> SoftBins:
        """Soft bins of the confidences."""

    @property
    def true_log_prob(self) -> Tensor:
        """Log-probability of the true class."""

    @property
    def mean_log_prob(self) -> Tensor:
        """Mean log-probability over the classes."""

    @property
    def squared_norm(self) -> Tensor:
        """Sum over the classes of the squared probability."""


class LogProbForecasts:
    """Predictions given as log-probabilities of shape ``(n, k)`` with labels of shape ``(n,)``."""

    def __init__(self, log_probs: Tensor, labels: Tensor) -> None:
        self._log_probs = log_probs.to(torch.promote_types(log_probs.dtype, torch.float32))
        self._labels = labels

    @cached_property
    def confidence(self) -> Tensor:
        """Probability of the predicted class."""
        return self._log_probs.amax(dim=1).exp()

    @cached_property
    def correct(self) -> Tensor:
        """Whether the predicted class was the true one, as 1 or 0."""
        return (self._log_probs.argmax(dim=1) == self._labels).to(self._log_probs.dtype)

    @cached_property
    def bins(self) -> SoftBins:
        """Soft bins of the confidences."""
        return soft_bins(self.confidence, self.correct)

    @cached_property
    def true_log_prob(self) -> Tensor:
        """Log-probability of the true class."""
        return self._log_probs.gather(1, self._labels[:, None]).squeeze(1)

    @cached_property
    def mean_log_prob(self) -> Tensor:
        """Mean log-probability over the classes."""
        return self._log_probs.mean(dim=1)

    @cached_property
    def squared_norm(self) -> Tensor:
        """Sum over the classes of the squared probability."""
        return (2 * self._log_probs).exp().sum(dim=1)


def objective_value(name: Objective, forecasts: Forecasts) -> Tensor:
    """Return the mean of the named objective over the samples; smaller is better.

    =================== ================================================================================
    ``charbonnier``     :func:`~calibrant.surrogates.charbonnier_soft_ece` of the top label
    ``soft_ece``        :func:`~calibrant.surrogates.soft_ece` of the top label
    ``nll``             negative log-likelihood of the true class
    ``label_smoothing`` cross-entropy with targets of which 5 % is spread over all classes
    ``mse``             squared distance of the top label's confidence from being right (1) or wrong (0)
    ``brier``           squared distance of the distribution from the true class
    =================== ================================================================================

    Example:
        >>> forecasts = LogProbForecasts(torch.tensor([[0.8, 0.2]]).log(), torch.tensor([1]))
        >>> {name: round(float(objective_value(name, forecasts)), 3) for name in ("nll", "mse", "brier")}
        {'nll': 1.609, 'mse': 0.64, 'brier': 1.28}
    """
    return OBJECTIVES[name](forecasts)


def check_objective(name: str) -> Objective:
    """Refuse what is not the name of an objective."""
    for known in OBJECTIVES:
        if name == known:
            return known
    raise InputError(f"objective: expected one of {', '.join(OBJECTIVES)}, got {name!r}")


def _label_smoothing(forecasts: Forecasts) -> Tensor:
    hard, spread = forecasts.true_log_prob, forecasts.mean_log_prob
    return -((1 - SMOOTHING) * hard + SMOOTHING * spread).mean()


def _brier(forecasts: Forecasts) -> Tensor:
    return (forecasts.squared_norm - 2 * forecasts.true_log_prob.exp() + 1).mean()


OBJECTIVES: Mapping[Objective, Callable[[Forecasts], Tensor]] = MappingProxyType(
    {
        "charbonnier": lambda f: charbonnier_gap(f.bins),
        "soft_ece": lambda f: f.bins.expected_gap(),
        "nll": lambda f: -f.true_log_prob.mean(),
        "label_smoothing": _label_smoothing,
        "mse": lambda f: torch.square(f.confidence - f.correct).mean(),
        "brier": _brier,
    }
)
