"""Isotonic calibration (Zadrozny & Elkan, "Transforming Classifier Scores", KDD 2002)."""

from typing import Self, Unpack

import numpy as np
import torch
from torch import Tensor

from calibrant.inputs import ArrayLike, Floats, check_number
from calibrant.posthoc.fitting.binary import Mode, binary_questions
from calibrant.posthoc.fitting.score_map import ScoreMap, interpolate, ragged
from calibrant.posthoc.fitting.sorted_scores import ScoreGroups, smoothed_log_odds
from calibrant.posthoc.fitting.stored import ASCENDING, Numbers, declare
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads


class IsotonicCalibration(ScoreMap):
    """Replace confidence by the best-fitting rising curve, a step function unless it is centred.

    Modes are those of :class:`~calibrant.posthoc.fitting.score_map.ScoreMap`. Every class keeps the model's
    probability if the Brier score of the fitting set would rise.
    """

    stored = declare(knots=Numbers(("m", "b+2"), ASCENDING), values=Numbers(("m", "b+2")))

    knots: Tensor
    values: Tensor

    def __init__(self, mode: Mode, knots: Tensor, values: Tensor, active: Tensor, *, n_classes: int) -> None:
        super().__init__(mode, active, n_classes=n_classes)
        self.register_buffers(knots=knots, values=values)

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        mode: Mode = "top_label",
        smoothing: float = 1.0,
        centred: bool = False,
        **rows: Unpack[Rows],
    ) -> Self:
        """Find the rising step function nearest to the answers, by pooling neighbours that violate the order.

        Between two steps the curve is linear in log-odds; beyond the outermost scores it is constant.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            mode: ``"top_label"`` calibrates the confidence in the predicted class, ``"one_vs_rest"`` the
                probability of every class.
            smoothing: This many samples, half of them right, are added to each step, so that a step of few
                samples does not become certain. 0 is plain isotonic regression.
            centred: Shrink each flat piece to one point at the mean of its scores, so that the curve rises
                strictly between these points: centred isotonic regression (Oron & Flournoy, 2017). As in the
                paper, pieces at exactly 0 or 1 stay flat, which only plain isotonic regression has.
        """
        data = cls.data(logits, labels, **rows)
        smoothing = check_number(smoothing, "smoothing", at_least=0)
        questions = binary_questions(data, mode)
        groups = ScoreGroups.of(questions.scores, questions.answers, questions.counts)
        knots, values = _rising_curve(groups, questions.scores.shape[1], smoothing, centred=centred)
        active = questions.both_answers
        fitted = cls(
            mode,
            knots.to(data.labels.device),
            values.to(data.labels.device),
            active,
            n_classes=data.n_classes,
        )
        return fitted.unless_worse(data, score="brier")

    def mapped(self, scores: Tensor) -> Tensor:
        """Return the height of the curve at each score."""
        return interpolate(scores, self.knots, self.values)


def _rising_curve(
    groups: ScoreGroups, n_columns: int, smoothing: float, *, centred: bool
) -> tuple[Tensor, Tensor]:
    """Return the ends of the flat pieces of each column and their log-odds, both of shape ``(m, b)``."""
    blocks = groups.pooled(groups.hits / groups.count)
    while True:
        values = smoothed_log_odds(torch.from_numpy(blocks.hits), torch.from_numpy(blocks.count), smoothing)
        # Smoothing can reverse the order of neighbours; then they are pooled and smoothed together.
        fewer = blocks.pooled(torch.sigmoid(values).numpy())
        if len(fewer) == len(blocks):
            break
        blocks = fewer
    columns = torch.from_numpy(blocks.column).repeat_interleave(2)
    low, high = _shrunk_ends(blocks, smoothing) if centred else (blocks.low, blocks.high)
    ends = torch.from_numpy(np.stack([low, high], axis=1).ravel())
    knots = ragged(columns, ends, n_columns, fill=torch.inf)
    knots[torch.bincount(columns, minlength=n_columns) == 0] = 0.0  # a question that is never asked
    return knots, ragged(columns, values.repeat_interleave(2), n_columns, fill=0.0)


def _shrunk_ends(blocks: ScoreGroups, smoothing: float) -> tuple[Floats, Floats]:
    """Return both ends of what centred isotonic regression leaves of each flat piece: mostly one point."""
    one_answer = ((blocks.hits == 0) | (blocks.hits == blocks.count)) & (smoothing == 0)
    new_column = np.diff(blocks.column, prepend=-1, append=-1) != 0
    low = np.where(one_answer | new_column[:-1], blocks.low, blocks.mean)
    high = np.where(one_answer | new_column[1:], blocks.high, blocks.mean)
    return low, high
