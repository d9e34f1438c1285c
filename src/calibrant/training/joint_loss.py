"""The loss of RefCal's joint training: any loss of the logits plus a weighted loss of the embeddings."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from calibrant.losses.loss import Loss


class JointLoss(Loss):
    """The sum of a classifier's loss and a weight times an encoder's loss.

    Memory, such as AdaFocal's exponents or CRL's history, is that of the classifier's loss.

    Args:
        classifier: Reads the logits.
        encoder: Reads the embeddings.
        weight: Factor of the encoder's loss.

    Example:
        >>> import torch
        >>> from calibrant.losses import CrossEntropyLoss, SupervisedContrastiveLoss
        >>> loss = JointLoss(CrossEntropyLoss(), SupervisedContrastiveLoss(), weight=0.5)
        >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
        >>> round(float(loss((torch.zeros(3, 2), embeddings), torch.tensor([0, 0, 1]))), 3)
        0.693
    """

    def __init__(self, classifier: Loss, encoder: Loss, *, weight: float) -> None:
        super().__init__()
        self.classifier = classifier
        self.encoder = encoder
        self.weight = weight

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]  # those of the classifier's loss
        """Keyword arguments that the classifier's loss needs."""
        return self.classifier.needs

    @property
    def validates(self) -> bool:  # type: ignore[override]  # as the classifier's loss
        """Whether the classifier's loss needs the validation set."""
        return self.classifier.validates

    @property
    def history(self) -> list[Mapping[str, Any]]:
        """What the classifier's loss recorded at each ``update``."""
        return self.classifier.history

    def forward(self, outputs: tuple[Tensor, Tensor], labels: Tensor, **extra: Tensor) -> Tensor:
        """Return the loss of a batch, given its logits and embeddings."""
        logits, embeddings = outputs
        value: Tensor = self.classifier(logits, labels, **extra)
        contrast: Tensor = self.encoder(embeddings, labels)
        return value + self.weight * contrast

    def update(self, logits: Tensor | None = None, labels: Tensor | None = None) -> None:
        """End an epoch of both losses; only the classifier's gets the validation set."""
        self.classifier.update(logits, labels)
        self.encoder.update()

    def extra_repr(self) -> str:
        """Return both losses with the weight."""
        return f"{self.classifier!r}, {self.weight:g} * {self.encoder!r}"
