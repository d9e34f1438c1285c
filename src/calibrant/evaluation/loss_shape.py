"""What a loss makes of the true class's probability: its value, and how hard it pulls."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, to_tensor


@dataclass(frozen=True, eq=False)
class LossShape:
    """Losses along the probability of the true class.

    Attributes:
        p: Probabilities of the true class, float64.
        loss: Value of each loss, by name.
        weight: Slope of each loss in the cross-entropy, by name: the gradient is that of cross-entropy times
            this number. Below 0, training pushes the probability down.
    """

    p: Tensor
    loss: Mapping[str, Tensor]
    weight: Mapping[str, Tensor]


def loss_shape(losses: Mapping[str, Callable[[Tensor], Tensor]], *, p: ArrayLike | None = None) -> LossShape:
    """Evaluate losses that depend on the true class's probability alone, and differentiate them.

    Args:
        losses: Functions of the cross-entropy ``-log p_y`` of each sample, by name.
        p: Probabilities above 0 and at most 1, shape ``(m,)``; by default an even grid.

    Example:
        >>> shape = loss_shape({"cross-entropy": lambda nll: nll, "squared": lambda nll: nll**2})
        >>> shape.weight["cross-entropy"].unique().tolist()
        [1.0]
    """
    grid = torch.linspace(0.005, 1.0, 200, dtype=torch.float64) if p is None else to_tensor(p, "p").double()
    if grid.ndim != 1 or not bool(((grid > 0) & (grid <= 1)).all()):
        raise InputError("p: expected probabilities above 0 and at most 1 in shape (m,), got others")
    values, slopes = {}, {}
    for name, loss in losses.items():
        with torch.enable_grad():
            nll = (-grid.log()).requires_grad_()
            value = loss(nll)
            if value.shape != grid.shape:
                raise InputError(
                    f"{name}: expected one value per sample, got shape {tuple(value.shape)}; do not reduce"
                )
            slopes[name] = torch.autograd.grad(value.sum(), nll)[0]
        values[name] = value.detach()
    return LossShape(grid, MappingProxyType(values), MappingProxyType(slopes))
