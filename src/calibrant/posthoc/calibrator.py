"""What every calibrator is: a fitted, immutable map from logits to calibrated log-probabilities."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from calibrant.inputs import ArrayLike, check_logits, same_kind


class Calibrator(nn.Module, ABC):
    """A fitted map from logits to calibrated log-probabilities.

    Calibrators are made by the class method ``fit`` of each method, or from known parameters; there is
    no unfitted state. Parameters are buffers, so that moving, saving and exporting work as for any
    module.
    """

    @abstractmethod
    def forward(self, logits: Tensor) -> Tensor:
        """Return calibrated log-probabilities of shape ``(n, k)``."""

    @torch.no_grad()
    def predict_proba(self, logits: ArrayLike) -> ArrayLike:
        """Return calibrated probabilities of shape ``(n, k)`` in the caller's kind of array."""
        return same_kind(self(check_logits(logits)).exp(), like=logits)
