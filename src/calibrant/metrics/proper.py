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
    if logits is not None:
        z = check_logits(logits)
        y = check_labels(labels, n=z.shape[0], k=z.shape[1]).to(z.device)
        log_sums = [torch.logsumexp(block.double(), dim=1) for block in z.split(8192)]
        surprise = torch.cat(log_sums) - _of_label(z, y)
    else:
        assert probs is not None
        p = check_probs(probs)
        y = check_labels(labels, n=p.shape[0], k=p.shape[1]).to(p.device)
        surprise = -_of_label(p, y).clamp(0, 1).log()
    return float(surprise.mean()) + 0.0  # no negative zero


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
    p = check_probs(probs)
    y = check_labels(labels, n=p.shape[0], k=p.shape[1]).to(p.device)
    # sum (p - onehot)^2 = |p|^2 - 2 p_y + 1, without a table of one-hot rows.
    squares = torch.linalg.vector_norm(p, dim=1, dtype=torch.float64).square()
    return max(0.0, float((squares - 2 * _of_label(p, y) + 1).mean()))


def _of_label(table: Tensor, labels: Tensor) -> Tensor:
    return table.gather(1, labels[:, None]).squeeze(1).double()
