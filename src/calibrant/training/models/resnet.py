"""Residual networks in their CIFAR form (He et al., CVPR 2016)."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.inputs import check_count
from calibrant.training.models.classifier import Classifier
from calibrant.training.models.he_initialisation import he_initialise
from calibrant.training.models.options import check_image_shape


class ResNet(Classifier):
    """Layers that learn what to add to their input, so that a hundred of them still train.

    Three stages of 16, 32 and 64 channels with :math:`n` blocks of two convolutions each, at full, half and
    quarter size: with the first convolution and the head, :math:`6n + 2` layers. Where a stage begins, the
    shortcut takes every second pixel and fills the new channels with zeros (the paper's option A, which it
    uses on CIFAR: the shortcuts have no parameters).

    Args:
        n_classes: Number of classes.
        shape: ``(channels, height, width)``.
        depth: Number of layers, :math:`6n + 2`: 20, 32, 56 or 110 in the paper.

    References:
        He et al., "Deep Residual Learning for Image Recognition", CVPR 2016.
    """

    def __init__(self, *, n_classes: int, shape: Sequence[int], depth: int = 20) -> None:
        super().__init__()
        check_count(n_classes, "n_classes", at_least=2)
        channels, _, _ = check_image_shape(shape)
        n = blocks_per_stage(depth, layers_per_block=2)
        widths = [16] * n + [32] * n + [64] * n
        self.stem = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        )
        self.blocks = nn.Sequential(
            *(ResidualBlock(n_in, n_out) for n_in, n_out in zip([16, *widths], widths, strict=False))
        )
        self.head = nn.Linear(64, n_classes)
        he_initialise(self)

    def features(self, inputs: Tensor) -> Tensor:
        """Return the mean over the image of the last block."""
        h: Tensor = self.blocks(self.stem(inputs)).mean(dim=(2, 3))
        return h


class ResidualBlock(nn.Module):
    """Two convolutions, added to the input; more channels than before go with half the size."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.stride = 1 if n_in == n_out else 2
        self.new_channels = n_out - n_in
        self.residual = nn.Sequential(
            nn.Conv2d(n_in, n_out, 3, stride=self.stride, padding=1, bias=False),
            nn.BatchNorm2d(n_out),
            nn.ReLU(),
            nn.Conv2d(n_out, n_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(n_out),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return an image of the new number of channels."""
        shortcut = x
        if self.new_channels:
            shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))
        return F.relu(shortcut + self.residual(x))


def blocks_per_stage(depth: int, *, layers_per_block: int) -> int:
    """Return how many blocks each of three stages has; two layers stand outside the stages."""
    check_count(depth, "depth")
    n, rest = divmod(depth - 2, 3 * layers_per_block)
    if n < 1 or rest:
        raise InputError(f"depth: expected {3 * layers_per_block} n + 2 layers, n at least 1, got {depth}")
    return n
