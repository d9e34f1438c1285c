"""Isotonic calibration (Zadrozny & Elkan, "Transforming Classifier Scores", KDD 2002)."""

from typing import Self

import numpy as np
import torch
from torch import Tensor

from calibrant.inputs import ArrayLike
from calibrant.posthoc.calibrator import Calibrator, check_fitting_set
from calibrant.posthoc.fitting.binary import Mode, binary_answers, binary_scores, check_mode, from_binary
from calibrant.posthoc.fitting.fallback import both_answers, unless_worse
from calibrant.posthoc.fitting.piecewise import interpolate, ragged
from calibrant.posthoc.fitting.score_groups import ScoreGroups, group_scores
from calibrant.posthoc.fitting.smoothing import check_strength, smoothed_log_odds


class IsotonicCalibration(Calibrator):
    """Replace confidence by the best-fitting rising curve; equal for all samples of a flat piece.

    With ``mode="top_label"`` the predicted class never changes; with ``"one_vs_rest"`` it may. A class that
    never occurs in the fitting set (or always does) keeps the model's own probability, and every class does
    if the Brier score of the fitting set would rise.
    """

    options = ("mode",)

    mode: Mode
    knots: Tensor
    values: Tensor
    active: Tensor

    def __init__(self, mode: Mode, knots: Tensor, values: Tensor, active: Tensor, *, n_classes: int) -> None:
        super().__init__(n_classes=n_classes)
        self.mode = mode
        self.register_buffer("knots", knots)
        self.register_buffer("values", values)
        self.register_buffer("active", active)

    @classmethod
    def fit(
        cls,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        features: ArrayLike | None = None,
        seed: int = 0,
        mode: Mode = "top_label",
        smoothing: float = 1.0,
    ) -> Self:
        """Find the rising step function nearest to the answers, by pooling neighbours that violate the order.

        Between two steps the curve is linear in log-odds; beyond the outermost scores it is constant.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            features: Not used.
            seed: Not used: nothing here is random.
            mode: ``"top_label"`` calibrates the confidence in the predicted class, ``"one_vs_rest"`` the
                probability of every class.
            smoothing: This many more samples, half of them right, are added to each step, so that a step of
                few samples does not claim certainty. 0 is plain isotonic regression.
        """
        z, y = check_fitting_set(logits, labels)
        check_mode(mode)
        smoothing = check_strength(smoothing, "smoothing")
        answers = binary_answers(z, y, mode)
        knots, values = _rising_curve(group_scores(binary_scores(z, mode), answers), smoothing)
        active = both_answers(answers)
        fitted = cls(mode, knots.to(z.device), values.to(z.device), active, n_classes=z.shape[1])
        return unless_worse(fitted, z, y, score="brier")

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        s = binary_scores(logits, self.mode)
        mapped = interpolate(s, self.knots, self.values)
        return from_binary(logits, torch.where(self.active, mapped, s), self.mode)


def _rising_curve(groups: ScoreGroups, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the ends of the flat pieces of each column and their log-odds, both of shape ``(m, b)``."""
    blocks = groups.pooled(groups.hits / groups.count)
    while True:
        values = smoothed_log_odds(torch.from_numpy(blocks.hits), torch.from_numpy(blocks.count), smoothing)
        # Smoothing can turn the order of neighbours around; then they are pooled and smoothed as one.
        fewer = blocks.pooled(torch.sigmoid(values).numpy())
        if len(fewer) == len(blocks):
            break
        blocks = fewer
    n_columns = int(blocks.column[-1]) + 1
    columns = torch.from_numpy(blocks.column).repeat_interleave(2)
    ends = torch.from_numpy(np.stack([blocks.low, blocks.high], axis=1).ravel())
    return (
        ragged(columns, ends, n_columns, fill=torch.inf),
        ragged(columns, values.repeat_interleave(2), n_columns, fill=0.0),
    )
