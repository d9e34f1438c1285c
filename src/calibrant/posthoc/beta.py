"""Beta calibration (Kull, Silva Filho & Flach, "Beyond Sigmoids", AISTATS 2017)."""

import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from calibrant.inputs import ArrayLike
from calibrant.posthoc.calibrator import Calibrator, check_fitting_set
from calibrant.posthoc.fitting.fallback import both_answers, unless_worse
from calibrant.posthoc.fitting.log_sigmoid import log_sigmoids
from calibrant.posthoc.fitting.logistic import fit_logistic, refuse_separable
from calibrant.posthoc.fitting.one_vs_rest import class_answers, class_log_odds, normalised
from calibrant.posthoc.fitting.smoothing import check_strength


class BetaCalibration(Calibrator):
    r"""Bend the probability of each class at 0 and at 1 by different amounts; the predicted class may change.

    .. math:: \log\frac{q_c}{1 - q_c} = a_c \log p_c - b_c \log(1 - p_c) + \gamma_c, \qquad a_c, b_c \ge 0

    and the :math:`q_c` are divided by their sum. With two classes there is one map, of the probability of
    class 1. The map rises, is the likelihood ratio of two beta distributions, and contains the identity
    (:math:`a = b = 1, \gamma = 0`). A class that never occurs in the fitting set has the map that all classes
    share. The model's probabilities stay as they are if only one class occurs, or if their likelihood on the
    fitting set would fall.
    """

    a: Tensor
    b: Tensor
    intercept: Tensor
    active: Tensor

    def __init__(self, a: Tensor, b: Tensor, intercept: Tensor, active: Tensor, *, n_classes: int) -> None:
        super().__init__(n_classes=n_classes)
        self.register_buffer("a", a)
        self.register_buffer("b", b)
        self.register_buffer("intercept", intercept)
        self.register_buffer("active", active)

    @classmethod
    def fit(
        cls,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        features: ArrayLike | None = None,
        seed: int = 0,
        shrinkage: float = 10.0,
    ) -> Self:
        r"""Fit a logistic regression of each class on :math:`\log p` and :math:`-\log(1 - p)`.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            features: Not used.
            seed: Not used: nothing here is random.
            shrinkage: How strongly each class is pulled to the coefficients that fit all classes together,
                in samples; classes with few samples need it. 0 is the method of the paper.

        Raises:
            FitError: A class can be separated and nothing holds the fit back.
        """
        z, y = check_fitting_set(logits, labels)
        shrinkage = check_strength(shrinkage, "shrinkage")
        scores, answers = class_log_odds(z), class_answers(y, z.shape[1])
        if shrinkage == 0:
            refuse_separable(scores, answers, method="beta calibration")
        theta, shared = fit_logistic(
            scores,
            answers.double(),
            _log_probs,
            identity=(1.0, 1.0, 0.0),
            lower=(0.0, 0.0, -math.inf),
            shrinkage=shrinkage,
        )
        theta = torch.where(both_answers(answers)[:, None], theta, shared)
        a, b, intercept = theta.unbind(dim=1)
        fitted = cls(a, b, intercept, both_answers(answers).any(), n_classes=z.shape[1])
        return unless_worse(fitted, z, y, score="nll")

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        s = class_log_odds(logits)
        log_p, minus_log_q = _log_probs(s)
        a, b, intercept = (each.to(s.dtype) for each in (self.a, self.b, self.intercept))
        return normalised(torch.where(self.active, a * log_p + b * minus_log_q + intercept, s))


def _log_probs(scores: Tensor) -> Sequence[Tensor]:
    """Return the log of the probability and minus the log of its complement."""
    log_yes, log_no = log_sigmoids(scores)
    return log_yes, -log_no
