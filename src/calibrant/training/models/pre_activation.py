"""The body of residual networks that normalise first (He et al., ECCV 2016), thin or wide."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch.nn.functional as F
from torch import Tensor, nn

MakeLayers: TypeAlias = Callable[[int, int, int], nn.Module]


class PreActivationBody(nn.Module):
    """Stages of blocks through which the sum runs undisturbed, each stage after the first at half the size.

    Args:
        channels: Of the image.
        widths: Channels inside the blocks of each stage.
        n_blocks: Blocks of each stage.
        layers: Makes the layers of a block from its channels, its width and its stride.
        expansion: How many times wider than inside a block is what leaves it.
    """

    def __init__(
        self, channels: int, widths: Sequence[int], n_blocks: int, layers: MakeLayers, *, expansion: int = 1
    ) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        n = 16
        for stage, width in enumerate(widths):
            for place in range(n_blocks):
                stride = 2 if stage and not place else 1
                blocks.append(PreActivationBlock(n, expansion * width, stride, layers(n, width, stride)))
                n = expansion * width
        self.stem = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(n)
        self.n_features = n

    def forward(self, images: Tensor) -> Tensor:
        """Return the mean over the image of the last activation."""
        return F.relu(self.norm(self.blocks(self.stem(images)))).mean(dim=(2, 3))


class PreActivationBlock(nn.Module):
    """Add to the input what ``layers`` make of the normalised and rectified input."""

    def __init__(self, n_in: int, n_out: int, stride: int, layers: nn.Module) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(n_in)
        self.layers = layers
        self.shortcut = None if n_in == n_out else nn.Conv2d(n_in, n_out, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return an image of the new number of channels."""
        h = F.relu(self.norm(x))
        shortcut: Tensor = x if self.shortcut is None else self.shortcut(h)
        residual: Tensor = self.layers(h)
        return shortcut + residual


def basic_layers(n_in: int, width: int, stride: int, *, dropout: float = 0.0) -> nn.Sequential:
    """Return two 3 x 3 convolutions of a block whose first activation has been done, dropout between them."""
    return nn.Sequential(
        nn.Conv2d(n_in, width, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Conv2d(width, width, 3, padding=1, bias=False),
    )


def bottleneck_layers(n_in: int, width: int, stride: int) -> nn.Sequential:
    """Return convolutions that lead to few channels, look around there, and lead back to four times more."""
    return nn.Sequential(
        nn.Conv2d(n_in, width, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 4 * width, 1, bias=False),
    )
