"""The shape of a loss: its value and its gradient as functions of the probability of the true class."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, to_tensor
from calibrant.results import FrozenDict, Result


@dataclass(frozen=True, eq=False)
class LossShape(Result):
    """Losses as functions of the probability of the true class.

    Attributes:
        p: Probabilities of the true class, float64.
        loss: Value of each loss, by name.
        weight: Derivative of each loss with respect to cross-entropy, by name: the gradient of the loss is
            that of cross-entropy times this number. Below 0, training lowers the probability.
    """

    p: Tensor
    loss: Mapping[str, Tensor]
    weight: Mapping[str, Tensor]


def loss_shape(losses: Mapping[str, Callable[[Tensor], Tensor]], *, p: ArrayLike | None = None) -> LossShape:
    """Evaluate and differentiate losses that depend only on the probability of the true class.

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
        raise InputError(
            "p: expected probabilities above 0 and at most 1 of shape (m,), got other values or another shape"
        )
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
    return LossShape(grid, FrozenDict(values), FrozenDict(slopes))
