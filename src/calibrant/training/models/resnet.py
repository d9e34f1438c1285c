"""Residual networks: ResNet, PreResNet and WideResNet in their CIFAR form, and ResNet-50."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeAlias, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.inputs import check_choice, check_count
from calibrant.training.models.classifier import (
    Classifier,
    check_counts,
    check_image_shape,
    check_probability,
    he_initialise,
)

# From the channels of a block's input, its width and its stride to its layers.
_MakeLayers: TypeAlias = Callable[[int, int, int], nn.Module]

Stem: TypeAlias = Literal["cifar", "imagenet"]

# Sides of images in pixels up to which the first layer of ResNet-50 keeps the size, unless a stem is named.
_SMALL = 64


class ResNet(Classifier):
    """A residual network: each block learns what to add to its input, so that a hundred layers still train.

    Three stages of 16, 32 and 64 channels have :math:`n` blocks of two convolutions each, at full, half and
    quarter size: with the first convolution and the head, :math:`6n + 2` layers. Where a stage begins, the
    shortcut takes every second pixel and fills the new channels with zeros (option A, which the paper uses on
    CIFAR and which has no parameters).

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
        n = _blocks_per_stage(depth, layers_per_block=2)
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
    """Two convolutions, added to the input; a block that adds channels halves the size."""

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
        """Return an image with ``n_out`` channels."""
        shortcut = x
        if self.new_channels:
            shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))
        return F.relu(shortcut + self.residual(x))


class BottleneckResNet(Classifier):
    """A residual network of bottlenecks: ResNet-50 with its default sizes.

    Four stages of blocks with 64, 128, 256 and 512 channels inside and four times as many outside, each stage
    after the first at half the size. A block is 1 x 1, 3 x 3 and 1 x 1 convolutions, each normalised; the
    3 x 3 one has the stride, as in PyTorch's pretrained network. Where channels or size change, the shortcut
    is a normalised 1 x 1 convolution (option B).

    Args:
        n_classes: Number of classes.
        shape: ``(channels, height, width)``.
        blocks: Blocks of each stage: ``(3, 4, 6, 3)`` for 50 layers, ``(3, 4, 23, 3)`` for 101,
            ``(3, 4, 26, 3)`` for what Mukhoti et al.'s program calls ResNet-110.
        width: Channels of the stem and inside the first stage's blocks; each stage doubles them.
        stem: ``"cifar"`` begins with a 3 x 3 convolution that keeps the size (as Mukhoti et al. do for CIFAR
            and Tiny-ImageNet), ``"imagenet"`` with a 7 x 7 one of stride 2 and max-pooling, which leave a
            quarter. If not given, images up to 64 pixels a side get the first and larger ones the second.

    References:
        He et al., "Deep Residual Learning for Image Recognition", CVPR 2016.
        Mukhoti et al., "Calibrating Deep Neural Networks Using Focal Loss", NeurIPS 2020.
    """

    def __init__(
        self,
        *,
        n_classes: int,
        shape: Sequence[int],
        blocks: Sequence[int] = (3, 4, 6, 3),
        width: int = 64,
        stem: Stem | None = None,
    ) -> None:
        super().__init__()
        check_count(n_classes, "n_classes", at_least=2)
        blocks = check_counts(blocks, "blocks")
        channels, height, breadth = check_image_shape(shape)
        if stem is None:
            stem = "cifar" if min(height, breadth) <= _SMALL else "imagenet"
        n = check_count(width, "width")
        self.stem = stem_layers(channels, n, stem)
        body: list[nn.Module] = []
        for stage, n_blocks in enumerate(blocks):
            for place in range(n_blocks):
                body.append(BottleneckBlock(n, width * 2**stage, stride=2 if stage and not place else 1))
                n = 4 * width * 2**stage
        self.blocks = nn.Sequential(*body)
        self.head = nn.Linear(n, n_classes)
        he_initialise(self)

    def features(self, inputs: Tensor) -> Tensor:
        """Return the mean over the image of the last block."""
        h: Tensor = self.blocks(self.stem(inputs)).mean(dim=(2, 3))
        return h


