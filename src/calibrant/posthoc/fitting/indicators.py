"""What a temperature network may look at: numbers that say how hard a sample is (SMART paper, Table 4)."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from calibrant.errors import InputError

Indicator: TypeAlias = Literal["margin", "entropy", "confidence", "logits", "max_logit", "max_minus_mean"]


def margin(logits: Tensor) -> Tensor:
    """Distance from the largest logit to the second largest: how far the sample is from another class.

    Example:
        >>> margin(torch.tensor([[3.0, 1.0, 2.5], [1.0, 1.0, 0.0]]))
        tensor([0.5000, 0.0000])
    """
    top = logits.topk(2, dim=1).values
    return top[:, 0] - top[:, 1]


def indicator_values(name: Indicator, logits: Tensor) -> Tensor:
    """Return the named indicator of each sample, shape ``(n, 1)``, or ``(n, k)`` for all logits.

    ================== =========================================================
    ``margin``         largest minus second largest logit
    ``entropy``        entropy of the model's distribution
    ``confidence``     largest probability
    ``logits``         all logits as they are
    ``max_logit``      largest logit
    ``max_minus_mean`` largest minus mean logit
    ================== =========================================================
    """
    return INDICATORS[name](logits)


def check_indicator(name: str) -> Indicator:
    """Refuse what is not the name of an indicator."""
    for known in INDICATORS:
        if name == known:
            return known
    raise InputError(f"indicator: expected one of {', '.join(INDICATORS)}, got {name!r}")


def _entropy(logits: Tensor) -> Tensor:
    log_probs = torch.log_softmax(logits, dim=1)
    return -(log_probs.exp() * log_probs).sum(dim=1, keepdim=True)


INDICATORS: Mapping[Indicator, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "margin": lambda z: margin(z)[:, None],
        "entropy": _entropy,
        "confidence": lambda z: torch.softmax(z, dim=1).amax(dim=1, keepdim=True),
        "logits": lambda z: z,
        "max_logit": lambda z: z.amax(dim=1, keepdim=True),
        "max_minus_mean": lambda z: z.amax(dim=1, keepdim=True) - z.mean(dim=1, keepdim=True),
    }
)
