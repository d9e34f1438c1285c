"""Rates estimated from few samples, kept away from certainty."""

import math

import torch
from torch import Tensor

from calibrant.errors import InputError


def check_strength(value: float, name: str) -> float:
    """Check how many samples a prior counts for."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise InputError(f"{name}: expected a finite number of at least 0, got {value!r}")
    return float(value)


def smoothed_log_odds(hits: Tensor, count: Tensor, smoothing: float) -> Tensor:
    r"""Return the log-odds of the rate :math:`(\mathrm{hits} + s/2) / (\mathrm{count} + s)`.

    That is, :math:`s` more samples, half of them hits: 0 is the plain rate, 1 the rule of Jeffreys, 2 that of
    Laplace. Rates of 0 and 1, which only the plain rate knows, become the smallest normal float32 and its
    complement; a bin without samples has even odds.
    """
    tiny = torch.finfo(torch.float32).tiny
    total = (count + smoothing).clamp(min=tiny)
    yes, no = (hits + smoothing / 2) / total, (count - hits + smoothing / 2) / total
    return yes.clamp(min=tiny).log() - no.clamp(min=tiny).log()
