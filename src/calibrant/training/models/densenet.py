"""Densely connected networks in their CIFAR form (Huang et al., CVPR 2017)."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.inputs import check_count
from calibrant.training.models.classifier import (
    Classifier,
    check_counts,
    check_image_shape,
    check_probability,
    he_initialise,
)


class DenseNet(Classifier):
    """A network in which each layer reads the channels of all layers before it and adds a few of its own.

    This is the form with bottlenecks and compression (DenseNet-BC). For small images the first convolution is
    3 x 3 and keeps the size; the four blocks are those of DenseNet-121, at full, half, quarter and eighth
    size.

    Args:
        n_classes: Number of classes.
        shape: ``(channels, height, width)``.
        growth: Channels that each layer adds; the first convolution makes twice as many.
        blocks: Layers of each dense block, two convolutions each.
        dropout: Probability with which a unit of a new channel is dropped in training; 0.2 in the paper where
            the data are not augmented.

    References:
        Huang et al., "Densely Connected Convolutional Networks", CVPR 2017.
    """

    def __init__(
        self,
        *,
        n_classes: int,
        shape: Sequence[int],
        growth: int = 32,
        blocks: Sequence[int] = (6, 12, 24, 16),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_count(n_classes, "n_classes", at_least=2)
        check_count(growth, "growth")
        blocks = check_counts(blocks, "blocks")
        check_probability(dropout, "dropout")
        channels, _, _ = check_image_shape(shape, at_least=2 ** (len(blocks) - 1))
        n = 2 * growth
        body: list[nn.Module] = [nn.Conv2d(channels, n, 3, padding=1, bias=False)]
        for place, n_layers in enumerate(blocks):
            if place:
                body.append(halved(n))
                n //= 2
            for _ in range(n_layers):
                body.append(DenseLayer(n, growth, dropout))
                n += growth
        self.body = nn.Sequential(*body, nn.BatchNorm2d(n), nn.ReLU())
        self.head = nn.Linear(n, n_classes)
        he_initialise(self)

    def features(self, inputs: Tensor) -> Tensor:
        """Return the mean over the image of all channels."""
        h: Tensor = self.body(inputs).mean(dim=(2, 3))
        return h


class DenseLayer(nn.Module):
    """Two convolutions, the first with four times the growth, whose output is appended to the input."""

    def __init__(self, n_in: int, growth: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.layers = nn.Sequential(
            nn.BatchNorm2d(n_in),
            nn.ReLU(),
            nn.Conv2d(n_in, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return an image with ``growth`` more channels."""
        return torch.cat([x, F.dropout(self.layers(x), self.dropout, self.training)], dim=1)


def halved(n: int) -> nn.Sequential:
    """Return the transition between blocks: half the channels, half the size."""
    return nn.Sequential(nn.BatchNorm2d(n), nn.ReLU(), nn.Conv2d(n, n // 2, 1, bias=False), nn.AvgPool2d(2))
