"""Proper scores: minimised in expectation only by the true probabilities."""

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, check_labels, check_logits, check_probs


def negative_log_likelihood(
    probs: ArrayLike | None = None, labels: ArrayLike | None = None, *, logits: ArrayLike | None = None
) -> float:
    r"""Mean surprise at the true class, in nats.

    .. math:: \mathrm{NLL} = -\frac{1}{n} \sum_i \log p_{i, y_i}

    A true class of probability 0 makes it infinite. Logits, passed by name instead of probabilities,
    keep such samples finite: their log-probability does not underflow.

    Example:
        >>> round(negative_log_likelihood([[0.9, 0.1], [0.6, 0.4]], [0, 1]), 4)
        0.5108
        >>> negative_log_likelihood(logits=[[0.0, 5000.0]], labels=[0])
        5000.0
    """
    if labels is None or (probs is None) == (logits is None):
        raise InputError("arguments: expected labels with either probs or logits, got other arguments")
    return float(log_losses(labels, probs=probs, logits=logits).mean()) + 0.0  # no negative zero


def brier_score(probs: ArrayLike, labels: ArrayLike) -> float:
    r"""Mean squared distance between the distribution and the true class, from 0 to 2.

    .. math:: \mathrm{Brier} = \frac{1}{n} \sum_i \sum_c (p_{ic} - [y_i = c])^2

    This is Brier's own sum over all classes; with two classes it is twice the binary form.

    Example:
        >>> round(brier_score([[0.9, 0.1], [0.6, 0.4]], [0, 1]), 4)
        0.37

    References:
        Brier, "Verification of forecasts expressed in terms of probability", 1950.
    """
    return max(0.0, float(squared_errors(probs, labels).mean()))


def log_losses(
    labels: ArrayLike, *, probs: ArrayLike | None = None, logits: ArrayLike | None = None
) -> Tensor:
    """Surprise at each true class, in nats, float64 of shape ``(n,)``."""
    if logits is None:
        assert probs is not None
        return -_of_label(check_probs(probs), labels).clamp(0, 1).log()
    z = check_logits(logits)
    log_sums = [torch.logsumexp(block.double(), dim=1) for block in z.split(8192)]
    return torch.cat(log_sums) - _of_label(z, labels)


def squared_errors(probs: ArrayLike, labels: ArrayLike) -> Tensor:
    """Squared distance of each distribution from its true class, float64 of shape ``(n,)``."""
    p = check_probs(probs)
    # sum (p - onehot)^2 = |p|^2 - 2 p_y + 1, without a table of one-hot rows.
    squares: Tensor = torch.linalg.vector_norm(p, dim=1, dtype=torch.float64).square()
    return squares - 2 * _of_label(p, labels) + 1


def _of_label(table: Tensor, labels: ArrayLike) -> Tensor:
    y = check_labels(labels, n=table.shape[0], k=table.shape[1]).to(table.device)
    return table.gather(1, y[:, None]).squeeze(1).double()
