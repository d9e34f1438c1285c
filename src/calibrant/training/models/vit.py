"""Vision transformer for small images (Dosovitskiy et al., ICLR 2021)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.inputs import check_count
from calibrant.training.models.classifier import Classifier, check_image_shape, check_probability


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
