"""Intra-order-preserving maps (Rahimi et al., "Intra Order-preserving Functions", NeurIPS 2020)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal, Self, TypeAlias, Unpack, get_args

import torch
from torch import Tensor

from calibrant.inputs import ArrayLike, at_least_float32, check_choice, check_count
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.fitting.affine import check_strength
from calibrant.posthoc.fitting.order_preserving import (
    KNOTS,
    MonotoneLikelihood,
    StretchLikelihood,
    factor,
    first_parameters,
    fit_order,
    monotone_scores,
    stretched,
    thinned,
    unpacked,
)
from calibrant.posthoc.fitting.stored import AT_LEAST_1, POSITIVE, Numbers, declare, layers_of, one_number
from calibrant.posthoc.fitting.temperature_search import likeliest_temperature
from calibrant.posthoc.fitting_set import FittingSet, Rows, sparing_threads

OrderVariant: TypeAlias = Literal["invariant", "diagonal"]

_HIDDEN_UNITS = 8


class IntraOrderPreserving(Calibrator):
    r"""Stretch the gaps between the sorted logits of a row; the ranking of the classes never changes.

    .. math:: f(z) = S(z)^{-1} U w(z), \quad w_i = (y_i - y_{i+1})\,m_i(z) \ge 0, \quad y = S(z) z

    with the sorting permutation :math:`S` and the upper triangle of ones :math:`U`. In the order-invariant
    variant a network computes the factors :math:`m` from the ten largest log-probabilities in order; the
    gaps behind them share one factor. In the diagonal variant one increasing function is applied to every
    log-probability. Factors and slopes lie between 1/8 and 8, as multiples of temperature scaling.

    There are no gaps before masked classes. If fewer than ten classes exist, the network reads the lowest
    log-probability of them in place of those that are missing.
    """

    preserves_accuracy = True
    masks = True
    options = ("variant", "top")

    stored = declare(
        temperature=one_number(POSITIVE),
        slopes=Numbers((len(KNOTS),), POSITIVE, only=("variant", "diagonal")),
        **{
            name: replace(layer, only=("variant", "invariant"))
            for name, layer in layers_of(2, inputs="top", outputs="gaps").items()
        },
    )

    variant: OrderVariant
    top: Annotated[int, AT_LEAST_1]
    temperature: Tensor

    def __init__(
        self,
        temperature: float,
        parts: Mapping[str, Tensor],
        *,
        variant: OrderVariant = "invariant",
        top: int = 10,
        n_classes: int | None = None,
    ) -> None:
        super().__init__(n_classes=n_classes)
        self.variant, self.top = variant, top
        self.register_buffers(temperature=torch.tensor(temperature, dtype=torch.float64), **parts)

    @classmethod
    @sparing_threads
    def fit(
        cls,
        logits: ArrayLike | FittingSet,
        labels: ArrayLike | None = None,
        *,
        variant: OrderVariant = "invariant",
        top: int = 10,
        strength: float | None = None,
        **rows: Unpack[Rows],
    ) -> Self:
        """Minimise the negative log-likelihood with a ridge that pulls the map to temperature scaling.

        On the fitting set the result is never less likely than temperature scaling. More than a million
        logits are thinned at random, because the map has few parameters.

        Args:
            logits: Scores of shape ``(n, k)``, or ``(n,)`` for the log-odds of class 1.
            labels: Integer classes of shape ``(n,)``.
            variant: ``"invariant"`` or ``"diagonal"``.
            top: For ``"invariant"``: how many of the largest log-probabilities the network reads.
            strength: Strength of the ridge; cross-validation chooses one if None, and infinity is
                temperature scaling.
        """
        data = cls.data(logits, labels, **rows)
        check_choice(variant, "variant", get_args(OrderVariant))
        top = min(check_count(top, "top"), data.n_classes)
        check_strength(strength)
        temperature = likeliest_temperature(data)
        some = thinned(data)
        some = some.with_logits(some.logits / temperature)
        if variant == "diagonal":
            parts, strength = _diagonal(some, strength)
        else:
            parts, strength = _invariant(some, top, strength)
        calibrator = cls(temperature, parts, variant=variant, top=top, n_classes=data.n_classes)
        calibrator.for_folds = {"strength": strength}
        return calibrator

    @property
    def sizes(self) -> dict[str, int]:
        """The number of classes, and those of inputs and outputs of the network."""
        known = super().sizes
        gaps = {"gaps": min(self.top, known["k"] - 1)} if "k" in known else {}
        return known | gaps | {"top": self.top}

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        z = at_least_float32(logits)
        # A common offset of a row would cost digits of the differences.
        z = (z - z.amax(dim=1, keepdim=True)) / self.temperature.to(z.dtype)
        if self.variant == "diagonal":
            scores = monotone_scores(torch.log_softmax(z, dim=1), self.get_buffer("slopes"))
        else:
            buffers = [self.get_buffer(name).to(z.dtype) for name in _LAYERS]
            scores = stretched(z, [(buffers[0], buffers[1]), (buffers[2], buffers[3])], top=self.top)
        return torch.log_softmax(scores, dim=1)


_LAYERS = ("weight_0", "bias_0", "weight_1", "bias_1")


def _diagonal(data: FittingSet, strength: float | None) -> tuple[dict[str, Tensor], float]:
    start = torch.zeros(len(KNOTS), dtype=torch.float64, device=data.labels.device)
    found, strength = fit_order(MonotoneLikelihood.of(data), start, data, strength=strength)
    return {"slopes": factor(found)}, strength


def _invariant(data: FittingSet, top: int, strength: float | None) -> tuple[dict[str, Tensor], float]:
    widths = (top, _HIDDEN_UNITS, min(top, data.n_classes - 1))
    likelihood = StretchLikelihood(data, widths=widths, top=top)
    mean, deviation = likelihood.standardise()
    start = first_parameters(widths, seed=data.seed).to(data.labels.device)
    found, strength = fit_order(likelihood, start, data, strength=strength)
    (weight, bias), (out_weight, out_bias) = unpacked(found, widths)
    weight = weight / deviation
    layers = (weight, bias - weight @ mean, out_weight, out_bias)
    return dict(zip(_LAYERS, layers, strict=True)), strength
