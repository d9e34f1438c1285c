"""Proper scores, minimised in expectation only by the true probabilities, and their change by calibration."""

import math
from typing import Literal, Unpack

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, check_choice, check_labelled_logits, check_labels, check_probs
from calibrant.metrics.accuracy import mean
from calibrant.outcomes import Pairs, check_outcomes, checked_weights, log_odds, log_probs, rows_in_cache


def negative_log_likelihood(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    logits: ArrayLike | None = None,
    **pairs: Unpack[Pairs],
) -> float:
    r"""Return the mean negative log-probability of the true class, in nats (NLL).

    .. math:: \mathrm{NLL} = -\frac{1}{n} \sum_i \log p_{i, y_i}

    Probabilities count as at least 1e-12, so that a true class with probability 0 costs 27.6 nats. Pass
    logits instead of probabilities to avoid this: their log-probabilities do not underflow. Of a black box,
    which only gives ``confidence`` and ``correct``, it is the NLL of being right or wrong; there confidences
    of 0 and 1 count as one in a million away.

    Example:
        >>> round(negative_log_likelihood([[0.9, 0.1], [0.6, 0.4]], [0, 1]), 4)
        0.5108
        >>> negative_log_likelihood(logits=[[0.0, 5000.0]], labels=[0])
        5000.0
    """
    weights = pairs.pop("weights", None)
    losses = log_losses(labels, probs=probs, logits=logits, **pairs)
    return mean(losses, checked_weights(weights, len(losses))) + 0.0  # no negative zero


def brier_score(
    probs: ArrayLike | None = None, labels: ArrayLike | None = None, **pairs: Unpack[Pairs]
) -> float:
    r"""Return the mean squared distance between the distribution and the true class, from 0 to 2.

    .. math:: \mathrm{Brier} = \frac{1}{n} \sum_i \sum_c (p_{ic} - [y_i = c])^2

    This is Brier's original sum over all classes; with two classes it is twice the binary form. Of a black
    box, which only gives ``confidence`` and ``correct``, it is the binary form, the mean of
    :math:`(c_i - [\text{right}])^2`.

    Example:
        >>> round(brier_score([[0.9, 0.1], [0.6, 0.4]], [0, 1]), 4)
        0.37

    References:
        Brier, "Verification of forecasts expressed in terms of probability", 1950.
    """
    weights = pairs.pop("weights", None)
    errors = squared_errors(probs, labels, **pairs)
    return max(0.0, mean(errors, checked_weights(weights, len(errors))))


def ranked_probability_score(
    probs: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None
) -> float:
    r"""Return the mean squared distance between cumulative distributions, for classes in an order.

    .. math:: \mathrm{RPS} = \frac{1}{n (k - 1)} \sum_i \sum_{j < k} \Big(\sum_{c \le j} p_{ic} - [y_i \le
        j]\Big)^2

    Unlike the Brier score it tells a near miss from a far one: probability on a neighbour of the true class
    costs less than on a distant class. It is proper, from 0 to 1.

    Example:
        >>> near, far = [[0.0, 1.0, 0.0]], [[0.0, 0.0, 1.0]]
        >>> ranked_probability_score(near, [0]), ranked_probability_score(far, [0])
        (0.5, 1.0)

    References:
        Epstein, "A scoring system for probability forecasts of ranked categories", 1969.
    """
    errors = ranked_errors(probs, labels)
    return mean(errors, checked_weights(weights, len(errors)))


def ranked_errors(probs: ArrayLike, labels: ArrayLike) -> Tensor:
    """Return the ranked probability score of each sample: float64 of shape ``(n,)``."""
    p = check_probs(probs)
    n, k = p.shape
    y = check_labels(labels, n=n, k=k).to(p.device)
    reached = y[:, None] <= torch.arange(k - 1, device=p.device)
    return (p.double().cumsum(dim=1)[:, :-1] - reached.double()).square().sum(dim=1) / (k - 1)


