"""Decompositions of proper scores into miscalibration and the part that recalibration cannot remove."""

from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import cached_property, partial
from typing import Literal, TypeAlias, Unpack, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.bins import check_bins, equal_width_bins
from calibrant.inputs import ArrayLike, Floats, check_choice, check_labelled_probs
from calibrant.metrics.counted import Counts, Weighted, mean_weights
from calibrant.metrics.counted_classes import ClassCells, class_weights
from calibrant.metrics.ranking import Ranking
from calibrant.outcomes import LEAST_DOUBT, LEAST_PROB, Outcomes, Pairs, check_outcomes, checked_weights

Grouping: TypeAlias = Literal["binned", "corp"]
_Loss: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Decomposition:
    """Parts of a proper score: ``score = calibration + refinement + remainder``; lower is better.

    Attributes:
        score: The mean score of the forecasts.
        calibration: The part that recalibration removes, at least 0 (reliability; MCB in CORP).
        refinement: The part that recalibration leaves: the score of the recalibrated forecasts.
        uncertainty: The score of always forecasting the mean outcome; it depends only on the outcomes.
        remainder: The change from averaging the forecasts of each bin; 0 for CORP, which has no bins.
    """

    score: float
    calibration: float
    refinement: float
    uncertainty: float
    remainder: float

    @property
    def resolution(self) -> float:
        """Information in the forecasts, ``uncertainty - refinement``, at least 0 (DSC in CORP).

        ``score = calibration - resolution + uncertainty + remainder``.
        """
        return self.uncertainty - self.refinement