class BottleneckBlock(nn.Module):
    """Three convolutions with few channels in the middle, added to the input."""

    def __init__(self, n_in: int, width: int, *, stride: int) -> None:
        super().__init__()
        n_out = 4 * width
        self.residual = nn.Sequential(*bottleneck_layers(n_in, width, stride), nn.BatchNorm2d(n_out))
        self.shortcut: nn.Module = nn.Identity()
        if n_in != n_out or stride > 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(n_in, n_out, 1, stride=stride, bias=False), nn.BatchNorm2d(n_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return an image with ``4 * width`` channels."""
        return F.relu(self.shortcut(x) + self.residual(x))


def stem_layers(channels: int, width: int, stem: Stem) -> nn.Sequential:
    """Return the first layers of a ResNet-50: at the size of the image, or at a quarter of it."""
    check_choice(stem, "stem", get_args(Stem))
    if stem == "cifar":
        first, pool = nn.Conv2d(channels, width, 3, padding=1, bias=False), []
    else:
        first = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
        pool = [nn.MaxPool2d(3, stride=2, padding=1)]
    return nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU(), *pool)


class _PreActivationNetwork(Classifier):
    """A residual network that normalises before each convolution."""

    def __init__(self, body: "PreActivationBody", n_classes: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(body.n_features, n_classes)
        he_initialise(self)

    def features(self, inputs: Tensor) -> Tensor:
        """Return the mean over the image of the last activation."""
        h: Tensor = self.body(inputs)
        return h


class PreResNet(_PreActivationNetwork):
    """A residual network whose sum runs unchanged from the first block to the last.

    Normalisation and rectifier come before each convolution instead of after it. The three stages are those
    of :class:`ResNet`; where the number of channels changes, the shortcut is a 1 x 1 convolution of the
    activated input (option B, as in the authors' program).

    Args:
        n_classes: Number of classes.
        shape: ``(channels, height, width)``.
        depth: Number of layers: :math:`6n + 2`, or :math:`9n + 2` with bottlenecks.
        bottleneck: Make a block of three convolutions, 1 x 1, 3 x 3 and 1 x 1, the last with four times the
            channels: the paper's form for 164 layers and more. Some programs mean this by "PreResNet-56" too.

    References:
        He et al., "Identity Mappings in Deep Residual Networks", ECCV 2016.
    """

    def __init__(
        self, *, n_classes: int, shape: Sequence[int], depth: int = 56, bottleneck: bool = False
    ) -> None:
        check_count(n_classes, "n_classes", at_least=2)
        channels, _, _ = check_image_shape(shape)
        n = _blocks_per_stage(depth, layers_per_block=3 if bottleneck else 2)
        layers: _MakeLayers = bottleneck_layers if bottleneck else basic_layers
        body = PreActivationBody(channels, (16, 32, 64), n, layers, expansion=4 if bottleneck else 1)
        super().__init__(body, n_classes)


class WideResNet(_PreActivationNetwork):
    """A residual network with few layers of many channels: as accurate as the very deep ones, and faster.

    It has the blocks of :class:`PreResNet` with ``width`` times the channels: three stages of :math:`16w`,
    :math:`32w` and :math:`64w`. The paper counts the shortcuts that change the number of channels as layers,
    so :math:`n` blocks per stage are :math:`6n + 4` layers.

    Args:
        n_classes: Number of classes.
        shape: ``(channels, height, width)``.
        depth: Number of layers, :math:`6n + 4`.
        width: Channels, as a multiple of those of :class:`PreResNet`.
        dropout: Probability with which a unit between the convolutions of a block is dropped in training;
            0.3 where the paper uses it.

    References:
        Zagoruyko and Komodakis, "Wide Residual Networks", BMVC 2016.
    """

    def __init__(
        self, *, n_classes: int, shape: Sequence[int], depth: int = 28, width: int = 10, dropout: float = 0.0
    ) -> None:
        check_count(n_classes, "n_classes", at_least=2)
        channels, _, _ = check_image_shape(shape)
        n = _blocks_per_stage(depth, layers_per_block=2, other_layers=4)
        check_count(width, "width")
        layers = partial(basic_layers, dropout=check_probability(dropout, "dropout"))
        body = PreActivationBody(channels, (16 * width, 32 * width, 64 * width), n, layers)
        super().__init__(body, n_classes)


class PreActivationBody(nn.Module):
    """Stages of pre-activation blocks, each stage after the first at half the size.

    Args:
        channels: Of the image.
        widths: Channels inside the blocks of each stage.
        n_blocks: Blocks of each stage.
        layers: Makes the layers of a block from its channels, its width and its stride.
        expansion: Channels of a block's output, as a multiple of its width.
    """

    def __init__(
        self, channels: int, widths: Sequence[int], n_blocks: int, layers: _MakeLayers, *, expansion: int = 1
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
    """Adds to its input the output of ``layers`` for the normalised and rectified input."""

    def __init__(self, n_in: int, n_out: int, stride: int, layers: nn.Module) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(n_in)
        self.layers = layers
        self.shortcut = None if n_in == n_out else nn.Conv2d(n_in, n_out, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return an image with ``n_out`` channels."""
        h = F.relu(self.norm(x))
        shortcut: Tensor = x if self.shortcut is None else self.shortcut(h)
        residual: Tensor = self.layers(h)
        return shortcut + residual


def basic_layers(n_in: int, width: int, stride: int, *, dropout: float = 0.0) -> nn.Sequential:
    """Return two 3 x 3 convolutions with dropout between them; the block has activated their input."""
    return nn.Sequential(
        nn.Conv2d(n_in, width, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Conv2d(width, width, 3, padding=1, bias=False),
    )


def bottleneck_layers(n_in: int, width: int, stride: int) -> nn.Sequential:
    """Return a 3 x 3 convolution of few channels between two 1 x 1 ones, the last with four times as many."""
    return nn.Sequential(
        nn.Conv2d(n_in, width, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 4 * width, 1, bias=False),
    )


def _blocks_per_stage(depth: int, *, layers_per_block: int, other_layers: int = 2) -> int:
    """Return the number of blocks in each of three stages; ``other_layers`` are outside of the blocks."""
    check_count(depth, "depth")
    per_stage = 3 * layers_per_block
    n, rest = divmod(depth - other_layers, per_stage)
    if n < 1 or rest:
        raise InputError(f"depth: expected {per_stage} n + {other_layers} layers, n at least 1, got {depth}")
    return n