def log_losses(
    labels: ArrayLike | None = None,
    *,
    probs: ArrayLike | None = None,
    logits: ArrayLike | None = None,
    **pairs: Unpack[Pairs],
) -> Tensor:
    """Return the negative log-probability of each true class, in nats: float64 of shape ``(n,)``."""
    if pairs and logits is None:
        outcomes = check_outcomes(probs, labels, **pairs)
        s = log_odds(outcomes.confidence)
        return torch.nn.functional.softplus(torch.where(outcomes.correct, -s, s))
    if labels is None or (probs is None) == (logits is None) or pairs:
        raise InputError(
            "arguments: expected labels with either probs or logits, or confidence with correct, got other "
            "arguments"
        )
    if logits is None:
        assert probs is not None
        return -log_probs(_of_label(check_probs(probs), labels))
    z, y = check_labelled_logits(logits, labels)
    log_sums = [torch.logsumexp(block.double(), dim=1) for block in z.split(rows_in_cache(z))]
    return torch.cat(log_sums) - _of_label(z, y)


def squared_errors(
    probs: ArrayLike | None = None, labels: ArrayLike | None = None, **pairs: Unpack[Pairs]
) -> Tensor:
    """Return the squared distance of each distribution from its true class: float64 of shape ``(n,)``."""
    if pairs or probs is None or labels is None:
        outcomes = check_outcomes(probs, labels, **pairs)
        return (outcomes.confidence.double() - outcomes.correct.double()).square()
    p = check_probs(probs)
    # sum (p - onehot)^2 = |p|^2 - 2 p_y + 1 needs no table of one-hot rows.
    norms = [torch.linalg.vector_norm(each, dim=1, dtype=torch.float64) for each in p.split(rows_in_cache(p))]
    return torch.cat(norms).square() - 2 * _of_label(p, labels) + 1


def _of_label(table: Tensor, labels: ArrayLike) -> Tensor:
    y = check_labels(labels, n=table.shape[0], k=table.shape[1]).to(table.device)
    return table.gather(1, y[:, None]).squeeze(1).double()


_SCORES = {"nll": negative_log_likelihood, "brier": brier_score}


def post_hoc_improvement(
    probs_before: ArrayLike,
    probs_after: ArrayLike,
    labels: ArrayLike,
    *,
    score: Literal["nll", "brier"] = "nll",
    relative: bool = True,
) -> float:
    r"""Return the share of a proper score that calibration removed; positive is better, 0 is no change.

    .. math:: \Phi = \frac{S(p_\mathrm{before}) - S(p_\mathrm{after})}{S(p_\mathrm{before})}

    Unlike a drop in ECE it cannot be achieved by giving up discrimination. Calibration cannot improve the
    refinement part of a proper score, so a gain is a gain in calibration, and lost discrimination lowers it.
    1 is a perfect result. Below 0 calibration did harm; there is no lower bound.

    If the score before is already perfect, the result is 0 if it stays perfect, else minus infinity.

    Args:
        probs_before: Class probabilities of shape ``(n, k)``.
        probs_after: The same after calibration.
        labels: Integer classes of shape ``(n,)``.
        score: ``"nll"`` or ``"brier"``.
        relative: Whether to divide by the score before. PHI in CalArena is the plain difference (``False``),
            which ranks methods on one task in the same way; relative gains can be averaged over tasks.

    Example:
        >>> before, after = [[0.9, 0.1], [0.9, 0.1]], [[0.6, 0.4], [0.6, 0.4]]
        >>> round(post_hoc_improvement(before, after, [0, 1], score="brier"), 4)
        0.3659
        >>> round(post_hoc_improvement(before, after, [0, 1], score="brier", relative=False), 4)
        0.3

    References:
        Berta, Holzmüller, Bach and Jordan, "CalArena: A Large-Scale Post-Hoc Calibration Benchmark",
        arXiv 2605.30188, 2026.
    """
    measure = _SCORES[check_choice(score, "score", _SCORES)]
    before, after = measure(probs_before, labels), measure(probs_after, labels)
    gain = before - after
    if not relative or gain == 0:
        return gain
    return gain / before if before else -math.inf
