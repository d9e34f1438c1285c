"""Group calibration: temperatures for groups of samples, where the groups are learned.

Yang et al., "Beyond Probability Partitions: Calibrating Neural Networks with Semantic Aware Grouping",
NeurIPS 2023.
"""

import math
from typing import Self

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, check_count, check_features
from calibrant.posthoc.calibrator import Calibrator, check_fitting_set, required_features
from calibrant.posthoc.fitting.partition import PartitionLikelihood
from calibrant.posthoc.temperature import TemperatureScaling

# The predicted class leads by at least this share: more than the rounding of a sum can undo.
_LEAD = 1e-5


class GroupCalibration(Calibrator):
    r"""One temperature for each group of alike samples, where the groups are learned; accuracy never changes.

    A partition assigns a sample softly to groups by a linear map of its features :math:`h` (or of its
    logits), and several partitions are averaged:

    .. math:: p(x) = \frac1U \sum_{u=1}^{U} \sum_{g=1}^{G} \mathrm{softmax}_g(W_u h + b_u)\,
        \mathrm{softmax}(z / T_{ug})

    The paper assigns test samples to the likeliest group and fits its temperature again; the soft
    assignment, with which the partition is learned, has no jumps.
    """

    preserves_accuracy = True
    options = ("on_features",)

    on_features: bool
    weight: Tensor
    bias: Tensor
    temperature: Tensor

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        temperature: Tensor,
        *,
        on_features: bool = False,
        n_classes: int | None = None,
    ) -> None:
        super().__init__(n_classes=n_classes)
        self.on_features = on_features
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.register_buffer("temperature", temperature)

    @classmethod
    def fit(
        cls,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        features: ArrayLike | None = None,
        seed: int = 0,
        n_groups: int = 2,
        n_partitions: int = 5,
        weight_decay: float = 1.0,
    ) -> Self:
        """Learn partitions and temperatures together by likelihood, from several random starts.

        A partition that ends less likely than temperature scaling is replaced by it, so by convexity the
        average is never less likely either. Temperatures stay within a factor of 8 of the common one.
        Different starts mostly meet: five partitions did as well as the paper's twenty.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            features: Penultimate activations of shape ``(n, d)`` to group by, then needed for prediction too;
                without them, samples are grouped by their logits.
            seed: Of the random starts.
            n_groups: Groups in a partition.
            n_partitions: Partitions that are averaged.
            weight_decay: Strength of the pull of the partition's weights to 0; 1 means that a sample's
                log-odds of belonging to a group are about 1 before any data are seen.

        Raises:
            FitError: There is no common temperature to start from, see :meth:`TemperatureScaling.fit`.
        """
        z, y = check_fitting_set(logits, labels)
        h = z if features is None else check_features(features, n=z.shape[0]).to(z.device)
        n_groups, n_partitions = check_count(n_groups, "n_groups"), check_count(n_partitions, "n_partitions")
        if not 0 <= weight_decay < math.inf:
            raise InputError(f"weight_decay: expected a number of at least 0, got {weight_decay}")
        common = float(TemperatureScaling.fit(z, y).temperature)
        centre, scale = h.double().mean(dim=0), h.double().std(dim=0, correction=0)
        # A constant feature tells nothing apart.
        scale = torch.where(scale > 1e-12 * centre.abs(), scale, torch.inf)
        likelihood = PartitionLikelihood(
            z / common, y, (h.double() - centre) / scale, n_groups=n_groups, weight_decay=weight_decay
        )
        rng = np.random.default_rng(seed)
        solved = [likelihood.solve(rng) for _ in range(n_partitions)]
        weight = torch.stack([partition.weight for partition in solved]) / scale
        return cls(
            weight,
            -(weight @ centre),
            common * torch.stack([partition.log_beta for partition in solved]).neg().exp(),
            on_features=features is not None,
            n_classes=z.shape[1],
        )

    @property
    def n_features(self) -> int | None:
        """Number of features that it groups by; None if it groups by logits."""
        return self.weight.shape[2] if self.on_features else None

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        z = logits.to(torch.promote_types(logits.dtype, torch.float32))
        h = z
        if self.on_features:
            h = torch.as_tensor(required_features(features, type(self).__name__)).to(z.dtype)
        probs = torch.zeros_like(z)
        for weight, bias, temperature in zip(
            self.weight.to(z.dtype), self.bias.to(z.dtype), self.temperature.to(z.dtype), strict=True
        ):
            share = torch.softmax(h @ weight.T + bias, dim=1) / len(self.weight)
            for g in range(len(bias)):
                probs = probs + share[:, g : g + 1] * torch.softmax(z / temperature[g], dim=1)
        is_top = torch.arange(z.shape[1], device=z.device) == z.argmax(dim=1, keepdim=True)
        probs = torch.where(is_top, probs.amax(dim=1, keepdim=True) * (1 + _LEAD), probs)
        return torch.log((probs / probs.sum(dim=1, keepdim=True)).clamp(min=torch.finfo(z.dtype).tiny))
