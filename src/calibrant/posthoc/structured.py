"""Structured scaling (Berta et al., "Structured Matrix Scaling for Multi-Class Calibration", 2025)."""

import math
from collections.abc import Mapping
from typing import Self, TypeVar, Unpack

import torch
from torch import Tensor

from calibrant.inputs import ArrayLike
from calibrant.posthoc.calibrator import Calibrator, UnusedFeatures, check_weighted_set
from calibrant.posthoc.fitting.affine import AffineMap, LinearMap, Ridge, check_strength, fit_strength
from calibrant.posthoc.fitting.masked import mask_again, uniform
from calibrant.posthoc.fitting.shared import once_per_part, part_of
from calibrant.posthoc.fitting.stored import (
    NOT_NEGATIVE_OR_INFINITE,
    POSITIVE,
    PROBABILITIES,
    declare,
    one_number,
)
from calibrant.posthoc.fitting.temperature_search import likeliest_temperature
from calibrant.posthoc.fitting.weighing import size_of, sum_of

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

    @property
    def searched(self) -> Mapping[str, float]:
        """The strength of the ridge."""
        return {"strength": float(self.strength)}

    @classmethod
    def fit(
        cls,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        strength: float | None = None,
        weights: ArrayLike | None = None,
        seed: int = 0,
        **unused: Unpack[UnusedFeatures],
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
            weights: How much each sample counts, shape ``(n,)``; only their ratios matter.
            seed: Seed of the folds.
            strength: The factor :math:`\lambda`; infinity is the smoothed temperature scaling.
        """
        z, y, w = check_weighted_set(logits, labels, weights, **unused)
        return _fitted(z, y, cls, check_strength(strength), seed, weights=w)

    @staticmethod
    def ridge(k: int) -> Ridge:
        """Return the penalty for ``k`` classes at strength 1."""
        return Ridge(k, k * (k - 1), k)

    def scores(self, logits: Tensor) -> Tensor:
        """Return the logarithms of the smoothed probabilities."""
        return _smoothed(logits, self.temperature, self.smoothing)


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
@once_per_part
def _fitted(
    z: Tensor,
    y: Tensor,
    method: type[Structured],
    strength: float | None,
    seed: int,
    *,
    weights: Tensor | None,
) -> Structured:
    temperature = torch.tensor(likeliest_temperature(z, y, weights=weights), dtype=torch.float64)
    smoothing, x = _harmless_smoothing(z, y, temperature, weights)
    ridge = method.ridge(z.shape[1])
    part = part_of(z)
    tolerance = _FOLD_TOLERANCE if part is not None and part.left_out else 1e-8
    affine, found = fit_strength(x, y, ridge.times, strength, seed=seed, tolerance=tolerance, weights=weights)
    return method(temperature, smoothing, affine, found)


def _harmless_smoothing(
    z: Tensor, y: Tensor, temperature: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return how much of the uniform distribution to mix in, and the logarithms of what that gives."""
    share = torch.tensor(1 / (size_of(z, weights) + 1), dtype=torch.float64, device=z.device)
    x = _smoothed(z, temperature, share)
    if _log_likelihood(x, y, weights) >= _log_likelihood(torch.log_softmax(z, dim=1), y, weights):
        return share, x
    return torch.zeros_like(share), _smoothed(z, temperature, torch.zeros_like(share))


def _log_likelihood(log_probs: Tensor, y: Tensor, weights: Tensor | None) -> float:
    return float(sum_of(log_probs.gather(1, y[:, None]).squeeze(1), weights))


def _smoothed(z: Tensor, temperature: Tensor, share: Tensor) -> Tensor:
    mixed = torch.softmax(z / temperature, dim=1) * (1 - share) + share * uniform(z)
    # Without a share of the uniform distribution a probability may be zero.
    return mask_again(torch.log(mixed.clamp_min(torch.finfo(z.dtype).tiny)), z)
