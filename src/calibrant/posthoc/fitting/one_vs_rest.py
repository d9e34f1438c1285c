"""One binary question per class, and a distribution from the answers (Zadrozny & Elkan, KDD 2002)."""

import torch
from torch import Tensor

from calibrant.posthoc.fitting.log_sigmoid import log_sigmoids
from calibrant.posthoc.fitting.top_label import split_top


def class_log_odds(logits: Tensor) -> Tensor:
    """Return the log-odds of each class against all others, shape ``(n, k)``.

    Two classes are one question: the log-odds of class 1, shape ``(n, 1)``.
    """
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if z.shape[1] == 2:
        return z[:, 1:] - z[:, :1]
    top = split_top(z)
    # Classes that are not predicted have a probability of at most one half, where log(1 - p) is safe; the
    # predicted one is masked before, because infinities would spoil gradients behind `where`.
    log_p = torch.log_softmax(z, dim=1).masked_fill(top.is_top, -1.0)
    return torch.where(top.is_top, top.log_odds[:, None], log_p - torch.log1p(-log_p.exp()))


def class_answers(labels: Tensor, n_classes: int) -> Tensor:
    """Return the true answers to the questions of :func:`class_log_odds`, in the same shape."""
    if n_classes == 2:
        return labels[:, None] == 1
    return labels[:, None] == torch.arange(n_classes, device=labels.device)


def normalised(log_odds: Tensor) -> Tensor:
    """Divide the probabilities of all classes by their sum; two classes need no such thing.

    Args:
        log_odds: Calibrated log-odds, one column per question of :func:`class_log_odds`.

    Returns:
        Log-probabilities of shape ``(n, k)``.
    """
    log_yes, log_no = log_sigmoids(log_odds)
    if log_odds.shape[1] == 1:
        return torch.cat([log_no, log_yes], dim=1)
    return torch.log_softmax(log_yes, dim=1)
