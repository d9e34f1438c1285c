"""The mean of several temperatures for each sample, which errs less than any of them."""

from collections.abc import Sequence
from typing import Self, Unpack

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, at_least_float32
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.fitting.sample_temperature import SampleTemperature
from calibrant.posthoc.fitting.stored import PROBABILITIES, declare, one_number
from calibrant.posthoc.fitting.weighing import size_of
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads
from calibrant.posthoc.parameterized import ParameterizedTemperatureScaling
from calibrant.posthoc.smart import SMART, Indicator

# What the temperatures of SMART depend on, and the part beside them, which reads the largest logits.
_INDICATORS: tuple[Indicator, ...] = ("margin", "confidence", "entropy")
_LARGEST = "largest"

# The mean counts as if this many samples more had shown that there is nothing to repair.
_UNCHANGED = 100


class MeanTemperature(Calibrator):
    r"""Divide logits by the harmonic mean of several temperatures; the predicted class never changes.

    .. math:: \frac{1}{T(z)} = 1 - s + \frac{s}{4} \sum_{j=1}^4 \frac{1}{T_j(z)}, \quad s = \frac{n}{n + 100}

    The temperatures are those of :class:`SMART` by the margin, by the confidence and by the entropy, and that
    of :class:`ParameterizedTemperatureScaling`. Each follows the chance of its samples in its own way, so
    their mean, which is the geometric mean of the distributions that they give, follows it less. From few
    samples it stays near 1. A pool ends with it (``docs/results/arena.md``).
    """

    preserves_accuracy = True
    masks = True
    stored = declare(share=one_number(PROBABILITIES))
    part_names = (*_INDICATORS, _LARGEST)

    share: Tensor

    def __init__(self, parts: Sequence[SampleTemperature], *, share: float) -> None:
        super().__init__(n_classes=parts[0].n_classes)
        for name, part in zip(self.part_names, parts, strict=True):
            self.add_module(name, part)
        self.register_buffers(share=torch.tensor(share, dtype=torch.float64))

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        strengths: Sequence[float] | None = None,
        **rows: Unpack[Rows],
    ) -> Self:
        """Fit each temperature on all samples.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            strengths: For each curve of SMART the price of bending it; chosen if not given.
        """
        data = cls.data(logits, labels, **rows)
        prices = [None] * len(_INDICATORS) if strengths is None else strengths
        if len(prices) != len(_INDICATORS):
            raise InputError(
                f"strengths: expected one for each of {', '.join(_INDICATORS)}, got {len(prices)}"
            )
        curves = [
            SMART.fit(data, indicator=indicator, strength=price)
            for indicator, price in zip(_INDICATORS, prices, strict=True)
        ]
        n = _independent(data)
        fitted = cls([*curves, ParameterizedTemperatureScaling.fit(data)], share=n / (n + _UNCHANGED))
        fitted.for_folds = {"strengths": [curve.for_folds["strength"] for curve in curves]}
        return fitted

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        z = at_least_float32(logits)
        parts = [part for part in self.children() if isinstance(part, SampleTemperature)]
        inverse = sum((1 / part.temperature(z).to(z.dtype) for part in parts), z.new_zeros(len(z)))
        scale = 1 + self.share.to(z.dtype) * (inverse / len(parts) - 1)
        return torch.log_softmax(z * scale[:, None], dim=1)


def _independent(data: FittingSet) -> float:
    """Return how many independent samples a set is worth for the gaps between confidence and accuracy."""
    confidence, predicted = torch.softmax(data.logits.double(), dim=1).max(dim=1)
    counts = data.evidence(confidence - (predicted == data.labels).double())
    return size_of(data.labels, counts)
