"""Structured scaling (Berta et al., "Structured Matrix Scaling for Multi-Class Calibration", 2025)."""

import math
from typing import Self

import torch
from torch import Tensor

from calibrant.inputs import ArrayLike
from calibrant.posthoc.calibrator import Calibrator, check_fitting_set
from calibrant.posthoc.fitting.affine import AffineMap, Ridge, check_price, fit_affine
from calibrant.posthoc.fitting.ridge_choice import STRENGTHS, choose_ridge
from calibrant.posthoc.temperature import TemperatureScaling


class StructuredMatrixScaling(Calibrator):
    r"""Temperature scaling, then a matrix and intercepts that must earn their keep.

    .. math:: q = \mathrm{softmax}\left((I + D) \log \tilde p + b\right), \quad
              \tilde p = (1 - \epsilon) \, \mathrm{softmax}(z / T) + \epsilon / k

    Off-diagonals are held back most, as there are most of them: with few samples the map fades into vector
    and then into temperature scaling. The predicted class may change. (arXiv 2511.03685)
    """

    temperature: Tensor
    smoothing: Tensor
    weight: Tensor
    intercept: Tensor
    strength: Tensor

    def __init__(self, temperature: Tensor, smoothing: Tensor, affine: AffineMap, strength: float) -> None:
        super().__init__(n_classes=len(affine.intercept))
        self.register_buffer("temperature", temperature)
        self.register_buffer("smoothing", smoothing)
        self.register_buffer("weight", affine.weight)
        self.register_buffer("intercept", affine.intercept)
        self.register_buffer("strength", torch.tensor(strength, dtype=torch.float64))

    @classmethod
    def fit(
        cls,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        features: ArrayLike | None = None,
        seed: int = 0,
        strength: float | None = None,
    ) -> Self:
        r"""Minimise the mean negative log-likelihood plus a ridge that knows what it acts on.

        .. math:: \lambda \frac{k}{n} \left(\sum_j D_{jj}^2 + |b|^2\right)
                  + \lambda \frac{k (k-1)}{n} \sum_{j \ne l} D_{jl}^2

        The temperature is the likeliest one; :math:`\epsilon = 1/(n + 1)` bounds the price of mistakes that
        the fitting set does not show. Unless given, :math:`\lambda` is chosen from 100, 10, ..., 0.01 by
        five-fold cross-validation (the paper fixes it at 1): the strongest within one standard error of the
        best held-out likelihood. If none beats the smoothed temperature scaling :math:`\tilde p` there, that
        is the result. On the fitting set it is never less likely than the model itself: where smoothing
        would make it so, :math:`\epsilon = 0`.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            features: Not used.
            seed: Parts the folds.
            strength: The factor :math:`\lambda`; infinity is the smoothed temperature scaling.

        Raises:
            FitError: Temperature scaling has no optimum.
        """
        z, y = check_fitting_set(logits, labels)
        if strength is not None and strength != math.inf:
            check_price(strength, "strength")
        temperature = TemperatureScaling.fit(z, y).temperature
        smoothing, x = _harmless_smoothing(z, y, temperature)
        ridge = cls._ridge(z.shape[1])
        if strength is None:
            chosen = choose_ridge(x, y, [ridge.times(s) for s in STRENGTHS], seed=seed)
            strength = math.inf if chosen is None else STRENGTHS[chosen]
        if strength == math.inf:
            affine = AffineMap.identity(z.shape[1], diagonal=ridge.is_diagonal, device=z.device)
        else:
            affine = fit_affine(x, y, ridge.times(strength))
        return cls(temperature, smoothing, affine, strength)

    @staticmethod
    def _ridge(k: int) -> Ridge:
        return Ridge(k, k * (k - 1), k)

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        x = _smoothed(logits, self.temperature, self.smoothing)
        weight = self.weight.to(x.dtype)
        mapped = x * weight if weight.ndim == 1 else x @ weight.T
        return torch.log_softmax(mapped + self.intercept.to(x.dtype), dim=1)


class StructuredVectorScaling(StructuredMatrixScaling):
    """Temperature scaling, then a scale and an intercept per class that must earn their keep.

    What is learned per class fades into temperature scaling when samples are few. Else it is
    :class:`StructuredMatrixScaling` with a diagonal matrix.
    """

    @staticmethod
    def _ridge(k: int) -> Ridge:
        return Ridge(k, math.inf, k)


def _harmless_smoothing(z: Tensor, y: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Return how much of the uniform distribution to mix in, and the logarithms of what that gives."""
    share = torch.tensor(1 / (len(z) + 1), dtype=torch.float64, device=z.device)
    x = _smoothed(z, temperature, share)
    if _log_likelihood(x, y) >= _log_likelihood(torch.log_softmax(z, dim=1), y):
        return share, x
    return torch.zeros_like(share), _smoothed(z, temperature, torch.zeros_like(share))


def _log_likelihood(log_probs: Tensor, y: Tensor) -> float:
    return float(log_probs.gather(1, y[:, None]).sum(dtype=torch.float64))


def _smoothed(logits: Tensor, temperature: Tensor, share: Tensor) -> Tensor:
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    mixed = torch.softmax(z / temperature, dim=1) * (1 - share) + share / z.shape[1]
    # Without a share of the uniform distribution a probability may be zero.
    return torch.log(mixed.clamp_min(torch.finfo(z.dtype).tiny))
