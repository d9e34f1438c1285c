"""Ensemble temperature scaling (Zhang et al., "Mix-n-Match", ICML 2020)."""

from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.inputs import ArrayLike
from calibrant.posthoc.calibrator import Calibrator, check_fitting_set
from calibrant.posthoc.temperature import TemperatureScaling

# The uniform part alone would forget which class was predicted.
_LARGEST_UNIFORM_SHARE = 0.999


class EnsembleTemperatureScaling(Calibrator):
    r"""Mix the tempered, the original and the uniform distribution; the predicted class never changes.

    .. math:: p = w_1 \, \mathrm{softmax}(z / T) + w_2 \, \mathrm{softmax}(z) + w_3 / k,
              \quad w \ge 0, \; w_1 + w_2 + w_3 = 1

    More expressive than one temperature: the uniform part bounds the price of a confident mistake.
    """

    preserves_accuracy = True

    temperature: Tensor
    shares: Tensor

    def __init__(self, temperature: Tensor, shares: Tensor, *, n_classes: int) -> None:
        super().__init__(n_classes=n_classes)
        self.register_buffer("temperature", temperature)
        self.register_buffer("shares", shares)

    @classmethod
    def fit(
        cls, logits: ArrayLike, labels: ArrayLike, *, features: ArrayLike | None = None, seed: int = 0
    ) -> Self:
        """Minimise the negative log-likelihood: first over the temperature, then over the shares.

        Both problems are convex. On the fitting set the result is never less likely than temperature scaling.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            features: Not used.
            seed: Not used: nothing here is random.

        Raises:
            FitError: Temperature scaling has no optimum.
        """
        z, y = check_fitting_set(logits, labels)
        scaling = TemperatureScaling.fit(z, y)
        tempered = scaling(z).gather(1, y[:, None])
        original = torch.log_softmax(z, dim=1).gather(1, y[:, None])
        uniform = torch.full_like(original, 1 / z.shape[1]).log()
        met = torch.cat([tempered, original, uniform], dim=1).double().exp().cpu().numpy()
        shares = torch.from_numpy(_likeliest_shares(met)).to(z.device)
        return cls(scaling.temperature, shares, n_classes=z.shape[1])

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        z = logits.to(torch.promote_types(logits.dtype, torch.float32))
        tempered, original, uniform = self.shares.to(z.dtype).unbind()
        p = tempered * torch.softmax(z / self.temperature, dim=1) + original * torch.softmax(z, dim=1)
        return torch.log((p + uniform / z.shape[1]).clamp_min(torch.finfo(z.dtype).tiny))


def _likeliest_shares(met: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Find the shares under which the labels, met with these three probabilities each, are likeliest."""
    from scipy.optimize import LinearConstraint, minimize

    def nll(shares: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        mixed = np.maximum(met @ shares, np.finfo(np.float64).tiny)
        return -float(np.log(mixed).mean()), -(met / mixed[:, None]).mean(axis=0)

    only_tempered = np.array([1.0, 0.0, 0.0])
    found = minimize(
        nll,
        np.full(3, 1 / 3),
        jac=True,
        method="SLSQP",
        bounds=[(0, 1), (0, 1), (0, _LARGEST_UNIFORM_SHARE)],
        constraints=LinearConstraint(np.ones(3), 1, 1),
        options={"ftol": 1e-12, "maxiter": 200},
    )
    shares: npt.NDArray[np.float64] = np.clip(found.x, 0, 1)
    shares /= shares.sum()
    return shares if nll(shares)[0] <= nll(only_tempered)[0] else only_tempered
