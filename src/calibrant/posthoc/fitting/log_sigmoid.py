"""The logs of a probability and of its complement, from log-odds."""

import torch
from torch import Tensor


def log_sigmoids(log_odds: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probability of yes and that of no, both finite for any finite log-odds.

    Written out because ONNX knows no log-sigmoid: the exported graph would take the log of a sigmoid, which
    is minus infinity below -104.
    """
    tail = torch.log1p(torch.exp(-log_odds.abs()))
    return log_odds.clamp(max=0) - tail, -log_odds.clamp(min=0) - tail
