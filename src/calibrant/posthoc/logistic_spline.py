"""Logistic regression on a spline (Lucena, "Spline-Based Probability Calibration", arXiv 1809.07751)."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Self, Unpack

import torch
from torch import Tensor

from calibrant.inputs import ArrayLike, check_count, check_number
from calibrant.posthoc.fitting.binary import Mode, binary_questions, log_sigmoids
from calibrant.posthoc.fitting.logistic import Inputs, fit_logistic, refuse_separable
from calibrant.posthoc.fitting.natural_splines import (
    curved_splines,
    distinct_knots,
    mixed_splines,
    smoothest_mixture,
)
from calibrant.posthoc.fitting.score_map import ScoreMap
from calibrant.posthoc.fitting.sorted_scores import balanced_quantiles
from calibrant.posthoc.fitting.stored import RISING, Numbers, declare
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads

# Strengths of the ridge that are tried, the strongest first.
RIDGES = (1000.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1)

# The outermost knots leave this share of the samples outside, if both answers count equally.
_TAIL = 0.02
_FOLDS = 5
_BINS = 100


class LogisticSpline(ScoreMap):
    r"""Map log-odds by a natural cubic spline with a ridge that cross-validation chooses.

    .. math:: \log\frac{q}{1 - q} = a s + b + \sum_j \theta_j N_j(s)

    with the model's log-odds :math:`s`. The :math:`N_j` are the curved natural cubic splines of some knots,
    straight beyond the outermost ones. Knots are quantiles of the scores, and the same for all classes. A
    ridge on the :math:`\theta_j` is chosen by cross-validated log loss. The curve may fall.

    Modes are those of :class:`~calibrant.posthoc.fitting.score_map.ScoreMap`. A class that never occurs in
    the fitting set gets the map that is fitted to all classes together. The model stays uncalibrated if all
    answers are the same, or if the likelihood of the fitting set would fall.
    """

    stored = declare(knots=Numbers(("b+2",), RISING), coefficients=Numbers(("m", "b+2")))

    knots: Tensor
    coefficients: Tensor

    def __init__(
        self, mode: Mode, knots: Tensor, coefficients: Tensor, active: Tensor, *, n_classes: int
    ) -> None:
        super().__init__(mode, active, n_classes=n_classes)
        self.register_buffers(knots=knots, coefficients=coefficients)

    @classmethod
    def memory(cls, n: int, k: int) -> int:
        """Return about how many bytes a fit needs: the inputs of the regression are computed at once."""
        return 100 * n * k

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        mode: Mode = "one_vs_rest",
        n_knots: int = 6,
        ridge: float | None = None,
        shrinkage: float = 10.0,
        **rows: Unpack[Rows],
    ) -> Self:
        r"""Fit a logistic regression on the log-odds and a spline basis.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            mode: ``"one_vs_rest"`` calibrates the probability of every class, ``"top_label"`` the confidence
                in the predicted class.
            n_knots: Knots of the spline; fewer if the scores have fewer values. The ridge makes the number
                unimportant.
            ridge: How strongly the :math:`\theta_j` are pulled to 0, in samples; much is Platt scaling. By
                default the one of 1000, 100, 30, ..., 0.1 with the lowest log loss of all questions in
                five-fold cross-validation, where scores are rounded to a hundred quantiles.
            shrinkage: How strongly each class is pulled to the coefficients that fit all classes together, in
                samples; classes with few samples need it.

        Raises:
            FitError: A class can be separated from the rest, and ``shrinkage`` is 0.
        """
        data = cls.data(logits, labels, **rows)
        n_knots = check_count(n_knots, "n_knots", at_least=3)
        shrinkage = check_number(shrinkage, "shrinkage", at_least=0)
        questions = binary_questions(data, mode)
        scores, answers, counts = questions.scores, questions.answers, questions.counts
        if shrinkage == 0:
            refuse_separable(questions, method="logistic spline")
        levels = torch.linspace(_TAIL, 1 - _TAIL, n_knots, dtype=torch.float64).tolist()
        knots = distinct_knots(balanced_quantiles(scores, answers, levels, counts))
        mixture = smoothest_mixture(knots)
        regress = partial(
            _regress, inputs=partial(mixed_splines, knots=knots, mixture=mixture), shrinkage=shrinkage
        )
        if ridge is None:
            ridge = _choose_ridge(_Bins(scores, answers, data.dealt(_FOLDS), counts), regress)
        ridge = check_number(ridge, "ridge", at_least=0)
        theta, shared = regress(scores, answers.double(), ridge=ridge, weights=counts)
        own = questions.both_answers
        theta = torch.where(own[:, None], theta, shared)
        theta[:, 1:-1] = theta[:, 1:-1] @ mixture.T
        fitted = cls(mode, knots, theta, own.any(), n_classes=data.n_classes)
        fitted.for_folds = {"ridge": ridge}
        return fitted.unless_worse(data, score="nll")

    def mapped(self, scores: Tensor) -> Tensor:
        """Return the height of the spline at each score."""
        slope, *curved, offset = self.coefficients.to(scores.dtype).unbind(dim=1)
        straight = torch.addcmul(offset, slope, scores)
        if not curved:
            return straight
        bends = curved_splines(scores, self.knots)
        return straight + (torch.stack(curved)[:, None] * bends).sum(dim=0)


def _height(x: Sequence[Tensor], theta: Tensor) -> Tensor:
    """Return the inputs times their coefficients, shape ``(m, d)``, plus the last coefficient."""
    height = theta[:, -1].expand_as(x[0])
    for each, factor in zip(x, theta.T, strict=False):
        height = height + factor * each
    return height


def _regress(
    scores: Tensor,
    targets: Tensor,
    *,
    inputs: Inputs,
    shrinkage: float,
    ridge: float,
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    curved = len(inputs(scores[:1])) - 1
    return fit_logistic(
        scores,
        targets,
        inputs,
        identity=(1.0, *[0.0] * curved, 0.0),
        lower=[-math.inf] * (curved + 2),
        shrinkage=shrinkage,
        ridge=(0.0, *[ridge] * curved, 0.0),
        weights=weights,
    )


def _choose_ridge(bins: "_Bins", regress: partial[tuple[Tensor, Tensor]]) -> float:
    """Return the ridge with the lowest log loss on held-out folds."""
    x = regress.keywords["inputs"](bins.scores)
    losses = [0.0] * len(RIDGES)
    for fold in range(_FOLDS):
        count, hits = bins.count.sum(dim=0) - bins.count[fold], bins.hits.sum(dim=0) - bins.hits[fold]
        for i, ridge in enumerate(RIDGES):
            theta, _ = regress(
                bins.scores, hits / torch.where(count > 0, count, 1), ridge=ridge, weights=count
            )
            log_yes, log_no = log_sigmoids(_height(x, theta))
            held = bins.hits[fold] * log_yes + (bins.count[fold] - bins.hits[fold]) * log_no
            losses[i] -= float(held.sum())
    return RIDGES[losses.index(min(losses))]


class _Bins:
    """Samples of each question counted in bins that all questions share, one set of counts for each fold.

    Attributes:
        scores: Mean score of each bin and question, shape ``(b, m)``.
        count: Samples of each fold, or the sum of what they count, shape ``(f, b, m)``.
        hits: Positive answers among them.
    """

    def __init__(self, scores: Tensor, answers: Tensor, folds: Tensor, counts: Tensor | None) -> None:
        s, m = scores.double(), scores.shape[1]
        levels = torch.arange(1, _BINS, dtype=torch.float64) / _BINS
        edges = balanced_quantiles(scores, answers, levels.tolist(), counts).unique()
        n_bins = len(edges) + 1
        shape = (_FOLDS, n_bins, m)
        place = (folds[:, None] * n_bins + torch.searchsorted(edges, s)) * m + torch.arange(
            m, device=s.device
        )

        def summed(each: Tensor) -> Tensor:
            each = each if counts is None else counts * each
            flat = torch.bincount(place.reshape(-1), each.reshape(-1), minlength=math.prod(shape))
            return flat.reshape(shape)

        self.count, self.hits = summed(torch.ones_like(s)), summed(answers.double())
        total = self.count.sum(dim=0)
        self.scores = summed(s).sum(dim=0) / torch.where(total > 0, total, 1)
