"""Beta calibration (Kull, Silva Filho & Flach, "Beyond Sigmoids", AISTATS 2017)."""

import math
from collections.abc import Sequence
from typing import Self, Unpack

import torch
from torch import Tensor

from calibrant.inputs import ArrayLike, check_number
from calibrant.posthoc.fitting.binary import Mode, binary_questions, log_sigmoids
from calibrant.posthoc.fitting.logistic import fit_logistic, refuse_separable
from calibrant.posthoc.fitting.score_map import ScoreMap
from calibrant.posthoc.fitting.stored import NOT_NEGATIVE, Numbers, declare
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads


class BetaCalibration(ScoreMap):
    r"""Bend the probability of each class at 0 and at 1 by different amounts; the predicted class may change.

    .. math:: \log\frac{q_c}{1 - q_c} = a_c \log p_c - b_c \log(1 - p_c) + \gamma_c, \qquad a_c, b_c \ge 0

    and the :math:`q_c` are divided by their sum. With two classes there is one map, of the probability of
    class 1. The map rises, is the likelihood ratio of two beta distributions, and contains the identity
    (:math:`a = b = 1, \gamma = 0`). A class that never occurs in the fitting set gets the map that is
    fitted to all classes together. The model stays uncalibrated if only one class occurs, or if the
    likelihood of the fitting set would fall.
    """

    options = ()

    mode: Mode = "one_vs_rest"
    stored = declare(
        a=Numbers(("m",), NOT_NEGATIVE),
        b=Numbers(("m",), NOT_NEGATIVE),
        intercept=Numbers(("m",)),
    )

    a: Tensor
    b: Tensor
    intercept: Tensor

    def __init__(self, a: Tensor, b: Tensor, intercept: Tensor, active: Tensor, *, n_classes: int) -> None:
        super().__init__("one_vs_rest", active, n_classes=n_classes)
        self.register_buffers(a=a, b=b, intercept=intercept)

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        shrinkage: float = 10.0,
        **rows: Unpack[Rows],
    ) -> Self:
        r"""Fit a logistic regression of each class on :math:`\log p` and :math:`-\log(1 - p)`.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            shrinkage: How strongly each class is pulled to the coefficients that fit all classes together,
                in samples; classes with few samples need it. 0 is the method of the paper.

        Raises:
            FitError: A class can be separated from the rest, and ``shrinkage`` is 0.
        """
        data = cls.data(logits, labels, **rows)
        shrinkage = check_number(shrinkage, "shrinkage", at_least=0)
        questions = binary_questions(data, "one_vs_rest")
        if shrinkage == 0:
            refuse_separable(questions, method="beta calibration")
        theta, shared = fit_logistic(
            questions.scores,
            questions.answers.double(),
            _log_probs,
            identity=(1.0, 1.0, 0.0),
            lower=(0.0, 0.0, -math.inf),
            shrinkage=shrinkage,
            weights=questions.counts,
        )
        own = questions.both_answers
        a, b, intercept = torch.where(own[:, None], theta, shared).unbind(dim=1)
        fitted = cls(a, b, intercept, own.any(), n_classes=data.n_classes)
        return fitted.unless_worse(data, score="nll")

    def mapped(self, scores: Tensor) -> Tensor:
        """Return log-odds bent at both ends."""
        log_p, minus_log_q = _log_probs(scores)
        a, b, intercept = (each.to(scores.dtype) for each in (self.a, self.b, self.intercept))
        return a * log_p + b * minus_log_q + intercept


def _log_probs(scores: Tensor) -> Sequence[Tensor]:
    """Return the log of the probability and minus the log of its complement."""
    log_yes, log_no = log_sigmoids(scores)
    return log_yes, -log_no
