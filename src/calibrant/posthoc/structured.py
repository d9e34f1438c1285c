"""Structured scaling (Berta et al., "Structured Matrix Scaling for Multi-Class Calibration", 2025)."""

import math
from typing import Self, TypeVar, Unpack

import torch
from torch import Tensor

from calibrant.inputs import ArrayLike, check_number
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.fitting.affine import AffineMap, LinearMap, Ridge, check_strength, fit_strength
from calibrant.posthoc.fitting.masked import mask_again, uniform
from calibrant.posthoc.fitting.stored import (
    NOT_NEGATIVE_OR_INFINITE,
    POSITIVE,
    PROBABILITIES,
    declare,
    one_number,
)
from calibrant.posthoc.fitting.temperature_search import likeliest_temperature
from calibrant.posthoc.fitting_set import FittingSet, Rows, remembered, sparing_threads

# Fits that only predict a fold stop this near to the optimum, a thousandth of the standard error.
_FOLD_TOLERANCE = 3e-7

Structured = TypeVar("Structured", bound="StructuredMatrixScaling")


class StructuredMatrixScaling(LinearMap):
    r"""Temperature scaling, then a matrix and intercepts that are penalised by their number.

    .. math:: q = \mathrm{softmax}\left((I + D) \log \tilde p + b\right), \quad
              \tilde p = (1 - \epsilon) \, \mathrm{softmax}(z / T) + \epsilon / k

    Off-diagonals are penalised most, because there are most of them: with few samples the map approaches
    vector scaling and then temperature scaling. The predicted class may change. (arXiv 2511.03685)
    """

    stored = declare(
        temperature=one_number(POSITIVE),
        smoothing=one_number(PROBABILITIES),
        strength=one_number(NOT_NEGATIVE_OR_INFINITE),
    )

    temperature: Tensor
    smoothing: Tensor
    strength: Tensor

    def __init__(self, temperature: Tensor, smoothing: Tensor, affine: AffineMap, strength: float) -> None:
        super().__init__(affine.weight, affine.intercept)
        self.register_buffers(
            temperature=temperature,
            smoothing=smoothing,
            strength=torch.tensor(strength, dtype=torch.float64),
        )
        self.for_folds = {"strength": strength, "tolerance": _FOLD_TOLERANCE}

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        strength: float | None = None,
        tolerance: float = 1e-8,
        **rows: Unpack[Rows],
    ) -> Self:
        r"""Minimise the mean negative log-likelihood plus a ridge.

        .. math:: \lambda \frac{k}{n} \left(\sum_j D_{jj}^2 + |b|^2\right)
                  + \lambda \frac{k (k-1)}{n} \sum_{j \ne l} D_{jl}^2

        The temperature is the likeliest one; :math:`\epsilon = 1/(n + 1)` limits the loss of mistakes that
        the fitting set does not show. Unless given, :math:`\lambda` is chosen from 100, 10, ..., 0.01 by
        five-fold cross-validation (the paper fixes it at 1): the strongest within one standard error of the
        best held-out likelihood. If none beats the smoothed temperature scaling :math:`\tilde p` there, that
        is the result. On the fitting set it is never less likely than the model itself: where smoothing
        would make it so, :math:`\epsilon = 0`.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            strength: The factor :math:`\lambda`; infinity is the smoothed temperature scaling.
            tolerance: The search ends when a step lowers the mean loss by less than this.
        """
        data = cls.data(logits, labels, **rows)
        return _fitted(data, cls, check_strength(strength), check_number(tolerance, "tolerance"))

    @staticmethod
    def ridge(k: int) -> Ridge:
        """Return the penalty for ``k`` classes at strength 1."""
        return Ridge(k, k * (k - 1), k)

    def scores(self, logits: Tensor) -> Tensor:
        """Return the logarithms of the smoothed probabilities."""
        return _log_smoothed(logits, self.temperature, self.smoothing)


class StructuredVectorScaling(StructuredMatrixScaling):
    """Temperature scaling, then a penalised scale and intercept per class.

    :class:`StructuredMatrixScaling` with a diagonal matrix; with few samples it approaches temperature
    scaling.
    """

    @staticmethod
    def ridge(k: int) -> Ridge:
        """Return the penalty for ``k`` classes at strength 1."""
        return Ridge(k, math.inf, k)

    @classmethod
    def memory(cls, n: int, k: int) -> int:
        """Return about how many bytes a fit needs, which no matrix is part of."""
        return Calibrator.memory(n, k)


# Several methods begin with the same structured scaling of the same samples.
@remembered
def _fitted(
    data: FittingSet, method: type[Structured], strength: float | None, tolerance: float
) -> Structured:
    temperature = torch.tensor(likeliest_temperature(data), dtype=torch.float64)
    smoothing, x = _harmless_smoothing(data, temperature)
    ridge = method.ridge(data.n_classes)
    affine, found = fit_strength(data.with_logits(x), ridge.times, strength, tolerance=tolerance)
    return method(temperature, smoothing, affine, found)


def _harmless_smoothing(data: FittingSet, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Return how much of the uniform distribution to mix in, and the logarithms of what that gives."""
    z = data.logits
    share = torch.tensor(1 / (data.size + 1), dtype=torch.float64, device=z.device)
    x = _smoothed(z, temperature, share)
    if _log_likelihood(x, data) >= _log_likelihood(torch.log_softmax(z, dim=1), data):
        return share, x
    return torch.zeros_like(share), _smoothed(z, temperature, torch.zeros_like(share))


def _log_likelihood(log_probs: Tensor, data: FittingSet) -> float:
    return float(data.total(log_probs.gather(1, data.labels[:, None]).squeeze(1)))


def _smoothed(z: Tensor, temperature: Tensor, share: Tensor) -> Tensor:
    return mask_again(_log_smoothed(z, temperature, share), z)


def _log_smoothed(z: Tensor, temperature: Tensor, share: Tensor) -> Tensor:
    mixed = torch.lerp(torch.softmax(z / temperature, dim=1), uniform(z), share.to(z.dtype))
    # Without a share of the uniform distribution a probability may be zero.
    return torch.log(mixed.clamp_min(torch.finfo(z.dtype).tiny))
