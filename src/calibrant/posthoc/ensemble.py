"""Ensemble temperature scaling (Zhang et al., "Mix-n-Match", ICML 2020)."""

from typing import Self, Unpack

import numpy as np
import torch
from torch import Tensor

from calibrant.inputs import ArrayLike, Floats, at_least_float32
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.fitting.masked import mask_again, uniform
from calibrant.posthoc.fitting.stored import POSITIVE, SHARES, Numbers, declare, one_number
from calibrant.posthoc.fitting.temperature_search import likeliest_temperature
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads
from calibrant.solvers import likeliest_shares

# The uniform distribution alone has no predicted class.
_LARGEST_UNIFORM_SHARE = 0.999


class EnsembleTemperatureScaling(Calibrator):
    r"""Mix the tempered, the original and the uniform distribution; the predicted class never changes.

    .. math:: p = w_1 \, \mathrm{softmax}(z / T) + w_2 \, \mathrm{softmax}(z) + w_3 / k,
              \quad w \ge 0, \; w_1 + w_2 + w_3 = 1

    More expressive than one temperature: the uniform part limits the loss of a confident mistake.
    """

    preserves_accuracy = True
    masks = True

    stored = declare(temperature=one_number(POSITIVE), shares=Numbers((3,), SHARES))

    temperature: Tensor
    shares: Tensor

    def __init__(self, temperature: Tensor, shares: Tensor, *, n_classes: int) -> None:
        super().__init__(n_classes=n_classes)
        self.register_buffers(temperature=temperature, shares=shares)

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        **rows: Unpack[Rows],
    ) -> Self:
        """Minimise the negative log-likelihood: first over the temperature, then over the shares.

        Both problems are convex. On the fitting set the result is never less likely than temperature scaling.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
        """
        data = cls.data(logits, labels, **rows)
        z, y, w = data.logits, data.labels, data.weights
        temperature = torch.tensor(likeliest_temperature(data), dtype=torch.float64)
        tempered = torch.log_softmax(z / temperature, dim=1).gather(1, y[:, None])
        original = torch.log_softmax(z, dim=1).gather(1, y[:, None])
        even = uniform(z).gather(1, y[:, None]).log()
        of_labels = torch.cat([tempered, original, even], dim=1).double().exp().cpu().numpy()
        shares = torch.from_numpy(_shares(of_labels, None if w is None else w.cpu().numpy())).to(z.device)
        return cls(temperature, shares, n_classes=z.shape[1])

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        z = at_least_float32(logits)
        tempered, original, even = self.shares.to(z.dtype).unbind()
        p = tempered * torch.softmax(z / self.temperature, dim=1) + original * torch.softmax(z, dim=1)
        log_p = torch.log((p + even * uniform(z)).clamp_min(torch.finfo(z.dtype).tiny))
        return mask_again(log_p, z)


def _shares(of_labels: Floats, weights: Floats | None) -> Floats:
    """Return the shares under which labels with these three probabilities each are likeliest.

    The uniform distribution stands in two mixtures that have its largest share, so no other mixture of these
    and the first two distributions has a larger one.
    """
    rest = 1 - _LARGEST_UNIFORM_SHARE
    corners = np.array(
        [[1, 0, 0], [0, 1, 0], [rest, 0, _LARGEST_UNIFORM_SHARE], [0, rest, _LARGEST_UNIFORM_SHARE]]
    )
    shares: Floats = likeliest_shares(of_labels @ corners.T, weights=weights) @ corners
    # The search ends within a tolerance of the optimum.
    likelier = _log_likelihood(of_labels @ shares, weights) >= _log_likelihood(of_labels[:, 0], weights)
    return shares if likelier else corners[0]


def _log_likelihood(probs: Floats, weights: Floats | None) -> float:
    return float(np.average(np.log(np.maximum(probs, np.finfo(np.float64).tiny)), weights=weights))
