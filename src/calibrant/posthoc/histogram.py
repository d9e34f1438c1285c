"""Histogram binning (Zadrozny & Elkan, "Obtaining Calibrated Probability Estimates", ICML 2001)."""

import math
from typing import Self

import torch
from torch import Tensor

from calibrant.bins import Binning
from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, check_count
from calibrant.posthoc.calibrator import Calibrator, check_fitting_set
from calibrant.posthoc.fitting.binary import Mode, binary_answers, binary_scores, check_mode, from_binary
from calibrant.posthoc.fitting.fallback import both_answers, unless_worse
from calibrant.posthoc.fitting.piecewise import step
from calibrant.posthoc.fitting.smoothing import check_strength, smoothed_log_odds
from calibrant.posthoc.fitting.sorted_scores import SortedScores


class HistogramBinning(Calibrator):
    """Replace confidence by the share of right answers in its bin.

    With ``mode="top_label"`` the predicted class never changes; with ``"one_vs_rest"`` it may. A class that
    never occurs in the fitting set (or always does) keeps the model's own probability, and every class does
    if the Brier score of the fitting set would rise: bins forget the order of the samples in them, which
    can cost more than they repair.
    """

    options = ("mode",)

    mode: Mode
    thresholds: Tensor
    values: Tensor
    active: Tensor

    def __init__(
        self, mode: Mode, thresholds: Tensor, values: Tensor, active: Tensor, *, n_classes: int
    ) -> None:
        super().__init__(n_classes=n_classes)
        self.mode = mode
        self.register_buffer("thresholds", thresholds)
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
        n_bins: int | None = None,
        binning: Binning = "mass",
        smoothing: float = 1.0,
    ) -> Self:
        """Count hits in bins of the model's probability.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            features: Not used.
            seed: Not used: nothing here is random.
            mode: ``"top_label"`` bins the confidence in the predicted class, ``"one_vs_rest"`` the
                probability of every class.
            n_bins: Number of bins; by default the cube root of the number of samples, rounded up, which
                balances what bins blur against how noisy they are.
            binning: ``"mass"`` for bins of equal count, ``"width"`` for equal widths of probability.
            smoothing: This many more samples, half of them right, are added to each bin, so that a bin of few
                samples does not claim certainty. 0 takes the plain share. An empty bin takes its middle.
        """
        z, y = check_fitting_set(logits, labels)
        check_mode(mode)
        smoothing = check_strength(smoothing, "smoothing")
        n_bins = math.ceil(round(len(z) ** (1 / 3), 9)) if n_bins is None else check_count(n_bins, "n_bins")
        answers = binary_answers(z, y, mode)
        ordered = SortedScores.of(binary_scores(z, mode), answers)
        if binning not in ("mass", "width"):
            raise InputError(f"binning: expected 'width' or 'mass', got {binning!r}")
        thresholds, bins = ordered.equal_mass(n_bins) if binning == "mass" else ordered.equal_width(n_bins)
        empty = bins.count == 0
        middle = (torch.arange(n_bins, dtype=torch.float64, device=z.device) + 0.5) / n_bins
        values = torch.where(empty, torch.logit(middle), smoothed_log_odds(bins.hits, bins.count, smoothing))
        fitted = cls(mode, thresholds, values, both_answers(answers), n_classes=z.shape[1])
        return unless_worse(fitted, z, y, score="brier")

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        s = binary_scores(logits, self.mode)
        mapped = step(s, self.thresholds, self.values)
        return from_binary(logits, torch.where(self.active, mapped, s), self.mode)
