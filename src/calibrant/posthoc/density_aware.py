"""Density-aware calibration (Tomani et al., "Robust Density-Aware Calibration", ICML 2023)."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, Floats, at_least_float32, check_choice, check_count, check_features
from calibrant.posthoc.calibrator import Calibrator, Identity, check_weighted_set, required_features
from calibrant.posthoc.ensemble import EnsembleTemperatureScaling
from calibrant.posthoc.fitting.fitting_set import FittingSet
from calibrant.posthoc.fitting.folds import shuffled
from calibrant.posthoc.fitting.neighbours import nearest_distances, prepared
from calibrant.posthoc.fitting.stored import AT_LEAST_1, NOT_NEGATIVE, POSITIVE, Numbers, declare, one_number
from calibrant.posthoc.fitting.temperature_search import likeliest_temperature
from calibrant.posthoc.fitting.weighing import effective_rows, moments
from calibrant.posthoc.spline import SplineCalibration
from calibrant.surrogates import objective_value

DensityObjective: TypeAlias = Literal["nll", "brier"]
DensityThen: TypeAlias = Literal["none", "ensemble", "spline"]

_THEN: dict[DensityThen, type[Calibrator]] = {
    "none": Identity,
    "ensemble": EnsembleTemperatureScaling,
    "spline": SplineCalibration,
}

# More stored features, and more samples to fit a few weights, would cost time and memory only.
_MOST_REFERENCES = 1 << 16

# Temperatures are no smaller than this share of the common one.
_LOWEST = 0.05


class DensityAware(Calibrator):
    r"""Raise the temperature of samples whose features are rare; the predicted class never changes.

    .. math:: p(x) = h\bigl(z / S(x)\bigr), \quad S(x) = \sum_l w_l s_l(x) + w_0, \quad w_l \ge 0

    with the distance :math:`s_l` from the features of a layer :math:`l`, brought to unit length, to their
    nearest neighbour number :math:`K` among the stored features of the fitting set, and a calibrator
    :math:`h`. The paper takes the neighbours among the training samples. An eager call holds 4 MB of
    distances at once, an exported or compiled graph those of its whole batch.
    """

    preserves_accuracy = True
    needs_features = True
    masks = True
    options = ("n_neighbours", "widths")

    stored = declare(
        weights=Numbers(("layers",), NOT_NEGATIVE),
        intercept=one_number(),
        lowest=one_number(POSITIVE),
        references=Numbers(("n+1", "d")),
    )
    part_names = ("second",)

    n_neighbours: Annotated[int, AT_LEAST_1]
    widths: list[Annotated[int, AT_LEAST_1]]
    weights: Tensor
    intercept: Tensor
    lowest: Tensor
    references: Tensor
    second: Calibrator

    def __init__(
        self,
        weights: Tensor,
        intercept: Tensor,
        lowest: Tensor,
        references: Tensor,
        second: Calibrator,
        *,
        n_neighbours: int,
        widths: Sequence[int],
        n_classes: int | None = None,
    ) -> None:
        super().__init__(n_classes=n_classes)
        self.n_neighbours, self.widths = n_neighbours, list(widths)
        self.register_buffers(weights=weights, intercept=intercept, lowest=lowest, references=references)
        self.second = second

    @classmethod
    def fit(
        cls,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        n_neighbours: int = 50,
        widths: Sequence[int] | None = None,
        objective: DensityObjective = "nll",
        then: DensityThen = "ensemble",
        features: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        seed: int = 0,
    ) -> Self:
        """Find the weights with the lowest objective, then fit the other calibrator on the divided logits.

        The search begins at the likeliest temperature, so the objective on the fitting set is never larger
        than with that alone.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            features: Activations of shape ``(n, d)``: of the last hidden layer, or of several layers side by
                side.
            n_neighbours: Which nearest neighbour's distance is taken; at most all other samples.
            widths: How many columns of the features belong to each layer; all to one if None.
            objective: ``"nll"`` for the likelihood or ``"brier"`` for the squared error.
            then: What follows: ``"ensemble"``, ``"spline"`` or ``"none"``.
            weights: How much each sample counts in the objective, shape ``(n,)``; only their ratios matter.
                As neighbours all stored samples are the same.
            seed: Seed of the choice of rows, if there are more than 65,536.
        """
        z, y, w = check_weighted_set(logits, labels, weights)
        h = check_features(required_features(features, cls.__name__), n=z.shape[0]).to(z.device)
        check_choice(objective, "objective", get_args(DensityObjective))
        second = _THEN[check_choice(then, "then", _THEN)]
        widths = _checked_widths(widths, h.shape[1])
        references = _unit_lengths(h[_some(len(h), seed).to(h.device)], widths)
        n_neighbours = min(check_count(n_neighbours, "n_neighbours"), max(1, len(references) - 1))
        temperature = likeliest_temperature(z, y, weights=w)
        distances = _kth_distances(h, references, widths, n_neighbours).double()
        slopes, intercept = _search(z / temperature, y, w, distances, objective, seed)
        slopes, intercept = temperature * slopes, temperature * intercept
        lowest = torch.tensor(_LOWEST * temperature, dtype=torch.float64, device=z.device)
        scale = (distances @ slopes + intercept).clamp(min=lowest)
        return cls(
            slopes,
            intercept,
            lowest,
            references,
            second.fit(z / scale.to(z.dtype)[:, None], y, weights=w),
            n_neighbours=n_neighbours,
            widths=widths,
            n_classes=z.shape[1],
        )

    @property
    def sizes(self) -> dict[str, int]:
        """The number of classes, that of layers, and that of all features."""
        return super().sizes | {"layers": len(self.widths), "d": sum(self.widths)}

    @property
    def n_features(self) -> int:
        """Number of features that it was fitted on."""
        return self.references.shape[1]

    def distances(self, features: Tensor) -> Tensor:
        """Return the distance to the nearest neighbour number ``n_neighbours``, shape ``(n, layers)``."""
        return _kth_distances(features, self.references, self.widths, self.n_neighbours)

    def temperature(self, features: Tensor) -> Tensor:
        """Return the temperature of each sample before the second calibrator, shape ``(n,)``."""
        scale = self.distances(features).to(self.weights.dtype) @ self.weights + self.intercept
        return torch.maximum(scale, self.lowest)

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        z = at_least_float32(logits)
        h = torch.as_tensor(required_features(features, type(self).__name__))
        calibrated: Tensor = self.second(z / self.temperature(h).to(z.dtype)[:, None])
        return calibrated


def _checked_widths(widths: Sequence[int] | None, n_features: int) -> list[int]:
    if widths is None:
        return [n_features]
    counts = [check_count(width, "widths") for width in widths]
    if sum(counts) != n_features:
        raise InputError(f"widths: expected numbers that sum to the {n_features} features, got {counts}")
    return counts


def _some(n: int, seed: int) -> Tensor:
    """Return all rows, or the most that are stored, at random."""
    if n <= _MOST_REFERENCES:
        return torch.arange(n)
    return shuffled(n, seed=seed)[:_MOST_REFERENCES].sort().values


def _unit_lengths(features: Tensor, widths: Sequence[int]) -> Tensor:
    layers = features.split(list(widths), dim=1)
    return torch.cat([prepared(layer, normalize=True) for layer in layers], dim=1)


def _kth_distances(features: Tensor, references: Tensor, widths: Sequence[int], n_neighbours: int) -> Tensor:
    columns = []
    for layer, stored in zip(
        features.split(list(widths), dim=1), references.split(list(widths), dim=1), strict=True
    ):
        columns.append(nearest_distances(prepared(layer, normalize=True), stored, n_neighbours).amax(dim=1))
    return torch.stack(columns, dim=1)


def _search(
    z: Tensor,
    y: Tensor,
    weights: Tensor | None,
    distances: Tensor,
    objective: DensityObjective,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """Return the weights and the intercept of the temperature, for logits that need one of about 1."""
    from scipy.optimize import minimize

    if len(z) > _MOST_REFERENCES:
        rows = _some(len(z), seed).to(z.device)
        z, y, distances, weights = z[rows], y[rows], distances[rows], effective_rows(weights, rows)
    samples, s = FittingSet(z, y, weights), distances
    mean, deviation = moments(s, weights)
    deviation = torch.where(deviation <= 1e-6 * mean, torch.ones_like(deviation), deviation)
    x = (s - mean) / deviation

    def loss(parameters: Floats) -> tuple[float, Floats]:
        with torch.enable_grad():
            w = torch.from_numpy(parameters).to(x.device).requires_grad_()
            temperature = (x @ w[:-1] + w[-1]).clamp(min=_LOWEST)
            value = objective_value(objective, samples.at(temperature))
            (gradient,) = torch.autograd.grad(value, w)
        return float(value.detach()), gradient.cpu().numpy()

    start = np.append(np.zeros(x.shape[1]), 1.0)
    bounds = [(0.0, None)] * x.shape[1] + [(_LOWEST, None)]
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds)
    best = found.x if found.fun < loss(start)[0] else start
    slope, level = torch.from_numpy(best).to(x.device).split([x.shape[1], 1])
    slope = slope / deviation
    return slope, level[0] - slope @ mean
