"""Dirichlet calibration (Kull et al., "Beyond temperature scaling", NeurIPS 2019)."""

from typing import Self, Unpack

import torch
from torch import Tensor

from calibrant.inputs import ArrayLike, check_number
from calibrant.posthoc.fitting.affine import (
    DIAGONAL_PRICE,
    LinearMap,
    Ridge,
    check_strength,
    fit_affine,
    fit_strength,
    odir,
)
from calibrant.posthoc.fitting.temperature_search import likeliest_temperature
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads


class DirichletCalibration(LinearMap):
    r"""Map log-probabilities linearly, as if they were Dirichlet-distributed given the true class.

    .. math:: q = \mathrm{softmax}(W \log p + b)

    Unlike matrix scaling it depends on the probabilities alone, so it suits any classifier; the predicted
    class may change.
    """

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        off_diagonal: float | None = None,
        intercept: float | None = None,
        strength: float | None = None,
        **rows: Unpack[Rows],
    ) -> Self:
        r"""Minimise the negative log-likelihood with off-diagonal and intercept regularisation (ODIR).

        .. math:: \frac{\lambda}{k (k-1)} \sum_{j \ne l} W_{jl}^2 + \frac{\mu}{k} |b|^2

        is added to the mean negative log-likelihood, with :math:`W` in units of the best inverse temperature,
        and a weak pull on the diagonal. Unless given, :math:`\lambda` and :math:`\mu` are a common strength
        times :math:`k^2 (k-1)^2 / n` and :math:`k^2 / n`; the strength is chosen from :math:`10^2, 10, \dots,
        10^{-2}` by five-fold cross-validation: the strongest within one standard error of the best held-out
        likelihood. If none beats temperature scaling there, the result *is* temperature scaling. On the
        fitting set it is never less likely than temperature scaling.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            off_diagonal: The factor :math:`\lambda`.
            intercept: The factor :math:`\mu`; equal to :math:`\lambda`, or :math:`\lambda` to it, if only one
                is given.
            strength: The common strength, if neither factor is given; infinity is temperature scaling.
        """
        data = cls.data(logits, labels, **rows)
        n, k = data.size, data.n_classes
        given = {"off_diagonal": off_diagonal, "intercept": intercept}
        prices = {name: check_number(value, name) for name, value in given.items() if value is not None}
        temperature = likeliest_temperature(data)
        scaled = data.with_logits(torch.log_softmax(data.logits, dim=1) / temperature)
        if prices:
            lam = prices.get("off_diagonal", prices.get("intercept", 0.0))
            mu = prices.get("intercept", lam)
            ridge = Ridge(DIAGONAL_PRICE, lam * n / (k * (k - 1)), mu * n / k)
            fitted = fit_affine(scaled, ridge)
            return cls(fitted.weight / temperature, fitted.intercept)
        given_strength = check_strength(strength)
        fitted, found = fit_strength(scaled, lambda s: odir(k, s), given_strength)
        calibrator = cls(fitted.weight / temperature, fitted.intercept)
        calibrator.for_folds = {"strength": found}
        return calibrator

    def scores(self, logits: Tensor) -> Tensor:
        """Return the log-probabilities."""
        return torch.log_softmax(logits, dim=1)
