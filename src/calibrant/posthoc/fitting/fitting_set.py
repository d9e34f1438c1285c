"""A fitting set seen through its temperatures: a handful of numbers per sample, and no classes."""

import math
from functools import cached_property

import torch
from torch import Tensor

from calibrant.posthoc.fitting.log_sum_exp import LogSumExp, log_sum_exp
from calibrant.surrogates.soft_bins import SoftBins, soft_bins


class FittingSet:
    """Logits and labels reduced to what temperatures can change."""

    def __init__(self, logits: Tensor, labels: Tensor) -> None:
        top, predicted = logits.max(dim=1)
        self.log_sum_exp: LogSumExp = log_sum_exp(logits)
        self.correct = (predicted == labels).double()
        self.label_deficit = (logits.gather(1, labels[:, None]).squeeze(1) - top).double()
        self.mean_deficit = logits.mean(dim=1, dtype=torch.float64) - top

    def __len__(self) -> int:
        return len(self.correct)

    def at(self, temperature: Tensor, rows: Tensor | None = None) -> "TemperedForecasts":
        """Return the forecasts of all samples, or of some rows, at one temperature each."""
        return TemperedForecasts(self, temperature, rows)

    def at_one(self, temperature: float) -> "TemperedForecasts":
        """Return the forecasts of all samples at the same temperature."""
        return self.at(torch.full_like(self.correct, temperature))


class TemperedForecasts:
    """Forecasts whose logits are divided by one temperature per sample, from the log-sum-exp alone."""

    def __init__(self, samples: FittingSet, temperature: Tensor, rows: Tensor | None) -> None:
        self._samples = samples
        self._rows = rows
        self._log_beta = -temperature.log()

    def _of_rows(self, values: Tensor) -> Tensor:
        return values if self._rows is None else values[self._rows]

    @cached_property
    def _log_norm(self) -> Tensor:
        return self._samples.log_sum_exp(self._log_beta, self._rows)

    @cached_property
    def confidence(self) -> Tensor:
        """Probability of the predicted class."""
        return (-self._log_norm).exp()

    @cached_property
    def correct(self) -> Tensor:
        """Whether the predicted class was the true one, as 1 or 0."""
        return self._of_rows(self._samples.correct)

    @cached_property
    def bins(self) -> SoftBins:
        """Soft bins of the confidences."""
        return soft_bins(self.confidence, self.correct)

    @cached_property
    def true_log_prob(self) -> Tensor:
        """Log-probability of the true class."""
        return self._log_beta.exp() * self._of_rows(self._samples.label_deficit) - self._log_norm

    @cached_property
    def mean_log_prob(self) -> Tensor:
        """Mean log-probability over the classes."""
        return self._log_beta.exp() * self._of_rows(self._samples.mean_deficit) - self._log_norm

    @cached_property
    def squared_norm(self) -> Tensor:
        """Sum over the classes of the squared probability."""
        doubled = self._samples.log_sum_exp(self._log_beta + math.log(2), self._rows)
        return (doubled - 2 * self._log_norm).exp()
