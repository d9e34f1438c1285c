"""The networks of RefCal: an encoder with a projection, then a head on the frozen encoder, or both at once.

A contrastive loss of the features trains the encoder for refinement; any loss trains the head for
calibration.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.training.network import Network


class ProjectedEncoder(nn.Module):
    """The features of a network, projected to unit vectors that a contrastive loss compares.

    Args:
        network: The network, whose head is not trained.
        projection: Number of coordinates of the projection.
        hidden: Width of the projection's hidden layer; None for that of the features, 0 for no hidden layer.
    """

    def __init__(self, network: Network, *, projection: int, hidden: int | None) -> None:
        super().__init__()
        width, head = _features_and_head(network)
        # With several processes, DDP would wait forever for a gradient of the head.
        head.requires_grad_(False)
        self.network = network
        self.projection = _projection(width, projection, hidden)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return one unit vector per input."""
        return _unit_vectors(self.projection, self.network.features(inputs))


class JointEncoder(nn.Module):
    """A whole network with a projection of its features, for a loss of logits and one of embeddings at once.

    Args:
        network: The network, of which all is trained.
        projection: Number of coordinates of the projection.
        hidden: Width of the projection's hidden layer; None for that of the features, 0 for no hidden layer.
    """

    def __init__(self, network: Network, *, projection: int, hidden: int | None) -> None:
        super().__init__()
        width, _ = _features_and_head(network)
        self.network = network
        self.projection = _projection(width, projection, hidden)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of shape ``(n, k)`` and one unit vector per input, from one pass."""
        logits, features = self.network.logits_and_features(inputs)
        return logits, _unit_vectors(self.projection, features)


def _features_and_head(network: Network) -> tuple[int, nn.Linear]:
    """Return the number of features and the head, or refuse a network without them."""
    width, head = network.n_features, network.head
    if head is None or width is None:
        raise InputError(
            "encoder: expected a model with a linear head, whose features can be trained alone, got one "
            "without; end the network with nn.Linear(features, classes)"
        )
    return width, head


def _projection(width: int, size: int, hidden: int | None) -> nn.Sequential:
    inner = width if hidden is None else hidden
    layers: list[nn.Module] = [nn.Linear(width, inner), nn.ReLU()] if inner else []
    return nn.Sequential(*layers, nn.Linear(inner or width, size))


def _unit_vectors(projection: nn.Module, features: Tensor | None) -> Tensor:
    if features is None:
        raise InputError("encoder: expected a model that shows its features, got one that does not")
    return F.normalize(projection(features), dim=1)


class FrozenEncoder(nn.Module):
    """A network that trains only its head; other weights and running statistics do not change."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        freeze_all_but_head(network)

    def train(self, mode: bool = True) -> "FrozenEncoder":
        """Switch the head alone between training and evaluation."""
        super().train(mode)
        self.network.eval()
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits of shape ``(n, k)``."""
        return cast("Tensor", self.network(inputs))


def freeze_all_but_head(network: Network) -> nn.Linear:
    """Freeze all weights but those of the head, and return the head."""
    head = network.head
    if head is None:
        raise InputError("model: expected a linear head to train on frozen features, got none")
    network.requires_grad_(False)
    head.requires_grad_(True)
    return head


@torch.no_grad()
def class_mean_logits(
    known: Tensor, labels: Tensor, features: Tensor, *, n_classes: int, temperature: float = 0.1
) -> Tensor:
    """Classify features by the cosine to the mean direction of each class.

    An encoder has no head yet; this rule turns its features into logits, so that it can be measured. A class
    without a known sample is never predicted.

    Args:
        known: Features of samples whose class is known, shape ``(n, d)``.
        labels: Their classes.
        features: What to classify, shape ``(m, d)``.
        n_classes: Number of classes.
        temperature: Cosines are divided by it; 0.1 is usual in supervised contrastive learning.

    Example:
        >>> known, labels = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 1])
        >>> class_mean_logits(known, labels, torch.tensor([[3.0, 0.0]]), n_classes=2)
        tensor([[10.,  0.]])
    """
    directions = F.normalize(known, dim=1)
    sums = known.new_zeros(n_classes, known.shape[1]).index_add_(0, labels, directions)
    logits = F.normalize(features, dim=1) @ F.normalize(sums, dim=1).T / temperature
    empty = torch.bincount(labels, minlength=n_classes) == 0
    return torch.where(empty, -2 / temperature, logits)
