"""No calibration at all: the baseline that every method must beat."""

from typing import Self

import torch
from torch import Tensor

from calibrant.inputs import ArrayLike
from calibrant.posthoc.calibrator import Calibrator, check_fitting_set


class Identity(Calibrator):
    """Take the model at its word: the softmax of its logits; the predicted class never changes."""

    preserves_accuracy = True

    @classmethod
    def fit(
        cls, logits: ArrayLike, labels: ArrayLike, *, features: ArrayLike | None = None, seed: int = 0
    ) -> Self:
        """Check the fitting set as every method does; there is nothing to learn from it."""
        z, _ = check_fitting_set(logits, labels)
        return cls(n_classes=z.shape[1])

    def forward(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return the model's own log-probabilities of shape ``(n, k)``."""
        return torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=1)
