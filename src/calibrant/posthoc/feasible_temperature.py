"""Which temperatures can give a sample a wanted confidence, if only its margin is known (SMART, app. A.1)."""

import math
from dataclasses import dataclass

import torch

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, check_count, same_kind, to_tensor


@dataclass(frozen=True, eq=False)
class TemperatureInterval:
    """Bounds on the temperature of each sample, both included, in the caller's kind of array."""

    lowest: ArrayLike
    highest: ArrayLike


def feasible_temperatures(
    margins: ArrayLike, *, confidence: float, n_classes: int = 2
) -> TemperatureInterval:
    r"""Bound the temperature at which a sample's confidence is the one wanted.

    With :math:`S = 1/p - 1` the probabilities of the other classes sum to :math:`S` times that of the top
    class. They all lie at least the margin :math:`m` below it, and one exactly there, so

    .. math:: \frac{m}{\log((k - 1) / S)} \le T \le \frac{m}{\log(1 / S)},

    where the upper bound exists for confidences above one half. With two classes both bounds are the same;
    with more the interval is proportional to the margin. The largest logit alone bounds nothing.

    Args:
        margins: Largest minus second largest logit of each sample, shape ``(n,)``.
        confidence: The wanted probability of the predicted class, above ``1 / n_classes`` and below 1.
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
