"""Matrix scaling (Guo et al., ICML 2017), regularised as it needs to be (Kull et al., NeurIPS 2019)."""

from typing import Literal, Self, TypeAlias

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike
from calibrant.posthoc.calibrator import Calibrator, check_fitting_set
from calibrant.posthoc.dirichlet import odir
from calibrant.posthoc.fitting.affine import Ridge, check_price, fit_affine
from calibrant.posthoc.fitting.ridge_choice import STRENGTHS, fit_chosen
from calibrant.posthoc.temperature import TemperatureScaling

Penalty: TypeAlias = Literal["l2", "odir"]


class MatrixScaling(Calibrator):
    r"""Let every class's logit speak for every class: :math:`p = \mathrm{softmax}(W z + b)`.

    Repairs systematic confusions; the predicted class may change. With ``k (k + 1)`` numbers to learn it
    overfits small sets unless it is held back.
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
        penalty: Penalty = "l2",
        strength: float | None = None,
    ) -> Self:
        r"""Minimise the negative log-likelihood plus a penalty on the distance from temperature scaling.

        With the best temperature :math:`T` and :math:`D = T W - I`, added to the mean is

        * ``"l2"``: :math:`\lambda \frac{k}{n} (|D|^2 + |b|^2)`,
        * ``"odir"``: :math:`\lambda \frac{k (k-1)}{n} \sum_{j \ne l} D_{jl}^2 + \lambda \frac{k}{n} |b|^2`,
          and a weak pull on the diagonal.

        Unless given, :math:`\lambda` is chosen from 100, 10, ..., 0.01 by five-fold cross-validation: the
        strongest within one standard error of the best held-out likelihood. If no strength beats temperature
        scaling there, the result *is* temperature scaling. On the fitting set it is never less likely than
        temperature scaling.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            features: Not used.
            seed: Parts the folds.
            penalty: What is held back: everything alike, or off-diagonals and intercepts.
            strength: The factor :math:`\lambda`.

        Raises:
            FitError: Temperature scaling has no optimum.
        """
        z, y = check_fitting_set(logits, labels)
        k = z.shape[1]
        if penalty not in ("l2", "odir"):
            raise InputError(f"penalty: expected 'l2' or 'odir', got {penalty!r}")
        temperature = TemperatureScaling.fit(z, y).temperature
        x = z / temperature
        if strength is None:
            path = [Ridge(k * s, k * s, k * s) if penalty == "l2" else odir(k, s) for s in STRENGTHS]
            fitted = fit_chosen(x, y, path, seed=seed)
        else:
            s = check_price(strength, "strength")
            fitted = fit_affine(x, y, Ridge(k * s, k * s, k * s) if penalty == "l2" else odir(k, s))
        return cls(fitted.weight / temperature, fitted.intercept)

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        z = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return torch.log_softmax(z @ self.weight.T.to(z.dtype) + self.intercept.to(z.dtype), dim=1)
