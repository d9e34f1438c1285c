"""Decompositions of proper scores: how much of a score is miscalibration, how much is lack of knowledge."""

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Literal, TypeAlias, Unpack

import numpy as np
import torch
from torch import Tensor

from calibrant.bins import equal_width_bins
from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, check_count, check_labels, check_probs
from calibrant.metrics.ranking import Ranking
from calibrant.outcomes import Outcomes, Pairs, check_outcomes

Method: TypeAlias = Literal["binned", "corp"]
_Loss: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Decomposition:
    """Parts of a proper score, of which lower is better: ``score = calibration + refinement + remainder``.

    Attributes:
        score: The mean score as it is.
        calibration: What recalibration takes away, at least 0 (reliability; MCB in CORP).
        refinement: What recalibration leaves: the score of the recalibrated forecasts.
        uncertainty: The score of always forecasting the mean outcome, which depends on the data alone.
        remainder: What averaging the forecasts of each bin changes; 0 for CORP, which has no bins.
    """

    score: float
    calibration: float
    refinement: float
    uncertainty: float
    remainder: float

    @property
    def resolution(self) -> float:
        """What the forecasts know, ``uncertainty - refinement``, at least 0 (DSC in CORP).

        ``score = calibration - resolution + uncertainty + remainder``.
        """
        return self.uncertainty - self.refinement


def decompose_brier(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    method: Method = "binned",
    n_bins: int = 15,
    **pairs: Unpack[Pairs],
) -> Decomposition:
    r"""Brier score as miscalibration plus what no recalibration can repair.

    A forecast :math:`f` of an outcome :math:`a \in \{0, 1\}` scores :math:`(f - a)^2`. With groups :math:`b`
    of forecasts, their mean :math:`\bar f_b` and the share :math:`\bar a_b` of outcomes that came true,

    .. math:: \mathrm{calibration} = \sum_b \tfrac{n_b}{n} (\bar f_b - \bar a_b)^2, \quad
        \mathrm{refinement} = \sum_b \tfrac{n_b}{n} \bar a_b (1 - \bar a_b), \quad
        \mathrm{uncertainty} = \bar a (1 - \bar a)

    ``"binned"`` (Murphy) groups by bins of equal width; forecasts that differ within a bin leave a remainder.
    ``"corp"`` groups by isotonic regression of the outcomes on the forecasts, which needs no choice of bins,
    and compares the forecasts themselves: ``calibration = score - refinement``.

    Given ``probs`` and ``labels``, every class is forecast against the rest and the parts are summed over
    the classes, so that the score is :func:`~calibrant.metrics.brier_score`. Given ``confidence`` and
    ``correct`` (or the probability of any event, and whether it came true) it is the mean of
    :math:`(f - a)^2`.

    Args:
        probs: Class probabilities of shape ``(n, k)``, with ``labels``.
        labels: Integer classes of shape ``(n,)``.
        confidence: Confidences of shape ``(n,)``, with ``correct``, instead of ``probs``.
        correct: Whether each prediction was right, shape ``(n,)``.
        method: ``"binned"`` or ``"corp"``.
        n_bins: Number of equal-width bins of the binned method.

    Example:
        >>> parts = decompose_brier(confidence=[0.8, 0.8, 0.4, 0.4], correct=[1, 1, 0, 1], method="corp")
        >>> round(parts.score, 4), round(parts.calibration, 4), parts.refinement, parts.uncertainty
        (0.15, 0.025, 0.125, 0.1875)

    References:
        Murphy, "A new vector partition of the probability score", J. Applied Meteorology 1973.
        Bröcker, "Reliability, sufficiency, and the decomposition of proper scores", QJRMS 2009.
        Dimitriadis, Gneiting and Jordan, "Stable reliability diagrams for probabilistic classifiers", PNAS
        2021 (CORP).
    """
    if probs is None or labels is None or any(value is not None for value in pairs.values()):
        outcomes = check_outcomes(probs, labels, **pairs)
        return _decompose(outcomes, _squared, method, n_bins)
    p = check_probs(probs).clamp(0, 1)
    y = check_labels(labels, n=p.shape[0], k=p.shape[1]).to(p.device)
    classes = (Outcomes(p[:, c].contiguous(), y == c) for c in range(p.shape[1]))
    parts = [astuple(_decompose(outcomes, _squared, method, n_bins)) for outcomes in classes]
    return Decomposition(*np.sum(parts, axis=0).tolist())


def brier_calibration(probs: ArrayLike, labels: ArrayLike) -> float:
    """Calibration part of the Brier score, by isotonic regression (CORP)."""
    return decompose_brier(probs, labels, method="corp").calibration


