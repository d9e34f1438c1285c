"""Temperature scaling (Guo et al., "On Calibration of Modern Neural Networks", ICML 2017)."""

import math
from typing import Self

import torch
from torch import Tensor

from calibrant.errors import FitError, InputError
from calibrant.inputs import ArrayLike
from calibrant.posthoc.calibrator import Calibrator, check_fitting_set
from calibrant.solvers import increasing_root

# Rows handled at once are chosen so that a block of logits stays in the processor's cache.
_BLOCK_ENTRIES = 1 << 18


class TemperatureScaling(Calibrator):
    """Divide logits by one positive number; the predicted class never changes.

    Above 1 softens an overconfident model, below 1 sharpens an underconfident one.
    """

    preserves_accuracy = True

    temperature: Tensor

    def __init__(self, temperature: float, *, n_classes: int | None = None) -> None:
        super().__init__(n_classes=n_classes)
        if not 0 < temperature < math.inf:
            raise InputError(f"temperature: expected a positive finite number, got {temperature}")
        self.register_buffer("temperature", torch.tensor(float(temperature), dtype=torch.float64))

    @classmethod
    def fit(
        cls,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        features: ArrayLike | None = None,
        seed: int = 0,
        start: float = 1.0,
    ) -> Self:
        r"""Minimise the negative log-likelihood, which is convex in the inverse temperature.

        At the optimum :math:`\beta = 1/T` the logit that the model expects equals the one it meets,
        :math:`\sum_i \mathbb{E}_{c \sim p_i(\beta)}[z_{ic}] = \sum_i z_{i y_i}`; the left side increases with
        :math:`\beta`, so Newton steps within a bracket find it from any start.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            features: Not used.
            seed: Not used: nothing here is random.
            start: Temperature at which the search begins.

        Raises:
            FitError: There is no optimum: every label has the largest logit (the likelihood grows as the
                temperature falls to 0), or labels are met no better than by chance (it grows for ever as
                the temperature rises).
        """
        z, y = check_fitting_set(logits, labels)
        if not 0 < start < math.inf:
            raise InputError(f"start: expected a positive finite temperature, got {start}")
        z = z - z.amax(dim=1, keepdim=True)
        met = float(z.gather(1, y[:, None]).mean(dtype=torch.float64))
        if met <= float(z.mean(dtype=torch.float64)):
            raise FitError(
                "temperature scaling: no optimum, the logits meet the labels no better than chance, so the "
                "likelihood grows as the temperature rises without end; check the order of the classes"
            )
        if met == 0:
            raise FitError(
                "temperature scaling: no optimum, every label has the largest logit, so the likelihood grows "
                "as the temperature falls to 0; fit on data that the model has not learned by heart"
            )

        # Logits in units of their usual distance to the largest one, so that the search does not depend on
        # their scale.
        unit = -float(z.mean(dtype=torch.float64))

        def surplus(log_beta: float) -> tuple[float, float]:
            beta = math.exp(log_beta) / unit
            mean, variance = _expected_logit(z, beta)
            return (mean - met) / unit, beta * variance / unit

        log_beta = increasing_root(surplus, start=math.log(unit / start))
        return cls(temperature=unit / math.exp(log_beta), n_classes=z.shape[1])

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        return torch.log_softmax(logits / self.temperature, dim=1)


def _expected_logit(z: Tensor, beta: float) -> tuple[float, float]:
    """Average over samples the mean and the variance of ``z`` under ``softmax(beta z)``; row maxima are 0."""
    total = torch.zeros(2, dtype=torch.float64, device=z.device)
    for block in z.split(max(1, _BLOCK_ENTRIES // z.shape[1])):
        weights = (beta * block).exp_()
        norm = weights.sum(dim=1).double()
        weighted = weights.mul_(block)
        first = weighted.sum(dim=1).double() / norm
        second = weighted.mul_(block).sum(dim=1).double() / norm
        total += torch.stack([first.sum(), (second - first.square()).clamp(min=0).sum()])
    mean, variance = (total / len(z)).tolist()
    return mean, variance
