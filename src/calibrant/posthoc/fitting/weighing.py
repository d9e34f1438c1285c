"""Sums over samples that may have weights, whose sum is the effective number of samples.

Without weights, which is None, these are the plain sums.
"""

import math
from collections.abc import Sized

import torch
from torch import Tensor

from calibrant.outcomes import effective, mean_of


def size_of(values: Sized, weights: Tensor | None) -> float:
    """Return the number of samples, or the effective number."""
    return len(values) if weights is None else float(weights.sum())


def sum_of(values: Tensor, weights: Tensor | None) -> Tensor:
    """Return the sum of values, each times its weight of the same shape, in float64."""
    return (values if weights is None else weights * values).sum(dtype=torch.float64)


def rows_of(weights: Tensor | None, rows: Tensor | slice) -> Tensor | None:
    """Return the weights of some rows."""
    return None if weights is None else weights[rows]


def effective_rows(weights: Tensor | None, rows: Tensor) -> Tensor | None:
    """Return the weights of some rows as a fitting set of its own, with its own effective number."""
    return None if weights is None else effective(weights[rows])


def per_question(weights: Tensor | None, questions: Tensor, asked: Tensor | None) -> Tensor | None:
    """Return how much each sample counts for each of the binary questions, shape ``(n, m)``.

    Args:
        weights: How much each sample counts, shape ``(n,)``, or None.
        questions: Any tensor of shape ``(n, m)``.
        asked: Which questions are asked of each sample; all if None. The samples that are asked a question
            are a fitting set of their own, with its own effective number; others count 0.
    """
    if asked is None:
        return None if weights is None else weights[:, None].expand_as(questions)
    if weights is None:
        return asked.double()
    each = weights[:, None] * asked
    return each * (each.sum(dim=0) / each.square().sum(dim=0).clamp(min=torch.finfo(each.dtype).tiny))


def of_units(values: Tensor, units: Tensor | None) -> Tensor:
    """Return the sum of the values of each unit, along the last axis; the values if each is a unit."""
    if units is None:
        return values
    sums = values.new_zeros((*values.shape[:-1], int(units.max()) + 1))
    return sums.index_add(-1, units, values)


def error_of_mean(values: Tensor, weights: Tensor | None, units: Tensor | None) -> Tensor:
    """Return the standard error of the mean of values of shape ``(n,)``, whose units are independent."""
    if units is None:
        return spread_of(values, weights) / math.sqrt(size_of(values, weights))
    w = torch.ones_like(values) if weights is None else weights.to(values)
    sums = of_units(w * (values - mean_of(values, weights)), units)
    return sums.square().sum().sqrt() / w.sum()


def design_effect(values: Tensor, weights: Tensor | None, units: Tensor) -> float:
    """Return how many times larger the variance of a mean is than for independent values, at least 1.

    Example:
        >>> round(design_effect(torch.tensor([1.0, 1.0, -1.0, -1.0]), None, torch.tensor([0, 0, 1, 1])), 6)
        2.0
    """
    alone = float(error_of_mean(values, weights, None))
    if alone == 0:
        return 1.0
    return max(1.0, (float(error_of_mean(values, weights, units)) / alone) ** 2)


def spread_of(values: Tensor, weights: Tensor | None) -> Tensor:
    """Return the standard deviation of values of shape ``(n,)``."""
    if weights is None:
        return values.std(correction=0)
    return mean_of((values - mean_of(values, weights)).square(), weights).sqrt()


def median_of(values: Tensor, weights: Tensor | None) -> Tensor:
    """Return the median of values of shape ``(n,)``, the lower of two."""
    if weights is None:
        return values.median()
    ordered, order = values.sort()
    reached = weights[order].cumsum(0)
    # Half of the weight, but for rounding.
    return ordered[torch.searchsorted(reached, (0.5 - 1e-9) * reached[-1])]


def moments(inputs: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of each column of inputs, shape ``(n, d)``."""
    if weights is None:
        return inputs.mean(dim=0), inputs.std(dim=0, correction=0)
    shares = (weights / weights.sum()).to(inputs)
    mean = shares @ inputs
    return mean, (shares @ (inputs - mean).square()).sqrt()


def quantiles(values: Tensor, levels: Tensor, weights: Tensor | None) -> Tensor:
    """Return quantiles of values of shape ``(n,)``, linear between the middles of neighbouring weights.

    For equal weights this is the definition of ``torch.quantile``.

    Example:
        >>> x, levels = torch.tensor([4.0, 1.0, 2.0]), torch.tensor([0.0, 0.25, 1.0])
        >>> quantiles(x, levels, None), quantiles(x, levels, torch.tensor([1.0, 1.0, 1.0]))
        (tensor([1.0000, 1.5000, 4.0000]), tensor([1.0000, 1.5000, 4.0000]))
    """
    if weights is None:
        return torch.quantile(values, levels)
    ordered, order = values.sort()
    if len(ordered) == 1:
        return ordered.expand_as(levels)
    w = weights[order]
    middle = w.cumsum(0) - w / 2
    place = middle[0] + levels.to(middle) * (middle[-1] - middle[0])
    right = torch.searchsorted(middle, place).clamp(1, len(ordered) - 1)
    share = (place - middle[right - 1]) / (middle[right] - middle[right - 1])
    return torch.lerp(ordered[right - 1], ordered[right], share.clamp(0, 1).to(ordered))
