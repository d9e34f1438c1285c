"""The confidence of predictions, with a gradient: score functions, and confidence with correctness."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.errors import InputError
from calibrant.losses.parts.batch import FAR_BELOW, IGNORED, rows
from calibrant.losses.parts.global_batch import global_rows
from calibrant.losses.parts.known_gradient import ValuesAndGradient, with_known_gradient
from calibrant.outcomes import ProbabilityScore, margin

# What configurations called two of the scores before the metrics and the losses had one vocabulary.
_FORMER_NAMES = {"margin": "softmax_margin", "neg_entropy": "negative_entropy"}


def confidence_score(log_probs: Tensor, score: ProbabilityScore) -> Tensor:
    r"""Return the score of each sample, from 0 to 1, given log-probabilities of shape ``(n, k)``.

    ``"msp"`` is the largest probability, ``"softmax_margin"`` its distance from the second largest, and
    ``"negative_entropy"`` the negative entropy :math:`\sum_k p_k \log p_k`, rescaled from its range
    :math:`[-\log K, 0]` to the unit interval, so that bins and widths mean the same for each.

    Example:
        >>> confidence_score(torch.tensor([[0.75, 0.25]]).log(), "softmax_margin")
        tensor([0.5000])
    """
    name = _FORMER_NAMES.get(score, score)
    if name == "msp" or (name == "softmax_margin" and log_probs.shape[1] == 1):
        return log_probs.max(dim=1).values.exp()
    if name == "softmax_margin":
        return margin(log_probs.topk(2, dim=1).values.exp())
    if name == "negative_entropy":
        return _rescaled_negative_entropy(log_probs)
    raise InputError(f"score: expected 'msp', 'softmax_margin' or 'negative_entropy', got {score!r}")


def score_range(score: ProbabilityScore, n_classes: int) -> float:
    r"""Return the length of a score's own range: :math:`\log K` for the negative entropy, otherwise 1.

    Example:
        >>> round(score_range("negative_entropy", 200), 2)
        5.3
    """
    is_entropy = _FORMER_NAMES.get(score, score) == "negative_entropy"
    return math.log(max(n_classes, 2)) if is_entropy else 1.0


def _rescaled_negative_entropy(log_probs: Tensor) -> Tensor:
    """Return one minus the entropy as a share of the largest possible entropy."""
    most = score_range("negative_entropy", log_probs.shape[1])

    def definition(log_p: Tensor) -> Tensor:
        return 1 + (log_p.exp() * log_p.clamp_min(-FAR_BELOW)).sum(dim=1) / most

    def shortcut(log_p: Tensor) -> ValuesAndGradient:
        p = log_p.exp()
        # Not a dot product, which autocast would compute in half precision.
        surprise = log_p.clamp_min(-FAR_BELOW).mul_(p)
        values = 1 + surprise.sum(dim=1) / most
        slope = surprise.add_(p)  # by the logarithm: p (1 + log p)
        return values, lambda outer: (outer / most)[:, None] * slope

    return with_known_gradient(log_probs, None, definition=definition, shortcut=shortcut)


def top_label_confidence(
    logits: Tensor, labels: Tensor, *, ignore_index: int = IGNORED, log: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the confidence in the predicted class, and 1 where it was correct, for the global batch.

    Both have shape ``(n,)`` and double precision, because sums over them cancel. Ignored samples are left
    out; while torch compiles they stay, and are false in the third value, which is None otherwise. The
    samples of all processes are included, with the gradient of the global batch. With ``log``, the logarithm
    of the confidence is returned.
    """
    z, y, kept = rows(logits, labels, ignore_index=ignore_index)
    confidence, predicted = (F.log_softmax if log else F.softmax)(z, dim=1).max(dim=1)
    pairs = torch.stack([confidence.double(), (predicted == y).double()], dim=1)
    confidence, correct = global_rows(pairs).unbind(dim=1)
    return confidence, correct, kept
