"""Bayesian binning into quantiles (Naeini, Cooper & Hauskrecht, AAAI 2015)."""

from typing import Self, Unpack

import torch
from torch import Tensor

from calibrant.inputs import ArrayLike
from calibrant.posthoc.fitting.binary import Mode, Questions
from calibrant.posthoc.fitting.score_map import StepMap, ragged
from calibrant.posthoc.fitting.sorted_scores import SortedScores
from calibrant.posthoc.fitting.weighing import size_of
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads

_PRIOR_SAMPLES = 2.0  # N' of the paper, shared out over the bins of a model
_RANGE = 10  # C of the paper: from a tenth of the cube root of n bins to ten times as many
_FEWEST = 5  # samples per bin on average: the prior is too weak to hold back smaller bins
_NEGLIGIBLE = 1e-4  # weight, relative to the best number of bins, below which one is left out


class BBQ(StepMap):
    r"""Average histograms over all numbers of equal-mass bins, each weighted by its evidence.

    A histogram with :math:`B` bins, where bin :math:`b` holds :math:`n_b` samples and :math:`m_b` hits,
    has the marginal likelihood

    .. math:: \prod_b \frac{\Gamma(N'/B)}{\Gamma(n_b + N'/B)}
              \frac{\Gamma(m_b + \alpha_b)}{\Gamma(\alpha_b)}
              \frac{\Gamma(n_b - m_b + \beta_b)}{\Gamma(\beta_b)}

    with :math:`\alpha_b = \pi_b N'/B`, :math:`\beta_b = (1 - \pi_b) N'/B`, :math:`\pi_b` the middle of the
    bin and :math:`N' = 2`; it predicts :math:`(m_b + \alpha_b)/(n_b + N'/B)`. The average is a step function
    again.

    Modes are those of :class:`~calibrant.posthoc.fitting.score_map.ScoreMap`. Every class keeps the model's
    probability if the Brier score of the fitting set would rise.
    """

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        mode: Mode = "top_label",
        **rows: Unpack[Rows],
    ) -> Self:
        """Weigh histograms from a tenth of the cube root of the number of samples to ten times as many bins.

        Bins hold at least five samples on average: with fewer the evidence prefers bins of one answer.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            mode: ``"top_label"`` bins the confidence in the predicted class, ``"one_vs_rest"`` the
                probability of every class.
        """
        return cls.of_steps(_steps, cls.data(logits, labels, **rows), mode)


def _steps(questions: Questions) -> tuple[Tensor, Tensor]:
    """Return thresholds ``(m, b)`` and log-odds ``(m, b + 1)`` of questions of the same samples."""
    scores, answers, w, _ = questions
    ordered = SortedScores.of(scores, answers, w)
    n = size_of(scores, w)
    root = n ** (1 / 3)
    most = min(int(n // _FEWEST), int(root * _RANGE))
    sizes = range(max(1, int(root / _RANGE)), max(1, most) + 1)
    return _averaged([_Histogram(ordered, n_bins) for n_bins in sizes])


class _Histogram:
    """One number of bins for all columns: thresholds ``(m, b - 1)``, rates ``(m, b)``, evidence ``(m,)``."""

    def __init__(self, ordered: SortedScores, n_bins: int) -> None:
        self.thresholds, bins = ordered.equal_mass(n_bins)
        edges = torch.sigmoid(self.thresholds)
        ends = edges.new_zeros(len(edges), 1)
        middle = (torch.cat([ends, edges], dim=1) + torch.cat([edges, ends + 1], dim=1)) / 2
        middle = middle.clamp(1e-12, 1 - 1e-12)
        prior = _PRIOR_SAMPLES / n_bins
        # Sums of weights are rounded, so that all hits may be a little more than all samples.
        misses = (bins.count - bins.hits).clamp(min=0)
        yes, no = bins.hits + prior * middle, misses + prior * (1 - middle)
        self.rate = yes / (yes + no)
        terms = (
            torch.special.gammaln(torch.tensor(prior, dtype=torch.float64))
            - torch.special.gammaln(bins.count + prior)
            + torch.special.gammaln(yes)
            - torch.special.gammaln(prior * middle)
            + torch.special.gammaln(no)
            - torch.special.gammaln(prior * (1 - middle))
        )
        self.log_evidence = terms.sum(dim=1)


def _averaged(models: list[_Histogram]) -> tuple[Tensor, Tensor]:
    """Return the mean of step functions as one: thresholds ``(m, b)`` and log-odds ``(m, b + 1)``."""
    weights = torch.softmax(torch.stack([model.log_evidence for model in models]), dim=0)
    weights = torch.where(weights > _NEGLIGIBLE * weights.amax(dim=0), weights, 0.0)
    weights = weights / weights.sum(dim=0)
    kept = [(model, weight) for model, weight in zip(models, weights, strict=True) if bool(weight.any())]
    inf = torch.inf
    every = torch.cat([model.thresholds.masked_fill((w == 0)[:, None], inf) for model, w in kept], dim=1)
    every = every.sort(dim=1).values
    repeated = torch.zeros_like(every, dtype=torch.bool)
    repeated[:, 1:] = every[:, 1:] == every[:, :-1]
    every = every.masked_fill(repeated, inf)
    rows, places = torch.isfinite(every).nonzero(as_tuple=True)
    m = len(every)
    thresholds = ragged(rows, every[rows, places], m, fill=inf) if len(rows) else every.new_full((m, 1), inf)
    # Just above each threshold, and below all of them, stands for the piece.
    rate = torch.zeros(m, thresholds.shape[1] + 1, dtype=torch.float64, device=every.device)
    for model, weight in kept:
        piece = torch.searchsorted(model.thresholds, thresholds, right=True)
        piece = torch.cat([torch.zeros_like(piece[:, :1]), piece], dim=1)
        rate += weight[:, None] * model.rate.gather(1, piece)
    return thresholds, torch.logit(rate)
