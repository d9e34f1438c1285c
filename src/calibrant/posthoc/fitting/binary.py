"""A problem of k classes as binary questions, each of which a map of one number can calibrate.

``"one_vs_rest"`` asks of every class whether it is the true one, calibrates each answer separately and
divides by the sum (Zadrozny & Elkan, KDD 2002); the predicted class may change. ``"top_label"`` asks only
whether the predicted class is the true one; its confidence is calibrated, the other classes share the rest in
the same proportions as before, and the predicted class never changes.

A sample in which a class is masked is not asked about that class: the map of the class is fitted to the other
samples, and the sum that divides is one over the classes that exist.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.inputs import at_least_float32, check_choice
from calibrant.posthoc.fitting.masked import FAR
from calibrant.posthoc.fitting.weighing import effective_rows, per_question
from calibrant.posthoc.fitting_set import FittingSet

Mode: TypeAlias = Literal["one_vs_rest", "top_label"]

# How far, in log-probability, the predicted class stays above the runner-up: more than rounding in float32
# can undo, less than any measure can see.
_LEAD = 1e-5

# Beyond this log-odds are equal to their softplus, in double precision too.
_NO_TAIL = 40.0


class Questions(NamedTuple):
    """Binary questions about the samples of a fitting set, one column each.

    Attributes:
        scores: The model's log-odds, shape ``(n, m)``; 0 where a question is not asked.
        answers: The true answers, shape ``(n, m)``.
        weights: How much each sample counts, shape ``(n,)``, or None.
        asked: Which questions are asked of each sample, shape ``(n, m)``: not those about masked classes.
            None if all are asked.
    """

    scores: Tensor
    answers: Tensor
    weights: Tensor | None
    asked: Tensor | None

    @property
    def counts(self) -> Tensor | None:
        """How much each answer counts, shape ``(n, m)``, 0 where none is asked for; None if all are equal."""
        return per_question(self.weights, self.answers, self.asked)

    @property
    def both_answers(self) -> Tensor:
        """Whether the samples that are asked a question give both answers, shape ``(m,)``."""
        return both_answers(self.answers, self.asked)

    def of_same_samples(self) -> Iterator["Questions"]:
        """Yield questions that are asked of the same samples: all at once, or else each for itself."""
        if self.asked is None:
            yield self
            return
        for c, rows in enumerate(self.asked.unbind(dim=1)):
            scores, answers = self.scores[rows, c : c + 1], self.answers[rows, c : c + 1]
            weights = effective_rows(self.weights, rows) if bool(rows.any()) else None
            yield Questions(scores, answers, weights, None)


def binary_questions(data: FittingSet, mode: Mode) -> Questions:
    """Ask the questions of a mode about a fitting set."""
    logits, labels, weights = data.logits, data.labels, data.weights
    check_choice(mode, "mode", get_args(Mode))
    if mode == "top_label":
        top, correct = split_top(logits).log_odds[:, None], (logits.argmax(dim=1) == labels)[:, None]
        return Questions(top, correct, weights, None)
    scores, answers = class_log_odds(logits), class_answers(labels, logits.shape[1])
    if not data.masked:
        return Questions(scores, answers, weights, None)
    asked = scores.isfinite()
    return Questions(scores.masked_fill(~asked, 0.0), answers, weights, asked)


def both_answers(answers: Tensor, asked: Tensor | None = None) -> Tensor:
    """Return whether each column of answers, shape ``(n, m)``, holds both a yes and a no to learn from.

    Args:
        answers: The true answers.
        asked: Which of them count; all by default.
    """
    no = ~answers if asked is None else ~answers & asked
    return answers.any(dim=0) & no.any(dim=0)


def class_log_odds(logits: Tensor) -> Tensor:
    """Return the log-odds of each class against all others, shape ``(n, k)``.

    Two classes are one question: the log-odds of class 1, shape ``(n, 1)``. Those of a masked class are
    ``-inf``, and of two classes, one of which is masked, the log-odds are infinite.
    """
    z = at_least_float32(logits)
    if z.shape[1] == 2:
        return z.diff(dim=1)
    top = split_top(z)
    # Classes that are not predicted have a probability of at most one half, where log(1 - p) is safe. The
    # predicted class is masked first, because infinities would spoil gradients behind `where`.
    log_p = torch.log_softmax(z, dim=1).masked_fill(top.is_top, -1.0)
    return torch.where(top.is_top, top.log_odds[:, None], log_p - torch.log1p(-log_p.exp()))


def class_answers(labels: Tensor, n_classes: int) -> Tensor:
    """Return the true answers to the questions of :func:`class_log_odds`, in the same shape."""
    if n_classes == 2:
        return labels[:, None] == 1
    return labels[:, None] == torch.arange(n_classes, device=labels.device)


def normalised(log_odds: Tensor) -> Tensor:
    """Divide the probabilities of all classes by their sum, which two classes do not need.

    Args:
        log_odds: Calibrated log-odds, one column per question of :func:`class_log_odds`.

    Returns:
        Log-probabilities of shape ``(n, k)``.
    """
    if log_odds.shape[1] == 1:
        return -_softplus(torch.cat([log_odds, -log_odds], dim=1))
    return torch.log_softmax(-_softplus(-log_odds), dim=1)


class TopLabel(NamedTuple):
    """The log-odds of a row's predicted class, and the shares of the other classes in the rest.

    Attributes:
        is_top: Whether a class is the predicted one, the first of equals; shape ``(n, k)``.
        log_odds: Log-odds of the predicted class, shape ``(n,)``. They distinguish confidences that float32
            rounds to 1.
        log_share: Log of each other class's share in the probability that the predicted class leaves, shape
            ``(n, k)``; without meaning at the predicted class.
        runner_up: The largest of these, shape ``(n,)``.
    """

    is_top: Tensor
    log_odds: Tensor
    log_share: Tensor
    runner_up: Tensor


def split_top(logits: Tensor) -> TopLabel:
    """Separate the predicted class of each row of logits from the others."""
    z = at_least_float32(logits)
    top = z.argmax(dim=1, keepdim=True)
    is_top = torch.arange(z.shape[1], device=z.device) == top
    # Measured from the runner-up, so that differences between large logits lose no digits.
    # Without a runner-up, if all other classes are masked, the predicted class is far ahead.
    runner_up = z.masked_fill(is_top, -torch.inf).amax(dim=1, keepdim=True)
    z = z - runner_up.clamp(min=-FAR)
    # The largest of the others is 0, so that no exponential overflows.
    rest = z.masked_fill(is_top, -torch.inf).exp().sum(dim=1, keepdim=True).log().clamp(min=-FAR)
    log_share = z - rest
    return TopLabel(is_top, log_share.gather(1, top).squeeze(1), log_share, -rest.squeeze(1))


def join_top(top: TopLabel, log_odds: Tensor) -> Tensor:
    r"""Give the predicted class new log-odds and scale the other classes to fill the rest.

    With confidence :math:`q` and the runner-up's share :math:`\rho` of the rest, the predicted class stays
    the predicted one if :math:`q \ge (1 - q)\,\rho`, that is :math:`q / (1 - q) \ge \rho`. Smaller :math:`q`
    are raised to this bound plus 1e-5 in log-odds, so that the predicted class remains the only largest one.
    The rule is continuous in :math:`q` and in the logits; where it does not bind, the confidence is exactly
    :math:`q`.

    Args:
        top: The result of :func:`split_top`.
        log_odds: New log-odds of the predicted class, shape ``(n,)``.

    Returns:
        Log-probabilities of shape ``(n, k)``.
    """
    log_q, log_rest = log_sigmoids(torch.maximum(log_odds, top.runner_up + _LEAD)[:, None])
    return torch.where(top.is_top, log_q, log_rest + top.log_share)


def log_sigmoids(log_odds: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probability of yes and that of no, both finite for any finite log-odds.

    ONNX has no log-sigmoid: the exported graph would take the log of a sigmoid, which is minus infinity below
    -104. It has a softplus.
    """
    return -_softplus(-log_odds), -_softplus(log_odds)


def _softplus(log_odds: Tensor) -> Tensor:
    return F.softplus(log_odds, threshold=_NO_TAIL)
