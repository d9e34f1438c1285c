"""Differentiable stand-ins for calibration measures, shared by losses and by trained calibrators.

Soft bins (Karandikar et al., "Soft Calibration Objectives for Neural Networks", NeurIPS 2021): a hard bin has
no gradient, because a confidence is in it or not. Here every sample belongs to every bin, mostly to the near
ones, so that training can close the gap between confidence and accuracy.

Objectives: what a trained calibrator can minimise, by name. The names are the columns of the objective
ablation (Table 3) of the SMART paper, "Sample Margin-Aware Recalibration of Temperature".
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from calibrant.inputs import at_least_float32, check_choice, check_count, check_number
from calibrant.outcomes import mean_of

Objective: TypeAlias = Literal[
    "charbonnier", "soft_ece", "nll", "label_smoothing", "mse", "brier", "charbonnier_pointwise"
]

SMOOTHING = 0.05

# Soft bins of trained calibrators, the sharpness of their kernel, its standard deviation, and the rounding.
N_BINS = 15
SHARPNESS = 200.0
SIGMA = 0.05
DELTA = 1e-3


@dataclass(frozen=True, eq=False)
class SoftBins:
    """Samples shared out among bins; the tensors have shape ``(n_bins,)``.

    Attributes:
        weight: Share of all samples that each bin holds; sums to one.
        gap: Mean confidence minus accuracy in each bin: positive is overconfident, 0 in an empty bin.
        noise: Standard deviation that the gap would have by chance alone if every confidence were the true
            probability of being right; without gradient.
    """

    weight: Tensor
    gap: Tensor
    noise: Tensor

    def expected_gap(self) -> Tensor:
        """Return the mean size of the gap over samples: the soft calibration error."""
        return (self.weight * self.gap.abs()).sum()

    def charbonnier_gap(self, *, delta: float = DELTA) -> Tensor:
        """Return the mean size of the gap over samples, with the kink at zero rounded off."""
        return (self.weight * torch.sqrt(self.gap.square() + delta**2)).sum()

    def expected_by_chance(self) -> Tensor:
        r"""Return the soft calibration error that a perfectly calibrated model would show by chance.

        A gap with standard deviation :math:`\sigma_b` about zero has the mean size
        :math:`\sqrt{2/\pi}\,\sigma_b`.
        """
        return math.sqrt(2 / math.pi) * (self.weight.detach() * self.noise).sum()


def soft_membership(confidence: Tensor, *, n_bins: int = N_BINS, lam: float = SHARPNESS) -> Tensor:
    r"""Return the share of each sample in each of equally spaced bins, shape ``(n, n_bins)``.

    .. math:: w_{ib} = \mathrm{softmax}_b\big(-\lambda (p_i - c_b)^2\big), \quad c_b = (b + 1/2) / B

    Rows sum to one.

    Args:
        confidence: Numbers between 0 and 1 of shape ``(n,)``; half precision is widened.
        n_bins: Number of bins over the unit interval.
        lam: Sharpness: the kernel's standard deviation is ``1 / sqrt(2 * lam)``, 0.05 for 200.

    Example:
        >>> soft_membership(torch.tensor([0.5]), n_bins=3, lam=20.0).round(decimals=3)
        tensor([[0.0890, 0.8220, 0.0890]])
    """
    check_count(n_bins, "n_bins")
    check_number(lam, "lam")
    p = at_least_float32(confidence)
    centers = _centers(n_bins, like=p)
    # The square of p is the same in every bin, so softmax does not need it.
    return torch.softmax(lam * centers * (2 * p[:, None] - centers), dim=1)


def _centers(n_bins: int, *, like: Tensor) -> Tensor:
    return (torch.arange(n_bins, device=like.device, dtype=like.dtype) + 0.5) / n_bins


def soft_bins(
    confidence: Tensor,
    correct: Tensor,
    *,
    n_bins: int = N_BINS,
    lam: float = SHARPNESS,
    weights: Tensor | None = None,
) -> SoftBins:
    r"""Share samples out among bins and compare confidence with accuracy in each.

    .. math:: \mathrm{gap}_b = \frac{\sum_i w_{ib} (p_i - a_i)}{\sum_i w_{ib}}

    Args:
        confidence: Confidence in the predicted class, shape ``(n,)``.
        correct: 1 or true where the predicted class was the true one, shape ``(n,)``.
        n_bins: Number of bins over the unit interval.
        lam: Sharpness of :func:`soft_membership`.
        weights: How much each sample counts, shape ``(n,)``; each share is multiplied by it.
    """
    p = at_least_float32(confidence)
    share = soft_membership(p, n_bins=n_bins, lam=lam)
    if weights is not None:
        share = share * (weights / weights.mean().clamp_min(torch.finfo(p.dtype).tiny)).to(p.dtype)[:, None]
    total = share.sum(dim=0)
    # The total of a bin that no sample reaches underflows to zero; the bin then has no gap and no gradient.
    divisor = total.clamp_min(torch.finfo(p.dtype).tiny)
    gap = (p - correct.to(p.dtype)) @ share / divisor
    with torch.no_grad():
        noise = ((p * (1 - p)) @ share.square()).sqrt() / divisor
    return SoftBins(weight=total / max(len(p), 1), gap=gap, noise=noise)


def soft_ece(confidence: Tensor, correct: Tensor, *, n_bins: int = N_BINS, lam: float = SHARPNESS) -> Tensor:
    r"""Return the soft-binned calibration error: the mean size of the gap over samples, with a gradient.

    .. math:: \sum_b \frac{\sum_i w_{ib}}{n}\,|\mathrm{gap}_b|

    Example:
        >>> round(float(soft_ece(torch.tensor([0.9, 0.9]), torch.tensor([1.0, 0.0]))), 3)
        0.4
    """
    return soft_bins(confidence, correct, n_bins=n_bins, lam=lam).expected_gap()


def charbonnier_soft_ece(
    confidence: Tensor, correct: Tensor, *, n_bins: int = N_BINS, lam: float = SHARPNESS, delta: float = DELTA
) -> Tensor:
    r"""Return the soft-binned calibration error with the kink of the absolute value rounded off.

    .. math:: \sum_b \frac{\sum_i w_{ib}}{n} \sqrt{\mathrm{gap}_b^2 + \delta^2}

    The root is taken of each bin's gap, as in :func:`soft_ece`. Eq. (6) of the SMART paper, read to the
    letter, takes it of each sample's error: :func:`charbonnier_pointwise`, which fails. When every gap is
    zero the value is ``delta``, not zero.

    Args:
        confidence: Confidence in the predicted class, shape ``(n,)``.
        correct: 1 or true where the predicted class was the true one, shape ``(n,)``.
        n_bins: Number of bins over the unit interval.
        lam: Sharpness of the soft bins.
        delta: Size below which a gap counts as closed; smaller is closer to the absolute value.

    Example:
        >>> closed = charbonnier_soft_ece(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0]))
        >>> round(float(closed), 6)
        0.001
    """
    check_number(delta, "delta")
    return soft_bins(confidence, correct, n_bins=n_bins, lam=lam).charbonnier_gap(delta=delta)


def charbonnier_pointwise(
    confidence: Tensor,
    correct: Tensor,
    *,
    n_bins: int = N_BINS,
    lam: float = SHARPNESS,
    delta: float = DELTA,
    weights: Tensor | None = None,
) -> Tensor:
    r"""Return Eq. (6) of the SMART paper to the letter, over soft bins: **training on it fails**.

    .. math:: \frac1n \sum_i \sum_b w_{ib} \sqrt{(a_i - c_b)^2 + \delta^2}

    The distance is taken for each sample, so errors of opposite sign never cancel. That is a smoothed mean
    absolute error, not a calibration error: where the model is right with probability :math:`r`, confidence
    :math:`p` costs about :math:`r (1 - p) + (1 - r) p`, which is linear in :math:`p` and smallest at 1 if
    :math:`r > 1/2`, at 0 otherwise. A calibrator that is trained on it makes every sample certain.
    :func:`calibrant.metrics.charbonnier_error` is the same with an integral instead of bins, as a measure.

    Args:
        confidence: Confidence in the predicted class, shape ``(n,)``.
        correct: 1 or true where the predicted class was the true one, shape ``(n,)``.
        n_bins: Number of bins over the unit interval.
        lam: Sharpness of the soft bins.
        delta: Rounding of the absolute value.
        weights: How much each sample counts, shape ``(n,)``.

    Example:
        >>> correct = torch.tensor([1.0] * 7 + [0.0] * 3)
        >>> honest, certain = (charbonnier_pointwise(torch.full((10,), p), correct) for p in (0.7, 1.0))
        >>> round(float(honest), 2), round(float(certain), 2)
        (0.42, 0.32)
    """
    check_number(delta, "delta")
    p = at_least_float32(confidence)
    share = soft_membership(p, n_bins=n_bins, lam=lam)
    error = correct.to(p.dtype)[:, None] - _centers(n_bins, like=p)
    return mean_of((share * torch.sqrt(error.square() + delta**2)).sum(dim=1), weights)


@dataclass(frozen=True)
class SoftBinning:
    r"""The three numbers of the objectives that use soft bins, with the values of the SMART paper.

    Attributes:
        n_bins: Number of bins over the unit interval.
        sigma: Standard deviation of the kernel: :math:`\lambda = 1 / (2 \sigma^2)`. The columns called lambda
            in tables 13 and 14 of the paper hold this number.
        delta: Rounding of the absolute value.
    """

    n_bins: int = N_BINS
    sigma: float = SIGMA
    delta: float = DELTA

    def __post_init__(self) -> None:
        check_count(self.n_bins, "n_bins")
        check_number(self.sigma, "sigma")
        check_number(self.delta, "delta")

    @property
    def lam(self) -> float:
        """Sharpness of the kernel."""
        return 1 / (2 * self.sigma**2)

    def bins(self, forecasts: "Forecasts") -> SoftBins:
        """Return the soft bins of forecasts; those of the paper are computed once."""
        if (self.n_bins, self.sigma) == (N_BINS, SIGMA):
            return forecasts.bins
        return soft_bins(
            forecasts.confidence,
            forecasts.correct,
            n_bins=self.n_bins,
            lam=self.lam,
            weights=forecasts.weights,
        )


class Forecasts(ABC):
    """What the objectives read of predictions: few numbers per sample.

    Attributes:
        confidence: Probability of the predicted class.
        correct: Whether the predicted class was the true one, as 1 or 0.
        true_log_prob: Log-probability of the true class.
        weights: How much each sample counts, or None if all count the same.
    """

    confidence: Tensor
    correct: Tensor
    true_log_prob: Tensor
    weights: Tensor | None = None

    @cached_property
    def bins(self) -> SoftBins:
        """Soft bins of the confidences."""
        return soft_bins(self.confidence, self.correct, weights=self.weights)

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over samples of values of shape ``(n,)``."""
        return mean_of(values, self.weights)

    @abstractmethod
    def mean_log_prob(self) -> Tensor:
        """Return the mean log-probability over the classes."""

    @abstractmethod
    def squared_norm(self) -> Tensor:
        """Return the sum over the classes of the squared probability."""


