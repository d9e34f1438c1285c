"""Confidence score functions: how sure a model is of a sample, on the scale from 0 to 1."""

import math
from typing import Literal, TypeAlias

from torch import Tensor

from calibrant.errors import InputError
from calibrant.losses.parts.known_gradient import Gradient, with_known_gradient

Score: TypeAlias = Literal["msp", "margin", "neg_entropy"]


def confidence_score(log_probs: Tensor, score: Score) -> Tensor:
    r"""Return the score of each sample, with a gradient, from log-probabilities of shape ``(n, k)``.

    ``"msp"`` is the largest probability, ``"margin"`` its distance from the second largest, and
    ``"neg_entropy"`` the negative entropy :math:`\sum_k p_k \log p_k`, moved from its range
    :math:`[-\log K, 0]` to the unit interval, so that bins and widths mean the same for each.

    Example:
        >>> import torch
        >>> confidence_score(torch.tensor([[0.75, 0.25]]).log(), "margin")
        tensor([0.5000])
    """
    if score == "msp" or (score == "margin" and log_probs.shape[1] == 1):
        return log_probs.max(dim=1).values.exp()
    if score == "margin":
        first, second = log_probs.topk(2, dim=1).values.exp().unbind(dim=1)
        return first - second
    if score == "neg_entropy":
        return _relative_order(log_probs)
    raise InputError(f"score: expected 'msp', 'margin' or 'neg_entropy', got {score!r}")


def _relative_order(log_probs: Tensor) -> Tensor:
    """Return one minus the entropy as a share of the largest possible."""
    most = math.log(max(log_probs.shape[1], 2))

    def definition(log_p: Tensor) -> Tensor:
        return 1 + (log_p.exp() * log_p).sum(dim=1) / most

    def shortcut(log_p: Tensor) -> tuple[Tensor, Gradient]:
        p = log_p.exp()
        surprise = p * log_p  # not a dot product, which autocast would compute in half precision
        values = 1 + surprise.sum(dim=1) / most
        slope = surprise.add_(p)  # by the logarithm: p (1 + log p)
        return values, lambda outer: (outer / most)[:, None] * slope

    return with_known_gradient(log_probs, None, definition=definition, shortcut=shortcut)
