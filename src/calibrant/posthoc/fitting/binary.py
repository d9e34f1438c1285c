"""A problem of k classes as binary ones, which a map of one number can calibrate.

``"one_vs_rest"`` asks of every class whether it is the true one, calibrates each answer by itself and
divides by the sum; the predicted class may change. ``"top_label"`` asks only whether the predicted class
is the true one; its confidence is calibrated, the others share the rest as before, and the predicted class
stays.
"""

from typing import Literal, TypeAlias

from torch import Tensor

from calibrant.errors import InputError
from calibrant.posthoc.fitting.one_vs_rest import class_answers, class_log_odds, normalised
from calibrant.posthoc.fitting.top_label import join_top, split_top

Mode: TypeAlias = Literal["one_vs_rest", "top_label"]


def check_mode(mode: str) -> None:
    """Refuse an unknown way of asking."""
    if mode not in ("one_vs_rest", "top_label"):
        raise InputError(f"mode: expected 'one_vs_rest' or 'top_label', got {mode!r}")


def binary_scores(logits: Tensor, mode: Mode) -> Tensor:
    """Return the model's log-odds for each question, shape ``(n, m)``, one column per question."""
    return split_top(logits).log_odds[:, None] if mode == "top_label" else class_log_odds(logits)


def binary_answers(logits: Tensor, labels: Tensor, mode: Mode) -> Tensor:
    """Return the true answer to each question, shape ``(n, m)``."""
    if mode == "top_label":
        return (logits.argmax(dim=1) == labels)[:, None]
    return class_answers(labels, logits.shape[1])


def from_binary(logits: Tensor, log_odds: Tensor, mode: Mode) -> Tensor:
    """Return log-probabilities of shape ``(n, k)`` from calibrated log-odds of shape ``(n, m)``."""
    return join_top(split_top(logits), log_odds[:, 0]) if mode == "top_label" else normalised(log_odds)