class LogProbForecasts(Forecasts):
    """Predictions given as log-probabilities of shape ``(n, k)`` with labels of shape ``(n,)``."""

    def __init__(self, log_probs: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        self.weights = weights
        self._log_probs = at_least_float32(log_probs)
        self.confidence = self._log_probs.amax(dim=1).exp()
        self.correct = (self._log_probs.argmax(dim=1) == labels).to(self._log_probs.dtype)
        self.true_log_prob = self._log_probs.gather(1, labels[:, None]).squeeze(1)

    def mean_log_prob(self) -> Tensor:
        """Return the mean log-probability over the classes."""
        return self._log_probs.mean(dim=1)

    def squared_norm(self) -> Tensor:
        """Return the sum over the classes of the squared probability."""
        return (2 * self._log_probs).exp().sum(dim=1)


def objective_value(name: Objective, forecasts: Forecasts, binning: SoftBinning | None = None) -> Tensor:
    """Return the mean of the named objective over the samples; smaller is better.

    ========================= ==========================================================================
    ``charbonnier``           :func:`charbonnier_soft_ece` of the top label
    ``soft_ece``              :func:`soft_ece` of the top label
    ``nll``                   negative log-likelihood of the true class
    ``label_smoothing``       cross-entropy with 5 % of each target spread over all classes
    ``mse``                   squared distance of the top label's confidence from right (1) or wrong (0)
    ``brier``                 squared distance of the distribution from the true class
    ``charbonnier_pointwise`` :func:`charbonnier_pointwise` of the top label, which fails: it rewards
                              certainty
    ========================= ==========================================================================

    Args:
        name: The objective.
        forecasts: The predictions.
        binning: Bins, bandwidth and rounding of the objectives that have them; those of the SMART paper
            unless given.

    Example:
        >>> forecasts = LogProbForecasts(torch.tensor([[0.8, 0.2]]).log(), torch.tensor([1]))
        >>> {name: round(float(objective_value(name, forecasts)), 3) for name in ("nll", "mse", "brier")}
        {'nll': 1.609, 'mse': 0.64, 'brier': 1.28}
    """
    return OBJECTIVES[name](forecasts, binning or SoftBinning())


def check_objective(name: str) -> Objective:
    """Refuse a name that is not one of :data:`OBJECTIVES`."""
    return check_choice(name, "objective", OBJECTIVES)


def _label_smoothing(forecasts: Forecasts, _binning: SoftBinning) -> Tensor:
    hard, spread = forecasts.true_log_prob, forecasts.mean_log_prob()
    return -forecasts.mean((1 - SMOOTHING) * hard + SMOOTHING * spread)


def _brier(forecasts: Forecasts, _binning: SoftBinning) -> Tensor:
    return forecasts.mean(forecasts.squared_norm() - 2 * forecasts.true_log_prob.exp() + 1)


def _pointwise(forecasts: Forecasts, binning: SoftBinning) -> Tensor:
    return charbonnier_pointwise(
        forecasts.confidence,
        forecasts.correct,
        n_bins=binning.n_bins,
        lam=binning.lam,
        delta=binning.delta,
        weights=forecasts.weights,
    )


OBJECTIVES: Mapping[Objective, Callable[[Forecasts, SoftBinning], Tensor]] = MappingProxyType(
    {
        "charbonnier": lambda f, binning: binning.bins(f).charbonnier_gap(delta=binning.delta),
        "soft_ece": lambda f, binning: binning.bins(f).expected_gap(),
        "nll": lambda f, _: -f.mean(f.true_log_prob),
        "label_smoothing": _label_smoothing,
        "mse": lambda f, _: f.mean(torch.square(f.confidence - f.correct)),
        "brier": _brier,
        "charbonnier_pointwise": _pointwise,
    }
)