def brier_refinement(probs: ArrayLike, labels: ArrayLike) -> float:
    """Refinement part of the Brier score, by isotonic regression (CORP)."""
    return decompose_brier(probs, labels, method="corp").refinement


def decompose_nll(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    method: Method = "binned",
    n_bins: int = 15,
    **pairs: Unpack[Pairs],
) -> Decomposition:
    r"""Log-likelihood of being right as miscalibration plus what no recalibration can repair, in nats.

    The score is that of the confidence :math:`f` as a forecast of being right, :math:`-\log f` for a right
    prediction and :math:`-\log(1 - f)` for a wrong one. With two classes this is
    :func:`~calibrant.metrics.negative_log_likelihood`; with more, that also counts
    :math:`-\log(p_y / (1 - f))` for each wrong prediction: which of the other classes it was. The parts
    are those of :func:`decompose_brier`, with the divergence and the entropy of the logarithmic score,

    .. math:: \mathrm{calibration} = \sum_b \tfrac{n_b}{n} \mathrm{KL}(\bar a_b \,\|\, \bar f_b), \quad
        \mathrm{refinement} = \sum_b \tfrac{n_b}{n} H(\bar a_b), \quad \mathrm{uncertainty} = H(\bar a)

    A forecast of exactly 0 or 1 that fails makes the score infinite, and with it the calibration part of
    ``"corp"``; for ``"binned"``, the remainder, or the calibration part if the whole bin forecasts so.
    The others stay finite, as :math:`0 \log 0 = 0`. Arguments are those of :func:`decompose_brier`.

    Example:
        >>> parts = decompose_nll(confidence=[0.8, 0.8, 0.4, 0.4], correct=[1, 1, 0, 1], method="corp")
        >>> round(parts.score, 4), round(parts.calibration, 4), round(parts.refinement, 4)
        (0.4684, 0.1218, 0.3466)

    References:
        Bröcker, "Reliability, sufficiency, and the decomposition of proper scores", QJRMS 2009.
        Dimitriadis, Gneiting and Jordan, "Stable reliability diagrams for probabilistic classifiers", PNAS
        2021 (CORP).
    """
    outcomes = check_outcomes(probs, labels, **pairs)
    return _decompose(outcomes, _logarithmic, method, n_bins)


def _decompose(outcomes: Outcomes, loss: _Loss, method: Method, n_bins: int) -> Decomposition:
    if method not in ("binned", "corp"):
        raise InputError(f"method: expected 'binned' or 'corp', got {method!r}")
    n = len(outcomes)
    hits = outcomes.correct.double()
    score = averaged = float(loss(outcomes.confidence.double(), hits, 1 - hits).sum() / n)
    if method == "binned":
        bins = equal_width_bins(outcomes, check_count(n_bins, "n_bins"))
        filled = bins.count > 0
        count, hits = bins.count[filled].double(), bins.correct_sum[filled].double()
        of_means = float(loss(bins.confidence[filled], hits, count - hits).sum() / n)
        averaged = of_means if np.isfinite(of_means) else score
    else:
        count, hits = _isotonic_groups(Ranking.from_outcomes(outcomes))
    refinement = float(loss(hits / count, hits, count - hits).sum() / n)
    right = hits.sum()
    return Decomposition(
        score=score,
        calibration=max(0.0, averaged - refinement),
        refinement=refinement,
        uncertainty=float(loss(right / n, right, n - right) / n),
        remainder=0.0 if averaged == score else score - averaged,
    )


def _isotonic_groups(ranking: Ranking) -> tuple[Tensor, Tensor]:
    """Pool neighbouring forecasts until the share of hits rises with the forecast: counts and hits."""
    from scipy.optimize import isotonic_regression  # a slow import that only CORP needs

    rate = ranking.hits / ranking.count
    blocks = isotonic_regression(rate, weights=ranking.count, increasing=False).blocks
    # Summed anew, the groups are free of the rounding of the fit.
    sums = (np.add.reduceat(part, blocks[:-1]).astype(np.float64) for part in (ranking.count, ranking.hits))
    count, hits = (torch.from_numpy(part) for part in sums)
    return count, hits


def _squared(forecast: Tensor, hits: Tensor, misses: Tensor) -> Tensor:
    """Sum of the squared errors of a forecast of so many hits and misses."""
    return hits * (1 - forecast).square() + misses * forecast.square()


def _logarithmic(forecast: Tensor, hits: Tensor, misses: Tensor) -> Tensor:
    """Sum of the negative log-likelihoods of a forecast of so many hits and misses."""
    surprise: Tensor = torch.xlogy(hits, forecast) + torch.special.xlog1py(misses, -forecast)
    return -surprise
