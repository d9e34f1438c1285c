"""The predicted class and its confidence, taken out of a distribution and put back."""

from typing import NamedTuple

import torch
from torch import Tensor

from calibrant.posthoc.fitting.log_sigmoid import log_sigmoids

# How far, in log-probability, the predicted class stays above the runner-up: more than rounding in float32
# can undo, less than any measure can see.
_LEAD = 1e-5


class TopLabel(NamedTuple):
    """What a row of logits says about its predicted class, and how it shares out the rest.

    Attributes:
        is_top: Whether a class is the predicted one, the first of equals; shape ``(n, k)``.
        log_odds: Log-odds of the predicted class, shape ``(n,)``. They keep apart confidences that float32
            rounds to 1.
        log_share: Log of each other class's share in what the predicted class leaves, shape ``(n, k)``;
            without meaning at the predicted class.
        runner_up: The largest of these, shape ``(n,)``.
    """

    is_top: Tensor
    log_odds: Tensor
    log_share: Tensor
    runner_up: Tensor


def split_top(logits: Tensor) -> TopLabel:
    """Take the predicted class out of each row of logits."""
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    top = z.argmax(dim=1, keepdim=True)
    is_top = torch.arange(z.shape[1], device=z.device) == top
    # Measured from the runner-up, so that large logits lose no digits where the others are told apart.
    z = z - z.masked_fill(is_top, -torch.inf).amax(dim=1, keepdim=True)
    rest = z.masked_fill(is_top, -torch.inf).logsumexp(dim=1, keepdim=True)
    return TopLabel(is_top, (z.gather(1, top) - rest).squeeze(1), z - rest, -rest.squeeze(1))


def join_top(top: TopLabel, log_odds: Tensor) -> Tensor:
    r"""Give the predicted class new log-odds and scale the others to fill what it leaves.

    With confidence :math:`q` and the runner-up's share :math:`\rho` of the rest, the predicted class stays
    the predicted one if :math:`q \ge (1 - q)\,\rho`, that is :math:`q / (1 - q) \ge \rho`. Smaller :math:`q`
    are raised to this bound and a hair more (1e-5 in log-odds), so that the predicted class is still the only
    largest one. The rule is continuous in :math:`q` and in the logits; where it does not bind,
    the confidence is exactly :math:`q`.

    Args:
        top: What :func:`split_top` took apart.
        log_odds: New log-odds of the predicted class, shape ``(n,)``.

    Returns:
        Log-probabilities of shape ``(n, k)``.
    """
    log_q, log_rest = log_sigmoids(torch.maximum(log_odds, top.runner_up + _LEAD)[:, None])
    return torch.where(top.is_top, log_q, log_rest + top.log_share)
