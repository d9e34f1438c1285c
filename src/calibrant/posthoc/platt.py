"""Platt scaling (Platt, "Probabilistic Outputs for Support Vector Machines", 1999)."""

import math
from collections.abc import Sequence
from typing import Self, Unpack

import torch
from torch import Tensor

from calibrant.inputs import ArrayLike, check_number
from calibrant.posthoc.fitting.binary import Mode, Questions, binary_questions
from calibrant.posthoc.fitting.logistic import fit_logistic, refuse_separable
from calibrant.posthoc.fitting.score_map import ScoreMap
from calibrant.posthoc.fitting.stored import Numbers, declare
from calibrant.posthoc.fitting.weighing import size_of
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads


class PlattScaling(ScoreMap):
    r"""Stretch and shift the log-odds of each class; the predicted class may change.

    .. math:: q_c = \sigma(a_c s_c + b_c), \qquad s_c = \log\frac{p_c}{1 - p_c}

    and the :math:`q_c` are divided by their sum. With two classes there is one map, of the log-odds of class
    1. A class that never occurs in the fitting set gets the map that is fitted to all classes together. The
    model stays uncalibrated if only one class occurs, or if the likelihood of the fitting set would fall.
    """

    options = ()

    mode: Mode = "one_vs_rest"
    stored = declare(slope=Numbers(("m",)), intercept=Numbers(("m",)))

    slope: Tensor
    intercept: Tensor

    def __init__(self, slope: Tensor, intercept: Tensor, active: Tensor, *, n_classes: int) -> None:
        super().__init__("one_vs_rest", active, n_classes=n_classes)
        self.register_buffers(slope=slope, intercept=intercept)

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        smooth_targets: bool = False,
        shrinkage: float = 10.0,
        **rows: Unpack[Rows],
    ) -> Self:
        r"""Fit a logistic regression of each class on its log-odds.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            smooth_targets: Use Platt's targets :math:`(n_+ + 1)/(n_+ + 2)` and :math:`1/(n_- + 2)` instead of
                1 and 0. With many classes they give each absent class too much.
            shrinkage: How strongly each class is pulled to the :math:`a, b` that fit all classes together, in
                samples. Classes with few samples need it: fitted on 50 CIFAR-10 samples, 0.3 makes new
                data less likely on average than the model does, 10 more likely. 0 is Platt's method.

        Raises:
            FitError: A class can be separated from the rest, ``shrinkage`` is 0 and targets are not smoothed.
        """
        data = cls.data(logits, labels, **rows)
        shrinkage = check_number(shrinkage, "shrinkage", at_least=0)
        questions = binary_questions(data, "one_vs_rest")
        if shrinkage == 0 and not smooth_targets:
            refuse_separable(questions, method="Platt scaling")
        theta, shared = fit_logistic(
            questions.scores,
            _smoothed(questions) if smooth_targets else questions.answers.double(),
            _identity,
            identity=(1.0, 0.0),
            lower=(-math.inf, -math.inf),
            shrinkage=shrinkage,
            weights=questions.counts,
        )
        own = questions.both_answers
        theta = torch.where(own[:, None], theta, shared)
        fitted = cls(theta[:, 0], theta[:, 1], own.any(), n_classes=data.n_classes)
        return fitted.unless_worse(data, score="nll")

    def mapped(self, scores: Tensor) -> Tensor:
        """Return stretched and shifted log-odds."""
        return self.slope.to(scores.dtype) * scores + self.intercept.to(scores.dtype)


def _identity(scores: Tensor) -> Sequence[Tensor]:
    return (scores,)


def _smoothed(questions: Questions) -> Tensor:
    """Replace certain targets by the posterior means that Platt proposed."""
    positive, negative = [], []
    for _, answers, weights, _ in questions.of_same_samples():
        yes = answers.sum(dim=0, dtype=torch.float64) if weights is None else weights @ answers.double()
        positive.append(yes)
        negative.append(size_of(answers, weights) - yes)
    yes, no = torch.cat(positive), torch.cat(negative)
    return torch.where(questions.answers, (yes + 1) / (yes + 2), 1 / (no + 2))
