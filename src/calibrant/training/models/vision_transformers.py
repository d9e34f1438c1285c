"""Vision transformers.

ViT for small images (Dosovitskiy et al., ICLR 2021), and Swin with attention within windows that shift from
layer to layer (Liu et al., ICCV 2021).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.inputs import check_count
from calibrant.training.models.classifier import (
    Classifier,
    check_counts,
    check_image_shape,
    check_probability,
)


class VisionTransformer(Classifier):
    """A transformer that reads an image as a sequence of patches.

    The defaults are ViT-small (width 384, 12 layers, 6 heads; Touvron et al.'s DeiT-S without distillation)
    with patches of 4 pixels, so that an image of 32 pixels has 64 tokens. A learned class token comes first,
    and its last state is the features. Weights start as truncated normal with deviation 0.02, as in DeiT; the
    first projection keeps PyTorch's.

    Args:
        n_classes: Number of classes.
        shape: ``(channels, height, width)``; sides are multiples of ``patch``.
        patch: Side of a patch in pixels.
        width: Size of a token.
        depth: Number of layers.
        heads: Attention heads per layer; they share the width.
        dropout: Probability with which a unit is dropped in training.

    References:
        Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021.
        Touvron et al., "Training Data-Efficient Image Transformers", ICML 2021.
    """

    def __init__(
        self,
        *,
        n_classes: int,
        shape: Sequence[int],
        patch: int = 4,
        width: int = 384,
        depth: int = 12,
        heads: int = 6,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_count(n_classes, "n_classes", at_least=2)
        check_count(depth, "depth")
        check_probability(dropout, "dropout")
        channels, height, breadth = check_image_shape(shape, multiple_of=check_count(patch, "patch"))
        if check_count(width, "width") % check_count(heads, "heads"):
            raise InputError(f"width: expected a multiple of the {heads} heads, got {width}")
        n_patches = (height // patch) * (breadth // patch)
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.class_word = nn.Parameter(torch.empty(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, 1 + n_patches, width))
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(
            width,
            heads,
            dim_feedforward=4 * width,
            dropout=dropout,
            activation="gelu",
            layer_norm_eps=1e-6,
            batch_first=True,
            norm_first=True,
        )
        self.encoder = nn.TransformerEncoder(
            layer, depth, norm=nn.LayerNorm(width, eps=1e-6), enable_nested_tensor=False
        )
        self.head = nn.Linear(width, n_classes)
        self._initialise()

    def _initialise(self) -> None:
        # The encoder copies one layer, weights included, so each copy needs its own random weights.
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.MultiheadAttention):
                nn.init.trunc_normal_(module.in_proj_weight, std=0.02)
                nn.init.zeros_(module.in_proj_bias)
        nn.init.trunc_normal_(self.class_word, std=0.02)
        nn.init.trunc_normal_(self.positions, std=0.02)

    def features(self, inputs: Tensor) -> Tensor:
        """Return the normalised last state of the class token."""
        tokens = self.patches(inputs).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_word.expand(len(tokens), -1, -1), tokens], dim=1)
        h: Tensor = self.encoder(self.dropout(tokens + self.positions))[:, 0]
        return h


class SwinTransformer(Classifier):
    """A transformer whose tokens attend to those in the same window only; Swin-Tiny with its default sizes.

    An image is cut into patches. Between stages, each 2 x 2 tokens become one of twice the width. Every
    second block shifts its windows by half, so that neighbouring windows exchange what they know. The
    features are the mean of the normalised last tokens. Weights start as truncated normal with deviation
    0.02; the first projection keeps PyTorch's.

    Where a stage has fewer tokens than a window, the window is as large as the stage and is not shifted.
    Where windows do not fit the stage, the last ones contain padding, to which no token attends.

    Args:
        n_classes: Number of classes.
        shape: ``(channels, height, width)``; sides are multiples of ``patch`` and leave at least 2 x 2 tokens
            to the last stage: more than 32 pixels with patches of 4, more than 16 with patches of 2.
        patch: Side of a patch in pixels.
        width: Size of a token of the first stage.
        depths: Blocks of each stage.
        heads: Attention heads of each stage.
        window: Side of a window in tokens.
        drop_path: Probability with which the last block is skipped in training; it rises from 0 at the first
            block. The paper trains Swin-Tiny on ImageNet with 0.2.

    References:
        Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows", ICCV 2021.
    """

    def __init__(
        self,
        *,
        n_classes: int,
        shape: Sequence[int],
        patch: int = 4,
        width: int = 96,
        depths: Sequence[int] = (2, 2, 6, 2),
        heads: Sequence[int] = (3, 6, 12, 24),
        window: int = 7,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        check_count(n_classes, "n_classes", at_least=2)
        check_count(window, "window", at_least=2)
        check_probability(drop_path, "drop_path")
        channels, height, breadth = check_image_shape(shape, multiple_of=check_count(patch, "patch"))
        _check_stages(width, depths, heads)
        _check_enough_tokens(height, breadth, patch, len(depths))
        size = (height // patch, breadth // patch)
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.norm_of_patches = nn.LayerNorm(width)
        rates = torch.linspace(0, drop_path, sum(depths), device="cpu").tolist()
        layers: list[nn.Module] = []
        for stage, depth in enumerate(depths):
            if stage:
                layers.append(PatchMerging(width))
                width, size = 2 * width, ((size[0] + 1) // 2, (size[1] + 1) // 2)
            for place in range(depth):
                attention = WindowAttention(width, heads[stage], size, window, shifted=place % 2 == 1)
                layers.append(SwinBlock(width, attention, drop_path=rates.pop(0)))
        self.layers = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, n_classes)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def features(self, inputs: Tensor) -> Tensor:
        """Return the mean of the normalised tokens of the last stage."""
        tokens = self.norm_of_patches(self.patches(inputs).permute(0, 2, 3, 1))
        h: Tensor = self.norm(self.layers(tokens)).mean(dim=(1, 2))
        return h


class SwinBlock(nn.Module):
    """Attention within windows, then a perceptron on each token, both added to their normalised input."""

    def __init__(self, width: int, attention: "WindowAttention", *, drop_path: float) -> None:
        super().__init__()
        self.norm_of_attention = nn.LayerNorm(width)
        self.attention = attention
        self.norm_of_perceptron = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop_path = drop_path

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens of the same shape, ``(n, height, width, d)``."""
        x = x + self._kept(self.attention(self.norm_of_attention(x)))
        return x + self._kept(self.perceptron(self.norm_of_perceptron(x)))

    def _kept(self, x: Tensor) -> Tensor:
        """Return zeros for a random share of the samples in training, and more of the others."""
        if not (self.training and self.drop_path):
            return x
        return x * F.dropout(x.new_ones(len(x), 1, 1, 1), self.drop_path)


class WindowAttention(nn.Module):
    """Attention among the tokens of each window, with a learned bias for each relative position.

    Args:
        width: Size of a token.
        heads: Attention heads; they share the width.
        size: Tokens of the image in both directions.
        window: Largest side of a window in tokens.
        shifted: Whether the windows begin half a window earlier than the image, which cuts those at its
            border. The tokens are rolled, so that all windows are whole, and those that are neighbours only
            because of that do not attend to each other.
    """

    same_part: Tensor
    relative: Tensor

    def __init__(self, width: int, heads: int, size: tuple[int, int], window: int, *, shifted: bool) -> None:
        super().__init__()
        self.heads = heads
        self.size = size
        self.window = (min(window, size[0]), min(window, size[1]))
        self.padding = (-size[0] % self.window[0], -size[1] % self.window[1])
        # A window that is as long as the image would only be divided by a shift.
        fits = [side < of_image for side, of_image in zip(self.window, size, strict=True)]
        self.shift = tuple(
            side // 2 if shifted and smaller else 0 for side, smaller in zip(self.window, fits, strict=True)
        )
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        n_relative = (2 * self.window[0] - 1) * (2 * self.window[1] - 1)
        self.bias = nn.Parameter(torch.empty(n_relative, heads))
        nn.init.trunc_normal_(self.bias, std=0.02)
        self.register_buffer("relative", _relative_positions(*self.window), persistent=False)
        self.register_buffer("same_part", self._same_part(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens of the same shape, ``(n, height, width, d)``."""
        rows, columns = self.shift
        padded = F.pad(x, (0, 0, 0, self.padding[1], 0, self.padding[0])).roll((-rows, -columns), (1, 2))
        n, height, breadth, width = padded.shape
        windows = self._into_windows(padded)
        # Of shape (3, n, windows, heads, tokens, size of a head).
        three = self.query_key_value(windows).unflatten(3, (3, self.heads, -1)).permute(3, 0, 1, 4, 2, 5)
        bias = self.bias[self.relative].permute(2, 0, 1)
        bias = bias.where(self.same_part[:, None], float("-inf"))
        mixed = F.scaled_dot_product_attention(three[0], three[1], three[2], attn_mask=bias.to(three.dtype))
        windows = self.projection(mixed.transpose(2, 3).flatten(3))
        n_rows, n_columns = height // self.window[0], breadth // self.window[1]
        whole: Tensor = windows.unflatten(2, self.window).unflatten(1, (n_rows, n_columns)).transpose(2, 3)
        whole = whole.reshape(n, height, breadth, width).roll((rows, columns), (1, 2))
        return whole[:, : self.size[0], : self.size[1]]

    def _into_windows(self, x: Tensor) -> Tensor:
        """Return ``(n, windows, tokens, d)`` from ``(n, height, width, d)``."""
        rows, columns = self.window
        divided: Tensor = x.unflatten(2, (-1, columns)).unflatten(1, (-1, rows)).transpose(2, 3)
        return divided.flatten(3, 4).flatten(1, 2)

    def _same_part(self) -> Tensor:
        """Return which pairs of tokens of each window belong together, of shape ``(windows, t, t)``.

        A rolled window has tokens of opposite borders of the image, and a padded one has tokens of none.
        """
        parts = torch.zeros(1, *(a + b for a, b in zip(self.size, self.padding, strict=True)), 1)
        rows, columns = self.shift
        parts[:, :rows] += 1
        parts[:, :, :columns] += 2
        parts[:, self.size[0] :] = 4
        parts[:, :, self.size[1] :] = 4
        of_windows = self._into_windows(parts.roll((-rows, -columns), (1, 2)))[0, :, :, 0]
        return of_windows[:, :, None] == of_windows[:, None, :]


class PatchMerging(nn.Module):
    """Turns each 2 x 2 tokens into one of twice the width; an odd side is padded with zeros."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return half the height and width of ``(n, height, width, d)``, rounded up."""
        x = F.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        # The upper left token comes first, then the one below it, then the two to the right of these.
        four = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).permute(0, 1, 3, 4, 2, 5).flatten(3)
        merged: Tensor = self.reduction(self.norm(four))
        return merged


def _relative_positions(rows: int, columns: int) -> Tensor:
    """Return for each pair of a window's tokens the number of their relative position."""
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    down = row.flatten()[:, None] - row.flatten() + rows - 1
    right = column.flatten()[:, None] - column.flatten() + columns - 1
    return down * (2 * columns - 1) + right


def _check_stages(width: int, depths: Sequence[int], heads: Sequence[int]) -> None:
    check_count(width, "width")
    depths, heads = check_counts(depths, "depths"), check_counts(heads, "heads")
    if len(heads) != len(depths):
        raise InputError(f"heads: expected one number for each of {len(depths)} stages, got {len(heads)}")
    for stage, n_heads in enumerate(heads):
        if width * 2**stage % n_heads:
            raise InputError(
                f"heads: expected a divisor of {width * 2**stage}, the width of stage {stage + 1}, "
                f"got {n_heads}"
            )


def _check_enough_tokens(height: int, breadth: int, patch: int, n_stages: int) -> None:
    """Refuse images that leave one token to the last stage, where attention could not learn anything."""
    one_token = patch * 2 ** (n_stages - 1)
    if min(height, breadth) <= one_token:
        raise InputError(
            f"shape: expected more than {one_token} pixels a side with patches of {patch} and {n_stages} "
            f"stages, got {height} x {breadth}; take smaller patches or larger images"
        )
