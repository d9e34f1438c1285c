"""A temperature for each sample, computed from its logits by a small network."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.inputs import at_least_float32
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.fitting.stored import POSITIVE_NUMBER

Layers: TypeAlias = Sequence[tuple[Tensor, Tensor]]

# How the output of a network becomes a positive temperature.
Link: TypeAlias = Literal["softplus", "absolute"]

LOWEST_TEMPERATURE = 0.1

# Bounds of the absolute value of an output.
_SMALLEST, _LARGEST = 1e-12, 1e12


def network_temperature(inputs: Tensor, layers: Layers, link: Link = "softplus") -> Tensor:
    r"""Return one positive temperature per row of ``inputs``, shape ``(n,)``.

    .. math:: T(x) = \mathrm{softplus}(W_2\,\mathrm{relu}(W_1 x + b_1) + b_2) + 0.1

    Args:
        inputs: Inputs of the network, shape ``(n, d)``.
        layers: Weight of shape ``(out, in)`` and bias of shape ``(out,)`` of each layer; the last has one
            output. There may be more than one hidden layer.
        link: ``"absolute"`` takes the absolute value of the last layer instead of softplus plus 0.1.
    """
    hidden = inputs
    for weight, bias in layers[:-1]:
        hidden = torch.relu(F.linear(hidden, weight, bias))
    output = F.linear(hidden, *layers[-1]).squeeze(1)
    if link == "absolute":
        return output.abs().clamp(_SMALLEST, _LARGEST)
    return F.softplus(output) + LOWEST_TEMPERATURE


class SampleTemperature(Calibrator):
    """Divide the logits of each sample by a temperature of its own; the predicted class never changes.

    The network reads logits in multiples of ``unit``, and its temperatures are multiples of it. The unit is 1
    unless the logits are so small that they need a temperature below the lowest that the network can give.
    """

    preserves_accuracy = True

    n_layers: ClassVar[int]
    link: Link = "softplus"
    unit: Annotated[float, POSITIVE_NUMBER]

    def __init__(self, layers: Layers, *, unit: float = 1.0, n_classes: int | None = None) -> None:
        super().__init__(n_classes=n_classes)
        self.unit = unit
        for number, (weight, bias) in enumerate(layers):
            self.register_buffer(f"weight_{number}", weight)
            self.register_buffer(f"bias_{number}", bias)

    @abstractmethod
    def inputs(self, logits: Tensor) -> Tensor:
        """Return the inputs of the network, shape ``(n, d)``."""

    @property
    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Weight and bias of each layer."""
        numbers = range(self.n_layers)
        return [(getattr(self, f"weight_{i}"), getattr(self, f"bias_{i}")) for i in numbers]

    def temperature(self, logits: Tensor) -> Tensor:
        """Return the temperature of each sample, shape ``(n,)``."""
        layers = self.layers
        seen = self.inputs(logits if self.unit == 1 else logits / self.unit).to(layers[0][0].dtype)
        temperature = network_temperature(seen, layers, self.link)
        return temperature if self.unit == 1 else self.unit * temperature

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""
        z = at_least_float32(logits)
        return torch.log_softmax(z / self.temperature(z).to(z.dtype)[:, None], dim=1)
