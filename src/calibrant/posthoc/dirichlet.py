"""Dirichlet calibration (Kull et al., "Beyond temperature scaling", NeurIPS 2019)."""

from typing import Self

import torch
from torch import Tensor

from calibrant.inputs import ArrayLike
from calibrant.posthoc.calibrator import Calibrator, check_fitting_set
from calibrant.posthoc.fitting.affine import Ridge, check_price, fit_affine
from calibrant.posthoc.fitting.ridge_choice import STRENGTHS, fit_chosen
from calibrant.posthoc.temperature import TemperatureScaling

# ODIR leaves the diagonal free; this weak pull, in nats, keeps it finite with a class that never occurs.
_DIAGONAL_PRICE = 5.0


def odir(k: int, strength: float) -> Ridge:
    """Return off-diagonal and intercept regularisation that grows with the count of what it holds back."""
    return Ridge(_DIAGONAL_PRICE, k * (k - 1) * strength, k * strength)


class DirichletCalibration(Calibrator):
    r"""Map log-probabilities linearly, as if they were Dirichlet-distributed given the true class.

    .. math:: q = \mathrm{softmax}(W \log p + b)

    Unlike matrix scaling it depends on the probabilities alone, so it suits any classifier; the predicted
    class may change.
    """

    weight: Tensor
    intercept: Tensor

    def __init__(self, weight: Tensor, intercept: Tensor) -> None:
        super().__init__(n_classes=len(intercept))
        self.register_buffer("weight", weight)
        self.register_buffer("intercept", intercept)

    @classmethod
    def fit(
        cls,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        features: ArrayLike | None = None,
        seed: int = 0,
        off_diagonal: float | None = None,
        intercept: float | None = None,
    ) -> Self:
        r"""Minimise the negative log-likelihood with off-diagonal and intercept regularisation (ODIR).

        .. math:: \frac{\lambda}{k (k-1)} \sum_{j \ne l} W_{jl}^2 + \frac{\mu}{k} |b|^2

        is added to the mean negative log-likelihood, with :math:`W` in units of the best inverse temperature,
        and a weak pull on the diagonal. Unless given, :math:`\lambda` and :math:`\mu` are chosen together
        from :math:`10^2, 10, \dots, 10^{-2}` times :math:`k^2 (k-1)^2 / n` and :math:`k^2 / n` by five-fold
        cross-validation: the strongest within one standard error of the best held-out likelihood. If none
        beats temperature scaling there, the result *is* temperature scaling. On the fitting set it is never
        less likely than temperature scaling.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            features: Not used.
            seed: Parts the folds.
            off_diagonal: The factor :math:`\lambda`.
            intercept: The factor :math:`\mu`; equal to :math:`\lambda`, or :math:`\lambda` to it, if only one
                is given.

        Raises:
            FitError: Temperature scaling has no optimum.
        """
        z, y = check_fitting_set(logits, labels)
        n, k = z.shape
        given = {"off_diagonal": off_diagonal, "intercept": intercept}
        prices = {name: check_price(value, name) for name, value in given.items() if value is not None}
        temperature = TemperatureScaling.fit(z, y).temperature
        x = torch.log_softmax(z, dim=1) / temperature
        if prices:
            lam = prices.get("off_diagonal", prices.get("intercept", 0.0))
            mu = prices.get("intercept", lam)
            fitted = fit_affine(x, y, Ridge(_DIAGONAL_PRICE, lam * n / (k * (k - 1)), mu * n / k))
        else:
            fitted = fit_chosen(x, y, [odir(k, strength) for strength in STRENGTHS], seed=seed)
        return cls(fitted.weight / temperature, fitted.intercept)

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        z = logits.to(torch.promote_types(logits.dtype, torch.float32))
        x = torch.log_softmax(z, dim=1)
        return torch.log_softmax(x @ self.weight.T.to(z.dtype) + self.intercept.to(z.dtype), dim=1)
