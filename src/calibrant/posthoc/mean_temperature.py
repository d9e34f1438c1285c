"""The mean of several temperatures for each sample, which errs less than any of them."""

from collections.abc import Sequence
from typing import Self, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike
from calibrant.posthoc.fitting.sample_temperature import LOWEST_TEMPERATURE, Layers, SampleTemperature
from calibrant.posthoc.fitting.stored import PROBABILITIES, declare, layers_of, one_number
from calibrant.posthoc.fitting.weighing import size_of
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads
from calibrant.posthoc.parameterized import ParameterizedTemperatureScaling, largest_logits
from calibrant.posthoc.smart import SMART, Indicator, indicator_values

# What the temperatures of SMART depend on.
_INDICATORS: tuple[Indicator, ...] = ("margin", "confidence", "entropy")

# The mean counts as if this many samples more had shown that there is nothing to repair.
_UNCHANGED = 100


class MeanTemperature(SampleTemperature):
    r"""Divide logits by the harmonic mean of several temperatures; the predicted class never changes.

    .. math:: \frac{1}{T(z)} = 1 - s + \frac{s}{4} \sum_{j=1}^4 \frac{1}{T_j(z)}, \quad s = \frac{n}{n + 100}

    The temperatures are those of :class:`SMART` by the margin, by the confidence and by the entropy, and that
    of :class:`ParameterizedTemperatureScaling`. Each follows the chance of its samples in its own way, so
    their mean, which is the geometric mean of the distributions that they give, follows it less. From few
    samples it stays near 1, so it suits predictions that are nearly calibrated: a pool ends with it
    (``docs/results/arena.md``). The four networks are kept as one with four outputs.
    """

    masks = True
    options = ("unit",)
    n_layers = 3
    stored = declare(**layers_of(n_layers, outputs=len(_INDICATORS) + 1), share=one_number(PROBABILITIES))

    share: Tensor

    def __init__(
        self, layers: Layers, *, share: float, unit: float = 1.0, n_classes: int | None = None
    ) -> None:
        super().__init__(layers, unit=unit, n_classes=n_classes)
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
        largest = ParameterizedTemperatureScaling.fit(data)
        n = _independent(data)
        fitted = cls(
            _joined([curve.layers for curve in curves], largest.layers),
            share=n / (n + _UNCHANGED),
            unit=largest.unit,
            n_classes=data.n_classes,
        )
        fitted.for_folds = {"strengths": [curve.for_folds["strength"] for curve in curves]}
        return fitted

    def inputs(self, logits: Tensor) -> Tensor:
        """Return the confidence, the entropy, and the largest logits of each sample, the largest first."""
        top = self.layers[0][0].shape[1] - 2
        values = [indicator_values(each, logits) for each in _INDICATORS[1:]]
        return torch.cat([*values, largest_logits(logits, top)], dim=1)

    def temperature(self, logits: Tensor) -> Tensor:
        """Return the mean temperature of each sample, shape ``(n,)``."""
        *hidden, last = self.layers
        values = self.inputs(logits if self.unit == 1 else logits / self.unit).to(last[0].dtype)
        for layer in hidden:
            values = torch.relu(F.linear(values, *layer))
        temperatures = self.unit * (F.softplus(F.linear(values, *last)) + LOWEST_TEMPERATURE)
        return 1 / (1 + self.share * (temperatures.reciprocal().mean(dim=1) - 1))


def _joined(curves: Sequence[Layers], largest: Layers) -> Layers:
    """Return one network of four: the curves of SMART, and that which reads the largest logits.

    The margin is the first of these less the second. The second layer passes on what the curves found in the
    first, which is not negative.
    """
    top = largest[0][0].shape[1]
    seen = torch.zeros(len(curves), 2 + top).to(largest[0][0])
    seen[0, 2], seen[0, 3], seen[1, 0], seen[2, 1] = 1.0, -1.0, 1.0, 1.0
    first = [hidden[0] * row for (hidden, _), row in zip(curves, seen, strict=True)]
    passed = torch.eye(sum(map(len, first))).to(seen)
    ends = [*(last for _, last in curves), largest[2]]
    return [
        (
            torch.cat([*first, F.pad(largest[0][0], (2, 0))]),
            torch.cat([*(hidden[1] for hidden, _ in curves), largest[0][1]]),
        ),
        (
            torch.block_diag(passed, largest[1][0]),
            torch.cat([passed.new_zeros(len(passed)), largest[1][1]]),
        ),
        (torch.block_diag(*(weight for weight, _ in ends)), torch.cat([bias for _, bias in ends])),
    ]


def _independent(data: FittingSet) -> float:
    """Return how many independent samples a set is worth for the gaps between confidence and accuracy."""
    confidence, predicted = torch.softmax(data.logits.double(), dim=1).max(dim=1)
    counts = data.evidence(confidence - (predicted == data.labels).double())
    return size_of(data.labels, counts)
