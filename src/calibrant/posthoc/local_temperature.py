"""Local temperature: each pixel has a temperature of its own, which follows from the pixels around it."""

from typing import Self, Unpack

import torch
from torch import Tensor

from calibrant.inputs import ArrayLike, at_least_float32, check_number
from calibrant.posthoc.calibrator import Calibrator, required_features
from calibrant.posthoc.fitting.masked import finite
from calibrant.posthoc.fitting.stored import POSITIVE, Numbers, declare, one_number
from calibrant.posthoc.fitting.temperature_search import likeliest_temperature
from calibrant.posthoc.fitting.weighing import moments
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads
from calibrant.solvers import convex_minimum

# No pixel gets more than this many times the temperature of all, or less than this share of it.
_MOST = 10.0


class LocalTemperature(Calibrator):
    r"""Divide the logits of each pixel by a temperature that its neighbourhood decides.

    .. math:: \frac{1}{T(x)} = \frac{1}{T}\,\Big(1 + \sum_j w_j\,\frac{s_j(x) - m_j}{d_j}\Big)

    for the signals :math:`s_j` of :func:`~calibrant.posthoc.score_maps.neighbourhood`, with mean :math:`m_j`
    and deviation :math:`d_j` on the fitting set. The signals are means over a small square around the pixel,
    so the temperature is a smooth field over the image. The predicted class of a pixel never changes. No
    temperature is more than ten times that of all pixels, or less than a tenth of it.

    Made for images by ``PixelCalibration.fit(..., method="local_temperature")``; here each row is a pixel and
    its features are the signals.

    References:
        Ding et al., "Local Temperature Scaling for Probability Calibration", ICCV 2021, with a network in
        place of the signals.
    """

    preserves_accuracy = True
    masks = True
    needs_features = True
    features_are = "signals of the neighbourhood, of shape (n, s)"
    stored = declare(
        temperature=one_number(POSITIVE),
        weights=Numbers(("s",)),
        means=Numbers(("s",)),
        deviations=Numbers(("s",), POSITIVE),
    )

    temperature: Tensor
    weights: Tensor
    means: Tensor
    deviations: Tensor

    def __init__(
        self, temperature: float, weights: Tensor, means: Tensor, deviations: Tensor, *, n_classes: int
    ) -> None:
        super().__init__(n_classes=n_classes)
        one = torch.tensor(temperature, dtype=torch.float64)
        self.register_buffers(temperature=one, weights=weights, means=means, deviations=deviations)

    @property
    def n_features(self) -> int:
        """Number of signals."""
        return len(self.weights)

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        ridge: float = 1.0,
        **rows: Unpack[Rows],
    ) -> Self:
        """Minimise the negative log-likelihood, which is convex in the inverse temperatures.

        On the fitting set the result is never less likely than one temperature for all.

        Args:
            logits: Scores of shape ``(n, k)``.
            labels: Integer classes of shape ``(n,)``.
            ridge: How strongly the weights are pulled to 0, where all pixels have one temperature, in units
                of independent samples.
        """
        data = cls.data(logits, labels, **rows)
        required_features(data.features, cls.__name__, what=cls.features_are)
        assert data.features is not None
        s = data.features.double()
        ridge = check_number(ridge, "ridge") / data.size
        temperature = likeliest_temperature(data)
        z = data.logits.double()
        z = finite(z - z.amax(dim=1, keepdim=True)) / temperature
        means, deviations = moments(s, data.weights)
        deviations = torch.where(deviations > 0, deviations, 1.0)
        x = torch.cat([torch.ones(len(s), 1, dtype=s.dtype), (s - means) / deviations], dim=1)
        of_label = z.gather(1, data.labels[:, None]).squeeze(1)
        counts = torch.ones(len(z), dtype=z.dtype) if data.weights is None else data.weights.double()
        counts = counts / counts.sum()

        def loss(theta: Tensor) -> tuple[float, Tensor]:
            inverse = x @ theta
            near = inverse.clamp(1 / _MOST, _MOST)
            log_p = torch.log_softmax(near[:, None] * z, dim=1)
            value = -(counts * log_p.gather(1, data.labels[:, None]).squeeze(1)).sum()
            slope = counts * ((log_p.exp() * z).sum(dim=1) - of_label) * (near == inverse)
            pull = ridge * torch.cat([theta[:1] * 0, theta[1:]])
            return float(value + pull @ theta / 2), x.T @ slope + pull

        start = torch.zeros(x.shape[1], dtype=x.dtype)
        start[0] = 1.0
        theta = convex_minimum(loss, start)
        # The mean of the inverse temperatures belongs to all pixels, the rest to each.
        common = float(theta[0].clamp(1 / _MOST, _MOST))
        return cls(temperature / common, theta[1:] / common, means, deviations, n_classes=data.n_classes)

    def inverse_temperatures(self, features: Tensor) -> Tensor:
        """Return one over the temperature of each row of signals, shape ``(n,)``."""
        local = 1 + ((features.to(self.means) - self.means) / self.deviations) @ self.weights
        return local.clamp(1 / _MOST, _MOST) / self.temperature

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        z = at_least_float32(logits)
        required_features(features, type(self).__name__, what=self.features_are)
        assert features is not None
        inverse = self.inverse_temperatures(features)
        return torch.log_softmax(z * inverse.to(z.dtype)[:, None], dim=1)