def decompose_brier(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    method: Grouping = "binned",
    n_bins: int = 15,
    **pairs: Unpack[Pairs],
) -> Decomposition:
    r"""Split the Brier score into miscalibration and the part that recalibration cannot remove.

    A forecast :math:`f` of an outcome :math:`a \in \{0, 1\}` scores :math:`(f - a)^2`. For groups :math:`b`
    of forecasts with mean :math:`\bar f_b` and mean outcome :math:`\bar a_b`,

    .. math:: \mathrm{calibration} = \sum_b \tfrac{n_b}{n} (\bar f_b - \bar a_b)^2, \quad
        \mathrm{refinement} = \sum_b \tfrac{n_b}{n} \bar a_b (1 - \bar a_b), \quad
        \mathrm{uncertainty} = \bar a (1 - \bar a)

    ``"binned"`` (Murphy) groups by bins of equal width; forecasts that differ within a bin leave a remainder.
    ``"corp"`` groups by isotonic regression of the outcomes on the forecasts, without bins, and uses the
    forecasts themselves instead of their means: ``calibration = score - refinement``.

    With ``probs`` and ``labels``, every class is a forecast against the rest and the parts are summed over
    the classes, so the score is :func:`~calibrant.metrics.brier_score`. With ``confidence`` and ``correct``
    (or the probability of any event, and whether it occurred) the score is the mean of :math:`(f - a)^2`.

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
    given = {name for name, value in pairs.items() if value is not None}
    if probs is None or labels is None or given - {"weights"}:
        outcomes = check_outcomes(probs, labels, **pairs)
        return _decompose(outcomes, _squared, method, n_bins)
    p, y = check_labelled_probs(probs, labels)
    weights = check_outcomes(p, y, **pairs).weights
    classes = (Outcomes(p[:, c].clamp(0, 1).contiguous(), y == c, weights) for c in range(p.shape[1]))
    parts = [astuple(_decompose(outcomes, _squared, method, n_bins)) for outcomes in classes]
    return Decomposition(*np.sum(parts, axis=0).tolist())


def brier_calibration(probs: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """Return the calibration part of the Brier score, by isotonic regression (CORP)."""
    return decompose_brier(probs, labels, method="corp", weights=weights).calibration


def brier_refinement(probs: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """Return the refinement part of the Brier score, by isotonic regression (CORP)."""
    return decompose_brier(probs, labels, method="corp", weights=weights).refinement


def brier_calibration_weights(
    probs: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None
) -> Weighted:
    """Return :func:`brier_calibration` as a function of counts."""
    p, y = check_labelled_probs(probs, labels)
    error = p.clamp(0, 1).double()
    error[torch.arange(len(y), device=p.device), y.to(p.device)] -= 1
    score = mean_weights(error.square_().sum(dim=1).cpu().numpy())
    refinement = brier_refinement_weights(p, y, weights=weights)
    return Weighted(
        len(y),
        lambda counts: np.maximum(0.0, score.values(counts) - refinement.values(counts)),
        refinement.held,
        refinement.work,
        refinement.weights,
    )


def brier_refinement_weights(
    probs: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None
) -> Weighted:
    """Return :func:`brier_refinement` as a function of counts."""
    from scipy.optimize import isotonic_regression  # a slow import that only CORP needs

    p, y = check_labelled_probs(probs, labels)
    cells = ClassCells.from_probs(p.clamp(0, 1), y)
    problem = np.repeat(np.arange(p.shape[1]), np.diff(cells.start, append=len(cells)))

    def values(counts: Counts) -> Floats:
        members, others = cells.sums(class_weights(counts))
        filled = members + others > 0
        row = np.nonzero(filled)[0]
        hits, count = members[filled], (members + others)[filled]
        # Rates lie between 0 and 1. Raised by 2 from one class of a resample to the next, the rates of all
        # of them are one regression that pools no cells of different classes.
        raised = 2.0 * (row * p.shape[1] + np.broadcast_to(problem, filled.shape)[filled])
        starts = isotonic_regression(raised + hits / count, weights=count).blocks[:-1]
        # The sums are computed again, so they do not contain the rounding of the fit.
        count, hits = np.add.reduceat(count, starts), np.add.reduceat(hits, starts)
        left = np.bincount(row[starts], weights=hits * (count - hits) / count, minlength=len(counts))
        return np.asarray(left / counts.sum(axis=1))

    return Weighted(len(y), values, 4 * len(cells), p.numel(), checked_weights(weights, len(y)))


@dataclass(frozen=True, eq=False)
class ClassRanks:
    """Class probabilities that are sorted once, to measure the same predictions with many sets of labels.

    Attributes:
        probs: The probabilities, shape ``(n, k)``.
        first: How many probabilities of the class are lower, shape ``(n, k)``.
        stop: How many are not higher.
    """

    probs: npt.NDArray[np.floating]
    first: npt.NDArray[np.int32]
    stop: npt.NDArray[np.int32]

    @classmethod
    def from_probs(cls, probs: Tensor) -> "ClassRanks":
        """Sort the column of each class."""
        p = probs.cpu().numpy()
        first, stop = np.empty((2, *p.shape), dtype=np.int32)
        for c, column in enumerate(p.T):
            ordered = np.sort(column)
            first[:, c] = np.searchsorted(ordered, column)
            stop[:, c] = np.searchsorted(ordered, column, side="right")
        return cls(p, first, stop)

    def brier_calibration(self, labels: npt.NDArray[np.intp]) -> float:
        """Return :func:`brier_calibration` with these labels.

        Samples of other classes between two members of a class share a cell, so there are few cells.
        """
        from scipy.optimize import isotonic_regression  # a slow import that only CORP needs

        (n, k), rows = self.probs.shape, np.arange(len(labels))
        first, stop = (labels * n + each[rows, labels] for each in (self.first, self.stop))
        bounds = np.unique(np.concatenate([first, stop, n * np.arange(k + 1)]))
        count = np.diff(bounds).astype(np.float64)
        hits = np.bincount(np.searchsorted(bounds, first), minlength=len(count)).astype(np.float64)
        # Raised by 2 from class to class, the rates of all classes are one regression.
        raised = 2.0 * (bounds[:-1] // n) + hits / count
        starts = isotonic_regression(raised, weights=count).blocks[:-1]
        count, hits = np.add.reduceat(count, starts), np.add.reduceat(hits, starts)
        refinement = float((hits * (count - hits) / count).sum())
        score = self._squares + n - 2 * float(self.probs[rows, labels].sum(dtype=np.float64))
        return float(max(0.0, (score - refinement) / n))

    @cached_property
    def _squares(self) -> float:
        return float(np.square(self.probs, dtype=np.float64).sum())


def decompose_nll(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    method: Grouping = "binned",
    n_bins: int = 15,
    **pairs: Unpack[Pairs],
) -> Decomposition:
    r"""Split the log loss of being right into miscalibration and the rest, in nats.

    The confidence :math:`f` is a forecast of being right: it scores :math:`-\log f` for a right prediction
    and :math:`-\log(1 - f)` for a wrong one. With two classes the mean is
    :func:`~calibrant.metrics.negative_log_likelihood`. With more classes, that also contains
    :math:`-\log(p_y / (1 - f))` for each wrong prediction, for which of the other classes is true. The parts
    are those of :func:`decompose_brier`, with the divergence and the entropy of the logarithmic score,

    .. math:: \mathrm{calibration} = \sum_b \tfrac{n_b}{n} \mathrm{KL}(\bar a_b \,\|\, \bar f_b), \quad
        \mathrm{refinement} = \sum_b \tfrac{n_b}{n} H(\bar a_b), \quad \mathrm{uncertainty} = H(\bar a)

    Forecasts of exactly 0 or 1 count as in that measure: 1e-12 away from it for class probabilities, 1e-6 for
    confidences. Arguments are those of :func:`decompose_brier`.

    Example:
        >>> parts = decompose_nll(confidence=[0.8, 0.8, 0.4, 0.4], correct=[1, 1, 0, 1], method="corp")
        >>> round(parts.score, 4), round(parts.calibration, 4), round(parts.refinement, 4)
        (0.4684, 0.1218, 0.3466)

    References:
        Bröcker, "Reliability, sufficiency, and the decomposition of proper scores", QJRMS 2009.
        Dimitriadis, Gneiting and Jordan, "Stable reliability diagrams for probabilistic classifiers", PNAS
        2021 (CORP).
    """
    loss = partial(_logarithmic, least=LEAST_DOUBT if probs is None else LEAST_PROB)
    return _decompose(check_outcomes(probs, labels, **pairs), loss, method, n_bins)


def _decompose(outcomes: Outcomes, loss: _Loss, method: Grouping, n_bins: int) -> Decomposition:
    check_choice(method, "method", get_args(Grouping))
    each = outcomes.counts
    n, hits = float(each.sum()), each * outcomes.correct
    score = averaged = float(loss(outcomes.confidence.double(), hits, each - hits).sum() / n)
    if method == "binned":
        bins = equal_width_bins(outcomes, check_bins(n_bins))
        filled = bins.count > 0
        count, hits = bins.count[filled].double(), bins.correct_sum[filled].double()
        averaged = float(loss(bins.confidence[filled], hits, count - hits).sum() / n)
    else:
        count, hits = _isotonic_groups(Ranking.from_outcomes(outcomes))
    refinement = float(loss(hits / count, hits, count - hits).sum() / n)
    right = hits.sum()
    return Decomposition(
        score=score,
        calibration=max(0.0, averaged - refinement),
        refinement=refinement,
        uncertainty=float(loss(right / n, right, n - right) / n),
        remainder=score - averaged,
    )


def _isotonic_groups(ranking: Ranking) -> tuple[Tensor, Tensor]:
    """Pool neighbouring forecasts until the share of hits rises with the forecast; return counts and hits."""
    from scipy.optimize import isotonic_regression  # a slow import that only CORP needs

    rate = ranking.hits / ranking.count
    blocks = isotonic_regression(rate, weights=ranking.count, increasing=False).blocks
    # The sums are computed again, so they do not contain the rounding of the fit.
    sums = (np.add.reduceat(part, blocks[:-1]).astype(np.float64) for part in (ranking.count, ranking.hits))
    count, hits = (torch.from_numpy(part) for part in sums)
    return count, hits


def _squared(forecast: Tensor, hits: Tensor, misses: Tensor) -> Tensor:
    """Return the sum of the squared errors of a forecast with these counts of hits and misses."""
    return hits * (1 - forecast).square() + misses * forecast.square()


def _logarithmic(forecast: Tensor, hits: Tensor, misses: Tensor, *, least: float) -> Tensor:
    """Return the sum of the log losses of a forecast, at least so far from 0 and 1 where it is wrong."""
    return -hits * forecast.clamp(min=least).log() - misses * (1 - forecast).clamp(min=least).log()
