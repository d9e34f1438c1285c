"""Masked classes: logits of ``-inf`` for options that a sample does not have.

Their probability is 0 before and after calibration. A fit learns nothing from them: every sum over the
classes of a sample is one over those that exist.
"""

import torch
from torch import Tensor

#: Differences of logits count as at most this. A class so far below has the probability 0 at any temperature,
#: and the square of the number is finite in float32, so that its product with that probability is 0.
FAR = 1e15


def within_reach(logits: Tensor) -> Tensor:
    """Return checked logits in which those that stand for minus infinity, such as -1e30, are ``-FAR``.

    The probability of such a class is 0 in any case.

    Example:
        >>> within_reach(torch.tensor([[2.0, -1e30, 0.5]]))
        tensor([[ 2.0000e+00, -1.0000e+15,  5.0000e-01]])
    """
    if float(logits.amin()) >= -FAR:
        return logits
    is_far = (logits < -FAR) & (logits > -torch.inf) & (logits.amax(dim=1, keepdim=True) > -FAR)
    return logits.masked_fill(is_far, -FAR)


def finite(below: Tensor) -> Tensor:
    """Bring differences of logits of at most 0 within reach, in place: ``-inf`` becomes ``-FAR``."""
    return below.clamp_(min=_lowest(below))


def mean_of_existing(below: Tensor) -> Tensor:
    """Return the mean over the classes that exist of each row, in the type of the row.

    Example:
        >>> mean_of_existing(torch.tensor([[0.0, -2.0, -FAR], [0.0, -3.0, -6.0]]))
        tensor([-1., -3.])
    """
    masked = below <= _lowest(below)
    return below.masked_fill(masked, 0).sum(dim=1) / (~masked).sum(dim=1)


def _lowest(below: Tensor) -> float:
    return max(-FAR, torch.finfo(below.dtype).min)  # float16 ends before


def uniform(logits: Tensor) -> Tensor:
    """Return the probability of each class, shape ``(n, k)``, if all that exist are equally probable.

    Example:
        >>> uniform(torch.tensor([[1.0, 2.0, -torch.inf, 0.5, 0.0]]))
        tensor([[0.2500, 0.2500, 0.0000, 0.2500, 0.2500]])
    """
    exists = (logits > -torch.inf).to(logits.dtype)
    return exists / exists.sum(dim=1, keepdim=True)


def mask_again(log_probs: Tensor, logits: Tensor) -> Tensor:
    """Return log-probabilities that are ``-inf`` where the logits are."""
    return log_probs.masked_fill(logits == -torch.inf, -torch.inf)


def lowest_for_masked(scores: Tensor, masked: Tensor | None = None) -> Tensor:
    """Return scores in which a masked class has the lowest score of the classes that exist in its row.

    Args:
        scores: Scores of shape ``(n, k)``.
        masked: Which classes are masked; those with the score ``-inf`` by default.

    Example:
        >>> lowest_for_masked(torch.tensor([[1.0, 2.0, -torch.inf]]))
        tensor([[1., 2., 1.]])
    """
    masked = scores == -torch.inf if masked is None else masked
    lowest = scores.masked_fill(masked, torch.inf).amin(dim=1, keepdim=True)
    return torch.where(masked, lowest, scores)
