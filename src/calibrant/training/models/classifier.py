"""The promise of every model: features, then one linear head that turns them into logits."""

from abc import ABC, abstractmethod

from torch import Tensor, nn


class Classifier(nn.Module, ABC):
    """A network whose last step is linear, so that what the last step sees can be looked at.

    A model of this kind sets ``head`` and defines :meth:`features`; the logits are the head of the features.
    Losses on embeddings, feature clipping and out-of-distribution scores read the features, and
    ``CalibratedModel`` finds them under the name ``"head"``.
    """

    head: nn.Linear

    @abstractmethod
    def features(self, inputs: Tensor) -> Tensor:
        """Return what the head sees, of shape ``(n, d)``."""

    @property
    def n_features(self) -> int:
        """Number of features of a sample."""
        return self.head.in_features

    @property
    def n_classes(self) -> int:
        """Number of logits of a sample."""
        return self.head.out_features

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits of shape ``(n, k)``."""
        logits: Tensor = self.head(self.features(inputs))
        return logits

    def logits_and_features(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return both from one pass, of shapes ``(n, k)`` and ``(n, d)``."""
        h = self.features(inputs)
        return self.head(h), h
