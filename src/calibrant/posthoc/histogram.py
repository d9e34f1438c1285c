"""Histogram binning (Zadrozny & Elkan, "Obtaining Calibrated Probability Estimates", ICML 2001)."""

import math
from functools import partial
from typing import Self, Unpack

import torch
from torch import Tensor

from calibrant.bins import Binning
from calibrant.inputs import ArrayLike, check_choice, check_count, check_number
from calibrant.posthoc.fitting.binary import Mode, Questions
from calibrant.posthoc.fitting.score_map import StepMap
from calibrant.posthoc.fitting.sorted_scores import SortedScores, smoothed_log_odds
from calibrant.posthoc.fitting.weighing import size_of
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads


class HistogramBinning(StepMap):
    """Replace confidence by the share of right answers in its bin.

    Samples of one bin get the same confidence, which can lose more than the map repairs: every class keeps
    the model's probability if the Brier score of the fitting set would rise. Modes are those of
    :class:`~calibrant.posthoc.fitting.score_map.ScoreMap`.
    """

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        mode: Mode = "top_label",
        n_bins: int | None = None,
        binning: Binning = "mass",
        smoothing: float = 1.0,
        **rows: Unpack[Rows],
    ) -> Self:
        """Count hits in bins of the model's probability.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            mode: ``"top_label"`` bins the confidence in the predicted class, ``"one_vs_rest"`` the
                probability of every class.
            n_bins: Number of bins; by default the cube root of the number of samples (of those that have the
                class, if classes are masked), rounded up, a balance between resolution and noise.
            binning: ``"mass"`` for bins of equal count, ``"width"`` for equal widths of probability.
            smoothing: This many samples, half of them right, are added to each bin, so that a bin of few
                samples does not become certain. 0 gives the plain share. An empty bin gets its middle.
        """
        data = cls.data(logits, labels, **rows)
        smoothing = check_number(smoothing, "smoothing", at_least=0)
        n_bins = None if n_bins is None else check_count(n_bins, "n_bins")
        check_choice(binning, "binning", ("width", "mass"))
        find = partial(_steps, n_bins=n_bins, binning=binning, smoothing=smoothing)
        return cls.of_steps(find, data, mode)


def _steps(
    questions: Questions, n_bins: int | None, binning: Binning, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Return thresholds ``(m, b - 1)`` and log-odds ``(m, b)`` of questions of the same samples."""
    scores, answers, w, _ = questions
    n_bins = n_bins or math.ceil(round(size_of(scores, w) ** (1 / 3), 9))
    ordered = SortedScores.of(scores, answers, w)
    thresholds, bins = ordered.equal_mass(n_bins) if binning == "mass" else ordered.equal_width(n_bins)
    empty = bins.count == 0
    middle = (torch.arange(n_bins, dtype=torch.float64, device=scores.device) + 0.5) / n_bins
    values = torch.where(empty, torch.logit(middle), smoothed_log_odds(bins.hits, bins.count, smoothing))
    return thresholds, values
