"""Adam for a few small tensors (Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015)."""

from collections.abc import Sequence

import torch
from torch import Tensor


class Adam:
    """Steps of about the same length for every parameter, whatever the size of its gradient.

    The same numbers as ``torch.optim.Adam``, which imports torch's compiler and so takes seconds to begin.
    """

    def __init__(self, parameters: Sequence[Tensor], *, learning_rate: float) -> None:
        self._parameters = parameters
        self._learning_rate = learning_rate
        self._means = [torch.zeros_like(part) for part in parameters]
        self._squares = [torch.zeros_like(part) for part in parameters]
        self._steps = 0

    def step(self, loss: Tensor, *, decay: float = 0.9, square_decay: float = 0.999) -> None:
        """Move every parameter down the gradient of the loss."""
        gradients = torch.autograd.grad(loss, self._parameters)
        self._steps += 1
        scale = self._learning_rate / (1 - decay**self._steps)
        square_scale = 1 - square_decay**self._steps
        with torch.no_grad():
            for part, gradient, mean, square in zip(
                self._parameters, gradients, self._means, self._squares, strict=True
            ):
                mean.lerp_(gradient, 1 - decay)
                square.lerp_(gradient.square(), 1 - square_decay)
                part.sub_(scale * mean / ((square / square_scale).sqrt() + 1e-8))
