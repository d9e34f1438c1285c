"""Temperature scaling (Guo et al., "On Calibration of Modern Neural Networks", ICML 2017)."""

import math
from collections.abc import Callable
from typing import Literal, Self, TypeAlias

import torch
from torch import Tensor

from calibrant.bins import equal_width_bins
from calibrant.errors import FitError, InputError
from calibrant.inputs import ArrayLike, check_count
from calibrant.outcomes import Outcomes
from calibrant.posthoc.calibrator import Calibrator, check_fitting_set
from calibrant.posthoc.fitting.deficits import Deficits
from calibrant.solvers import increasing_root
from calibrant.surrogates.objectives import LogProbForecasts, Objective, check_objective, objective_value

TemperatureObjective: TypeAlias = Literal["ece"] | Objective

# Temperatures tried for the calibration error, as in Mukhoti et al. (2020) and Ghosh et al. (2022).
ECE_GRID = tuple(step / 10 for step in range(1, 101))

# Samples of about this many rows say where the optimum is, to within some and a few per cent.
_SAMPLE_ROWS = (250, 2000)


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
        objective: TemperatureObjective = "nll",
        start: float = 1.0,
        n_bins: int = 15,
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
            objective: ``"nll"`` for the likelihood; ``"ece"`` for the temperature of 0.1, 0.2, ..., 10 with
                the smallest top-label calibration error; or another name that
                :func:`~calibrant.surrogates.objective_value` knows. All but the likelihood are searched for
                on a grid and never end above their value at 1.
            start: Temperature at which the search for the likelihood begins.
            n_bins: Number of equal-width bins for ``"ece"``.

        Raises:
            FitError: The likelihood has no optimum: every label has the largest logit (it grows as the
                temperature falls to 0), or labels are met no better than by chance (it grows for ever as
                the temperature rises).
        """
        z, y = check_fitting_set(logits, labels)
        if not 0 < start < math.inf:
            raise InputError(f"start: expected a positive finite temperature, got {start}")
        if objective == "nll":
            temperature = _most_likely(z, y, start)
        elif objective == "ece":
            temperature = _best_calibrated(z, y, check_count(n_bins, "n_bins"))
        else:
            temperature = _best_by(check_objective(objective), z, y)
        return cls(temperature=temperature, n_classes=z.shape[1])

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        z = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return torch.log_softmax(z / self.temperature, dim=1)


def minimise_over_temperature(
    loss: Callable[[float], float], *, lowest: float = 0.05, highest: float = 20.0, n_grid: int = 33
) -> float:
    """Find the temperature with the smallest loss, which may have several valleys.

    A geometric grid finds the valley, Brent's method its floor. A temperature of 1 is one of the candidates,
    so the result is never worse than doing nothing.

    Example:
        >>> round(minimise_over_temperature(lambda t: (t - 2.5) ** 2), 4)
        2.5
    """
    from scipy.optimize import minimize_scalar

    step = math.log(highest / lowest) / (n_grid - 1)
    grid = [math.log(lowest) + step * i for i in range(n_grid)]
    losses = {x: loss(math.exp(x)) for x in [0.0, *grid]}
    best = min(losses, key=lambda x: (losses[x], abs(x)))
    found = minimize_scalar(
        lambda x: loss(math.exp(x)),
        bounds=(best - step, best + step),
        method="bounded",
        options={"xatol": 1e-6},
    )
    return math.exp(float(found.x) if float(found.fun) < losses[best] else best)


def _most_likely(z: Tensor, y: Tensor, start: float) -> float:
    deficits = Deficits.of(z, y)
    if deficits.label <= deficits.mean:
        raise FitError(
            "temperature scaling: no optimum, the logits meet the labels no better than chance, so the "
            "likelihood grows as the temperature rises without end; check the order of the classes"
        )
    if deficits.label == 0:
        raise FitError(
            "temperature scaling: no optimum, every label has the largest logit, so the likelihood grows "
            "as the temperature falls to 0; fit on data that the model has not learned by heart"
        )
    log_beta, tolerance = -math.log(start), 1e-6
    for rows in _SAMPLE_ROWS:
        stride = len(z) // rows
        part = Deficits.of(z[::stride], y[::stride]) if stride > 3 else None
        if part and part.has_optimum:
            # Newton's error is about the square of its last step: two passes over all rows do from here.
            log_beta, tolerance = increasing_root(part.slope, start=log_beta, tolerance=1e-3), 3e-4
    return math.exp(-increasing_root(deficits.slope, start=log_beta, tolerance=tolerance))


def _best_calibrated(z: Tensor, y: Tensor, n_bins: int) -> float:
    deficits, correct = Deficits.of(z, y), z.argmax(dim=1) == y

    def error(temperature: float) -> float:
        outcomes = Outcomes(deficits.confidence(1 / temperature), correct)
        return float(equal_width_bins(outcomes, n_bins).expected_gap())

    return min(ECE_GRID, key=lambda t: (error(t), abs(math.log(t))))


def _best_by(objective: Objective, z: Tensor, y: Tensor) -> float:
    def loss(temperature: float) -> float:
        forecasts = LogProbForecasts(torch.log_softmax(z / temperature, dim=1), y)
        return float(objective_value(objective, forecasts))

    return minimise_over_temperature(loss)
