"""Confidence score functions: one number per prediction, higher for a surer one.

They rank predictions for selective prediction (:mod:`calibrant.metrics.selective`) and for
out-of-distribution detection (:mod:`calibrant.metrics.ood`). The small functions work row by row on tensors,
:func:`confidence_score` on any array by name.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, check_logits, check_probs

# Rows that are widened to float64 at a time.
_BLOCK = 8192


def msp(probs: Tensor) -> Tensor:
    r"""Probability of the predicted class: :math:`\max_c p_c`.

    Example:
        >>> msp(torch.tensor([[0.5, 0.25, 0.25]])).tolist()
        [0.5]

    References:
        Hendrycks and Gimpel, "A Baseline for Detecting Misclassified and Out-of-Distribution Examples in
        Neural Networks", ICLR 2017.
    """
    return probs.amax(dim=1).clamp(max=1.0)


def softmax_margin(probs: Tensor) -> Tensor:
    r"""How much more probable the first class is than the second: :math:`p_{(1)} - p_{(2)}`.

    Example:
        >>> softmax_margin(torch.tensor([[0.5, 0.25, 0.25]])).tolist()
        [0.25]
    """
    first, second = probs.topk(2, dim=1).values.unbind(dim=1)
    return first - second


def negative_entropy(probs: Tensor) -> Tensor:
    r"""How far the distribution is from spread out: :math:`\sum_c p_c \log p_c`, from :math:`-\log k` to 0.

    Example:
        >>> negative_entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).tolist()
        [-0.6931471824645996, 0.0]
    """
    p = probs.clamp(0, 1)
    return torch.xlogy(p, p).sum(dim=1)


def max_logit(logits: Tensor) -> Tensor:
    r"""Largest logit, which unlike the MSP keeps the overall level: :math:`\max_c z_c`.

    Example:
        >>> max_logit(torch.tensor([[3.0, 1.0, 0.0]])).tolist()
        [3.0]

    References:
        Hendrycks et al., "Scaling Out-of-Distribution Detection for Real-World Settings", ICML 2022.
    """
    return logits.amax(dim=1)


def logit_margin(logits: Tensor) -> Tensor:
    r"""How far the first logit is ahead of the second: :math:`z_{(1)} - z_{(2)}`; it never saturates.

    Example:
        >>> logit_margin(torch.tensor([[3.0, 1.0, 0.0]])).tolist()
        [2.0]
    """
    first, second = logits.topk(2, dim=1).values.unbind(dim=1)
    return first - second


def energy(logits: Tensor, *, temperature: float = 1.0) -> Tensor:
    r"""Negative free energy, high for familiar inputs: :math:`T \log \sum_c \exp(z_c / T)`.

    Example:
        >>> energy(torch.tensor([[0.0, 0.0]])).tolist()
        [0.6931471824645996]

    References:
        Liu et al., "Energy-based Out-of-distribution Detection", NeurIPS 2020.
    """
    if not 0 < temperature < math.inf:
        raise InputError(f"temperature: expected a positive number, got {temperature}")
    return temperature * torch.logsumexp(logits / temperature, dim=1)


@dataclass(frozen=True)
class Score:
    """A score by name: the function of a block of rows, and what these hold."""

    function: Callable[[Tensor], Tensor]
    reads: Literal["probs", "logits"]


SCORES: Mapping[str, Score] = {
    "msp": Score(msp, "probs"),
    "softmax_margin": Score(softmax_margin, "probs"),
    "negative_entropy": Score(negative_entropy, "probs"),
    "max_logit": Score(max_logit, "logits"),
    "logit_margin": Score(logit_margin, "logits"),
    "energy": Score(energy, "logits"),
}


def confidence_score(name: str, *, probs: ArrayLike | None = None, logits: ArrayLike | None = None) -> Tensor:
    """Sureness of each prediction by one of :data:`SCORES`, of shape ``(n,)`` in float64.

    Scores of probabilities are computed from logits too, through a softmax in float64; those of logits
    cannot be computed from probabilities, which have lost the level of the logits.

    Args:
        name: ``"msp"``, ``"softmax_margin"``, ``"negative_entropy"``, or, from logits only,
            ``"max_logit"``, ``"logit_margin"``, ``"energy"``.
        probs: Class probabilities of shape ``(n, k)``.
        logits: Instead of ``probs``: logits of shape ``(n, k)``.

    Example:
        >>> confidence_score("msp", probs=[[0.75, 0.25], [0.5, 0.5]]).tolist()
        [0.75, 0.5]
        >>> confidence_score("logit_margin", logits=[[3.0, 1.0], [0.0, 0.5]]).tolist()
        [2.0, 0.5]
    """
    if name not in SCORES:
        raise InputError(f"name: expected one of {', '.join(SCORES)}, got {name!r}")
    score = SCORES[name]
    if logits is not None and probs is None:
        blocks = (z.double() for z in check_logits(logits).split(_BLOCK))
        if score.reads == "probs":
            blocks = (z.softmax(dim=1) for z in blocks)
    elif probs is not None and logits is None:
        if score.reads == "logits":
            raise InputError(f"{name}: expected logits, got probs, which do not tell how large logits were")
        blocks = (p.double() for p in check_probs(probs).split(_BLOCK))
    else:
        raise InputError(
            f"arguments: expected either probs or logits, got {'neither' if probs is None else 'both'}"
        )
    return torch.cat([score.function(block) for block in blocks])
