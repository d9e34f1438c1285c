"""Confidence scores: one number per prediction, higher for a more confident prediction.

They rank predictions for selective prediction (:mod:`calibrant.metrics.selective`) and for
out-of-distribution detection (:mod:`calibrant.metrics.ood`). Each score is a function of the rows of a
tensor; :func:`confidence_score` computes a score by name, from any array.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, check_choice, check_logits, check_number, check_probs
from calibrant.outcomes import margin

# Number of rows that are converted to float64 at once.
_BLOCK = 8192


def msp(probs: Tensor) -> Tensor:
    r"""Return the probability of the predicted class, :math:`\max_c p_c` (maximum softmax probability).

    Example:
        >>> msp(torch.tensor([[0.5, 0.25, 0.25]])).tolist()
        [0.5]

    References:
        Hendrycks and Gimpel, "A Baseline for Detecting Misclassified and Out-of-Distribution Examples in
        Neural Networks", ICLR 2017.
    """
    return probs.amax(dim=1).clamp(max=1.0)


def softmax_margin(probs: Tensor) -> Tensor:
    r"""Return the difference of the two largest probabilities, :math:`p_{(1)} - p_{(2)}`.

    Example:
        >>> softmax_margin(torch.tensor([[0.5, 0.25, 0.25]])).tolist()
        [0.25]
    """
    return margin(probs)


def negative_entropy(probs: Tensor) -> Tensor:
    r"""Return the negative entropy of each row, :math:`\sum_c p_c \log p_c`, from :math:`-\log k` to 0.

    Example:
        >>> negative_entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).tolist()
        [-0.6931471824645996, 0.0]
    """
    p = probs.clamp(0, 1)
    return torch.xlogy(p, p).sum(dim=1)


def max_logit(logits: Tensor) -> Tensor:
    r"""Return the largest logit, :math:`\max_c z_c`; unlike the MSP it depends on the level of the logits.

    Example:
        >>> max_logit(torch.tensor([[3.0, 1.0, 0.0]])).tolist()
        [3.0]

    References:
        Hendrycks et al., "Scaling Out-of-Distribution Detection for Real-World Settings", ICML 2022.
    """
    return logits.amax(dim=1)


def logit_margin(logits: Tensor) -> Tensor:
    r"""Return the difference of the two largest logits, :math:`z_{(1)} - z_{(2)}`; it never saturates.

    If all classes but one are masked, it is 1e15.

    Example:
        >>> logit_margin(torch.tensor([[3.0, 1.0, 0.0]])).tolist()
        [2.0]
    """
    return margin(logits).clamp(max=1e15)


def energy(logits: Tensor, *, temperature: float = 1.0) -> Tensor:
    r"""Return the negative free energy, :math:`T \log \sum_c \exp(z_c / T)`; high for familiar inputs.

    Example:
        >>> energy(torch.tensor([[0.0, 0.0]])).tolist()
        [0.6931471824645996]

    References:
        Liu et al., "Energy-based Out-of-distribution Detection", NeurIPS 2020.
    """
    check_number(temperature, "temperature")
    return temperature * torch.logsumexp(logits / temperature, dim=1)


@dataclass(frozen=True)
class Score:
    """A score: its function of a block of rows, whether these are probabilities or logits, and its title."""

    function: Callable[[Tensor], Tensor]
    reads: Literal["probs", "logits"]
    title: str


#: The confidence scores by name, each with what it reads and its title.
SCORES: Mapping[str, Score] = {
    "msp": Score(msp, "probs", "maximum softmax probability"),
    "softmax_margin": Score(softmax_margin, "probs", "softmax margin"),
    "negative_entropy": Score(negative_entropy, "probs", "negative entropy"),
    "max_logit": Score(max_logit, "logits", "maximum logit"),
    "logit_margin": Score(logit_margin, "logits", "logit margin"),
    "energy": Score(energy, "logits", "energy"),
}


def confidence_score(name: str, *, probs: ArrayLike | None = None, logits: ArrayLike | None = None) -> Tensor:
    """Compute one of :data:`SCORES` for each prediction; float64 of shape ``(n,)``.

    Scores of probabilities can also be computed from logits, with a softmax in float64. Scores of logits
    cannot be computed from probabilities, which do not contain the level of the logits.

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
    score = SCORES[check_choice(name, "name", SCORES)]
    if logits is not None and probs is None:
        blocks = (z.double() for z in check_logits(logits).split(_BLOCK))
        if score.reads == "probs":
            blocks = (z.softmax(dim=1) for z in blocks)
    elif probs is not None and logits is None:
        if score.reads == "logits":
            raise InputError(
                f"{name}: expected logits, got probs, which do not contain the level of the logits"
            )
        blocks = (p.double() for p in check_probs(probs).split(_BLOCK))
    else:
        raise InputError(
            f"arguments: expected either probs or logits, got {'neither' if probs is None else 'both'}"
        )
    return torch.cat([score.function(block) for block in blocks])
