"""The temperature of SMART at each margin, and the temperatures that would calibrate each margin."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.inputs import check_count, to_tensor
from calibrant.metrics.accuracy import accuracy
from calibrant.metrics.margin import margin_slices
from calibrant.outcomes import counts_of, has_runner_up, margin
from calibrant.posthoc.smart import SMART, feasible_temperatures
from calibrant.posthoc.temperature import TemperatureScaling


@dataclass(frozen=True, eq=False)
class FeasibleGroup:
    """A group of samples with similar margins, and the temperatures that can calibrate it.

    Attributes:
        margins: Lower and upper margin of the group.
        lowest: Lowest temperature at which confidence can equal accuracy, at both margins.
        highest: Highest such temperature; infinite where the accuracy is at most one half.
        accuracy: Share of right predictions, which is the target confidence.
        n: Number of samples.
    """

    margins: Tensor
    lowest: Tensor
    highest: Tensor
    accuracy: float
    n: int


@dataclass(frozen=True, eq=False)
class TemperatureCurve:
    """Temperature as a function of the margin.

    Attributes:
        margins: Even grid from 0 to the 99th percentile of the margins.
        temperature: Temperature of SMART at each margin.
        single: Temperature of temperature scaling, for all margins.
        feasible: Groups with the temperatures that can calibrate them; groups with an accuracy of 1, or not
            above chance, are left out.
        edges: Edges of cells of equal width over the grid.
        share: Share of the samples in each cell, by weight if they have weights.
        pearson: Correlation of margin and temperature over the samples; NaN for a constant temperature.
    """

    margins: Tensor
    temperature: Tensor
    single: float
    feasible: tuple[FeasibleGroup, ...]
    edges: Tensor
    share: Tensor
    pearson: float


def temperature_curve(
    predictions: Predictions,
    *,
    calibrator: SMART | None = None,
    single: TemperatureScaling | None = None,
    n_groups: int = 10,
    n_points: int = 201,
    seed: int = 0,
) -> TemperatureCurve:
    """Fit SMART and a single temperature, and return both as functions of the margin.

    Args:
        predictions: Logits or probabilities with labels, held out from training.
        calibrator: Fitted SMART with the margin as its indicator; by default it is fitted here.
        single: Fitted temperature scaling; by default it is fitted here.
        n_groups: Number of groups of equal count, by margin, for which feasible temperatures are computed.
        n_points: Number of points of the curve.
        seed: Seed of the initial weights of SMART's network.

    Example:
        >>> logits = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
        >>> labels = logits.argmax(dim=1)
        >>> labels[::4] = 0
        >>> curve = temperature_curve(Predictions(logits=3 * logits, labels=labels))
        >>> curve.single > 1, len(curve.margins)
        (True, 201)
    """
    predictions = predictions.classes().counted()
    several = has_runner_up(predictions.to_logits())
    predictions = predictions if bool(several.all()) else predictions.take(several)
    z, y, w = predictions.to_logits().double(), predictions.labels, predictions.weights
    assert y is not None
    m = margin(z).cpu()
    n_points = check_count(n_points, "n_points", at_least=2)
    end = _percentile_99(m, w)
    margins = torch.linspace(0, end, n_points, dtype=torch.float64)
    smart = SMART.fit(z, y, weights=w, seed=seed) if calibrator is None else calibrator
    if smart.indicator != "margin":
        raise InputError(f"calibrator: expected SMART with the indicator 'margin', got {smart.indicator!r}")
    edges = torch.linspace(0, end, 31, dtype=torch.float64)
    cells = torch.bucketize(m[m <= end], edges[1:-1])
    each = counts_of(w, len(m)).cpu()
    counts = torch.bincount(cells, weights=each[m <= end], minlength=len(edges) - 1)
    return TemperatureCurve(
        margins=margins,
        temperature=to_tensor(smart.temperature_curve(margins), "temperature").double(),
        single=float((TemperatureScaling.fit(z, y, weights=w) if single is None else single).temperature),
        feasible=_feasible(z, y, w, n_groups, end),
        edges=edges,
        share=counts / float(each.sum()),
        pearson=_pearson(m, to_tensor(smart.temperature_curve(m), "temperature"), each),
    )


def _pearson(margins: Tensor, temperature: Tensor, weights: Tensor) -> float:
    both = np.cov(torch.stack([margins.double(), temperature.double().cpu()]), aweights=weights, ddof=0)
    product = math.sqrt(both[0, 0] * both[1, 1])
    return float(both[0, 1]) / product if product > 0 else math.nan


def _percentile_99(margins: Tensor, weights: Tensor | None) -> float:
    # Computed by sorting, because torch.quantile refuses more than 16 million values.
    ordered, order = margins.sort()
    if weights is None:
        return float(ordered[int(0.99 * (len(ordered) - 1))])
    up_to = weights.cpu()[order].cumsum(0)
    return float(ordered[min(int(torch.searchsorted(up_to, 0.99 * up_to[-1])), len(ordered) - 1)])


def _feasible(z: Tensor, y: Tensor, w: Tensor | None, n_groups: int, end: float) -> tuple[FeasibleGroup, ...]:
    groups, k = [], z.shape[1]
    for part in margin_slices(z, y, n_groups=n_groups, measures={"accuracy": accuracy}, weights=w):
        wanted = part.metrics["accuracy"]
        if not 1 / k < wanted < 1 or part.low >= end:
            continue
        ends = torch.tensor([part.low, min(part.high, end)], dtype=torch.float64)
        bounds = feasible_temperatures(ends, confidence=wanted, n_classes=k)
        lowest, highest = (to_tensor(bound, "bound") for bound in (bounds.lowest, bounds.highest))
        groups.append(FeasibleGroup(ends, lowest, highest, wanted, part.n))
    return tuple(groups)
