"""Spline calibration (Gupta et al., "Calibration of Neural Networks using Splines", ICLR 2021)."""

import math
from collections.abc import Callable
from typing import Self

import numpy as np
import torch
from torch import Tensor

from calibrant.inputs import ArrayLike, Floats, check_count
from calibrant.posthoc.calibrator import Calibrator, check_fitting_set
from calibrant.posthoc.fitting.binary import binary_answers
from calibrant.posthoc.fitting.fallback import both_answers, unless_worse
from calibrant.posthoc.fitting.log_sigmoid import log_sigmoids
from calibrant.posthoc.fitting.piecewise import interpolate
from calibrant.posthoc.fitting.score_groups import group_scores
from calibrant.posthoc.fitting.top_label import join_top, split_top

_TABLE = 512


class SplineCalibration(Calibrator):
    r"""Add to the confidence what a smooth curve of the running error says is missing; no class changes.

    Sort the samples by confidence; :math:`h(t)` is the sum of (right - confidence) over the share :math:`t`
    of least sure samples, divided by :math:`n`. It is zero everywhere for a calibrated model, its largest
    size is the Kolmogorov-Smirnov calibration error, and its slope is what the confidence lacks at that
    rank: :math:`q = p + h'(t)`, with :math:`h` a natural cubic spline fitted by least squares.

    The confidence gets no surer than the model or than :math:`n` samples can show, :math:`1 - 1/(n + 2)`,
    whichever is surer. It stays as it is if all predictions for the fitting set are right, or all wrong, or
    if the Brier score there would rise.
    """

    preserves_accuracy = True

    knots: Tensor
    correction: Tensor
    limit: Tensor
    active: Tensor

    def __init__(
        self, knots: Tensor, correction: Tensor, limit: Tensor, active: Tensor, *, n_classes: int
    ) -> None:
        super().__init__(n_classes=n_classes)
        self.register_buffer("knots", knots)
        self.register_buffer("correction", correction)
        self.register_buffer("limit", limit)
        self.register_buffer("active", active)

    @classmethod
    def fit(
        cls,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        features: ArrayLike | None = None,
        seed: int = 0,
        n_knots: int | None = None,
    ) -> Self:
        """Fit the running error of the predicted class.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            features: Not used.
            seed: Not used: nothing here is random.
            n_knots: Knots of the spline, evenly spaced over the ranks; by default 6 as in the paper, or with
                fewer than 126 samples the cube root of their number, rounded up.
        """
        z, y = check_fitting_set(logits, labels)
        if n_knots is None:
            n_knots = max(2, min(6, math.ceil(round(len(z) ** (1 / 3), 9))))
        n_knots = check_count(n_knots, "n_knots", at_least=2)
        answers = binary_answers(z, y, "top_label")
        groups = group_scores(split_top(z).log_odds[:, None], answers)
        believed = groups.count * torch.sigmoid(torch.from_numpy(groups.low)).numpy()
        rank = np.append(0.0, np.cumsum(groups.count)) / len(z)
        error = np.append(0.0, np.cumsum(groups.hits - believed)) / len(z)
        slope = _spline_slope(rank, error, np.linspace(0.0, 1.0, n_knots))
        middle = (rank[1:] + rank[:-1]) / 2
        chosen = np.unique(np.linspace(0, len(groups) - 1, _TABLE).round().astype(int))
        chosen = np.append(chosen, chosen[-1:]) if len(chosen) == 1 else chosen
        fitted = cls(
            torch.from_numpy(groups.low[chosen])[None].to(z.device),
            torch.from_numpy(slope(middle[chosen]))[None].to(z.device),
            torch.tensor(math.log(len(z) + 1.0), dtype=torch.float64, device=z.device),
            both_answers(answers),
            n_classes=z.shape[1],
        )
        return unless_worse(fitted, z, y, score="brier")

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        top = split_top(logits)
        s = top.log_odds[:, None]
        correction = interpolate(s, self.knots, self.correction)
        tiny = torch.finfo(s.dtype).tiny
        log_yes, log_no = log_sigmoids(s)
        yes, no = log_yes.exp() + correction, log_no.exp() - correction
        mapped = yes.clamp(min=tiny).log() - no.clamp(min=tiny).log()
        limit = self.limit.to(s.dtype)
        mapped = torch.minimum(torch.maximum(mapped, torch.minimum(s, -limit)), torch.maximum(s, limit))
        return join_top(top, torch.where(self.active, mapped, s)[:, 0])


def _spline_slope(x: Floats, y: Floats, knots: Floats) -> Callable[[Floats], Floats]:
    """Return the slope of the natural cubic spline with given knots that is nearest to points in squares."""
    from scipy.interpolate import CubicSpline

    # The spline is linear in its values at the knots, so each knot's unit vector gives one column.
    basis = CubicSpline(knots, np.eye(len(knots)), bc_type="natural")
    values = np.linalg.lstsq(basis(x), y, rcond=None)[0]
    slope: Callable[[Floats], Floats] = CubicSpline(knots, values, bc_type="natural").derivative()
    return slope
