"""How closely one number per sample determines the temperature that the sample needs."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.inputs import to_tensor
from calibrant.outcomes import has_runner_up, margin
from calibrant.posthoc.smart import Indicator, feasible_temperatures, indicator_values
from calibrant.results import FrozenDict

# The indicators that the SMART paper compares in its figure 2.
_SHOWN: Mapping[str, Indicator] = {
    "logit margin": "margin",
    "largest logit": "max_logit",
    "largest minus mean logit": "max_minus_mean",
}


@dataclass(frozen=True, eq=False)
class NeededTemperatures:
    """The temperature at which each sample has one confidence, beside indicators of the sample.

    Attributes:
        confidence: The wanted confidence.
        temperature: Temperature of each sample, shape ``(n,)``.
        indicators: Values of each indicator, by name, of the same shape.
        lowest: Lowest temperature that a sample with this margin can need.
        highest: Highest such temperature.
    """

    confidence: float
    temperature: Tensor
    indicators: Mapping[str, Tensor]
    lowest: Tensor
    highest: Tensor


def needed_temperatures(
    predictions: Predictions, *, confidence: float = 0.8, n_samples: int = 1000
) -> NeededTemperatures:
    """Return the temperatures at which the first samples have the wanted confidence.

    Samples whose largest logit is not unique are left out: no temperature makes them confident.
    """
    z = predictions.classes().to_logits().double().cpu()
    z = z[has_runner_up(z)]
    z = z[margin(z) > 0][:n_samples]
    bounds = feasible_temperatures(margin(z), confidence=confidence, n_classes=z.shape[1])
    return NeededTemperatures(
        confidence,
        solve_temperatures(z, confidence=confidence),
        FrozenDict({name: indicator_values(each, z)[:, 0] for name, each in _SHOWN.items()}),
        to_tensor(bounds.lowest, "lowest"),
        to_tensor(bounds.highest, "highest"),
    )


def solve_temperatures(logits: Tensor, *, confidence: float) -> Tensor:
    """Return the temperature at which each sample has the wanted confidence, by bisection.

    Args:
        logits: Scores of shape ``(n, k)`` whose largest is unique.
        confidence: Above ``1 / k`` and below 1.

    Example:
        >>> float(solve_temperatures(torch.tensor([[2.0, 0.0]]), confidence=0.8).round(decimals=4))
        1.4427
    """
    z = logits.double()
    low, high = torch.full((len(z),), -40.0).double(), torch.full((len(z),), 40.0).double()
    for _ in range(100):
        middle = (low + high) / 2
        too_sure = torch.softmax(z / middle.exp()[:, None], dim=1).amax(dim=1) > confidence
        low, high = torch.where(too_sure, middle, low), torch.where(too_sure, high, middle)
    return ((low + high) / 2).exp()
