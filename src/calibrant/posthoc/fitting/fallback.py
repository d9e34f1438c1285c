"""Do no harm: what cannot be learned from a fitting set, or does harm there, leaves the model as it is."""

from typing import Literal, TypeVar

import torch
from torch import Tensor

from calibrant.posthoc.calibrator import Calibrator

C = TypeVar("C", bound=Calibrator)


def both_answers(answers: Tensor) -> Tensor:
    """Return whether each column of answers, shape ``(n, m)``, holds both a yes and a no to learn from."""
    return answers.any(dim=0) & ~answers.all(dim=0)


@torch.no_grad()
def unless_worse(calibrator: C, logits: Tensor, labels: Tensor, *, score: Literal["nll", "brier"]) -> C:
    """Switch a calibrator off if it does worse than the model on its own fitting set.

    The buffer ``active`` says which of its maps are used; the others leave log-odds as they are.

    Args:
        calibrator: A fitted calibrator.
        logits: The logits that it was fitted on.
        labels: Their labels.
        score: What the method sets out to lower: the negative log-likelihood, or the Brier score.
    """
    loss = _nll if score == "nll" else _brier
    if not loss(calibrator(logits), labels) <= loss(torch.log_softmax(logits, dim=1), labels):
        calibrator.get_buffer("active").zero_()
    return calibrator


def _nll(log_probs: Tensor, labels: Tensor) -> float:
    return -float(log_probs.gather(1, labels[:, None]).sum(dtype=torch.float64))


def _brier(log_probs: Tensor, labels: Tensor) -> float:
    """Return the sum of squared errors, without the constant 1 per sample."""
    p = log_probs.exp()
    met = p.gather(1, labels[:, None]).sum(dtype=torch.float64)
    return float(p.square().sum(dtype=torch.float64) - 2 * met)
