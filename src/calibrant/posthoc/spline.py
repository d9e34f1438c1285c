"""Spline calibration (Gupta et al., "Calibration of Neural Networks using Splines", ICLR 2021)."""

import math
from collections.abc import Sequence
from typing import Self, Unpack

import numpy as np
import torch
from torch import Tensor

from calibrant.inputs import ArrayLike, Floats, check_count
from calibrant.posthoc.fitting.binary import Mode, binary_questions
from calibrant.posthoc.fitting.score_map import ScoreMap, interpolate, ragged
from calibrant.posthoc.fitting.sorted_scores import ScoreGroups
from calibrant.posthoc.fitting.stored import ASCENDING, POSITIVE, Numbers, declare
from calibrant.posthoc.fitting.weighing import size_of
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads

_TABLE = 512


class SplineCalibration(ScoreMap):
    r"""Correct confidence by the slope of the smoothed running error.

    Sort the samples by confidence; :math:`h(t)` is the sum of (right - confidence) over the share :math:`t`
    of least confident samples, divided by :math:`n`. It is zero everywhere for a calibrated model; its
    largest size is the Kolmogorov-Smirnov calibration error, and its slope is the correction of the
    confidence at that rank: :math:`q = p + h'(t)`, with :math:`h` a natural cubic spline fitted by least
    squares.

    The new confidence never exceeds the larger of the model's own and :math:`1 - 1/(n + 2)`, the highest that
    :math:`n` samples can show. Confidence does not change if all predictions for the fitting set are right,
    or all wrong, or if the Brier score there would rise.

    By default the predicted class never changes; with ``mode="one_vs_rest"`` every class has a spline of its
    own, and it may.
    """

    preserves_accuracy = True
    options = ("mode", "preserves_accuracy")

    stored = declare(
        knots=Numbers(("m", "b+2"), ASCENDING),
        correction=Numbers(("m", "b+2")),
        limit=Numbers((), POSITIVE, also=("m",)),
    )

    mode: Mode = "top_label"
    knots: Tensor
    correction: Tensor
    limit: Tensor

    def __init__(
        self,
        knots: Tensor,
        correction: Tensor,
        limit: Tensor,
        active: Tensor,
        *,
        mode: Mode = "top_label",
        n_classes: int,
    ) -> None:
        super().__init__(mode, active, n_classes=n_classes)
        self.preserves_accuracy = mode == "top_label"
        self.register_buffers(knots=knots, correction=correction, limit=limit)

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        mode: Mode = "top_label",
        n_knots: int | None = None,
        **rows: Unpack[Rows],
    ) -> Self:
        """Fit the running error of the predicted class, or of every class.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            mode: ``"top_label"`` calibrates the confidence in the predicted class, ``"one_vs_rest"`` the
                probability of every class.
            n_knots: Knots of the spline, evenly spaced over the ranks; by default 6 as in the paper, or with
                fewer than 126 samples the cube root of their number, rounded up.
        """
        data = cls.data(logits, labels, **rows)
        n_knots = None if n_knots is None else check_count(n_knots, "n_knots", at_least=2)
        questions = binary_questions(data, mode)
        curves, sizes = [], []
        for scores, answers, counts, _ in questions.of_same_samples():
            sizes.append(size_of(scores, counts))
            curves += [
                _correction(scores[:, [c]], answers[:, [c]], counts, n_knots) for c in range(scores.shape[1])
            ]
        columns = torch.cat([torch.full((len(knots),), c) for c, (knots, _) in enumerate(curves)])
        knots, correction = (torch.cat(parts) for parts in zip(*curves, strict=True))
        fitted = cls(
            ragged(columns, knots, len(curves), fill=torch.inf).to(data.labels.device),
            ragged(columns, correction, len(curves), fill=0.0).to(data.labels.device),
            _limit(sizes).to(data.labels.device),
            questions.both_answers,
            mode=mode,
            n_classes=data.n_classes,
        )
        return fitted.unless_worse(data, score="brier")

    def mapped(self, scores: Tensor) -> Tensor:
        """Return the log-odds of the corrected confidence, within what the samples can show."""
        correction = interpolate(scores, self.knots, self.correction)
        tiny = torch.finfo(scores.dtype).tiny
        yes, no = torch.sigmoid(scores) + correction, torch.sigmoid(-scores) - correction
        mapped = yes.clamp(min=tiny).log() - no.clamp(min=tiny).log()
        limit = self.limit.to(scores.dtype)
        return torch.clamp(mapped, torch.minimum(scores, -limit), torch.maximum(scores, limit))


def _limit(sizes: Sequence[float]) -> Tensor:
    """Return the highest log-odds that fitting sets of these sizes can show: one number if it is one set."""
    limits = torch.tensor([math.log(max(size, 1.0) + 1.0) for size in sizes], dtype=torch.float64)
    return limits[0] if len(limits) == 1 else limits


def _correction(
    scores: Tensor, answers: Tensor, weights: Tensor | None, n_knots: int | None
) -> tuple[Tensor, Tensor]:
    """Return scores of one question in ascending order, at least two, and the correction at each."""
    if not len(scores):  # a question that is never asked
        return torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    if n_knots is None:
        n_knots = max(2, min(6, math.ceil(round(size_of(scores, weights) ** (1 / 3), 9))))
    groups = ScoreGroups.of(scores, answers, None if weights is None else weights[:, None])
    n = groups.count.sum()
    believed = groups.count * torch.sigmoid(torch.from_numpy(groups.low)).numpy()
    rank = np.append(0.0, np.cumsum(groups.count)) / n
    error = np.append(0.0, np.cumsum(groups.hits - believed)) / n
    # Within a tie any order of its samples is as good, so the running error is a straight line there.
    every = np.linspace(0.0, 1.0, round(n) + 1)
    at_knots = np.linalg.lstsq(_natural_splines(every, n_knots), np.interp(every, rank, error), rcond=None)[0]
    slope = np.diff(_natural_splines(rank, n_knots) @ at_knots) / np.diff(rank)
    chosen = np.unique(np.linspace(0, len(groups) - 1, _TABLE).round().astype(int))
    chosen = np.append(chosen, chosen[-1:]) if len(chosen) == 1 else chosen
    return torch.from_numpy(groups.low[chosen]), torch.from_numpy(slope[chosen])


def _natural_splines(x: Floats, n_knots: int) -> Floats:
    """Return the natural cubic splines on even knots from 0 to 1 that are 1 at one knot and 0 at the others.

    Column ``j`` is that of knot ``j``. A spline is linear in its values at the knots, and so are its second
    derivatives there, which are 0 at both ends and otherwise make the slope continuous.
    """
    gap, one = 1 / (n_knots - 1), np.eye(n_knots)
    bend = np.zeros((n_knots, n_knots))
    inner = np.eye(n_knots - 2) * 2 / 3 + (np.eye(n_knots - 2, k=1) + np.eye(n_knots - 2, k=-1)) / 6
    bend[1:-1] = np.linalg.solve(inner, np.diff(one, 2, axis=0)) / gap**2
    place = np.clip(np.floor(x / gap).astype(np.intp), 0, n_knots - 2)
    right = (x / gap - place)[:, None]
    left = 1 - right
    curved = (left**3 - left) * bend[place] + (right**3 - right) * bend[place + 1]
    return np.asarray(left * one[place] + right * one[place + 1] + gap**2 / 6 * curved)
