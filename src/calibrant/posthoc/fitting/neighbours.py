"""Distances to the nearest of stored features, in bounded memory."""

import torch
import torch.nn.functional as F
from torch import Tensor

# Squared distances below this share of the squared lengths are rounding errors in float32.
_SAME = 1e-6

# Distances held at once: 4 MB of them, which stay in the processor's cache.
_BLOCK_ENTRIES = 1 << 20


def prepared(features: Tensor, *, normalize: bool) -> Tensor:
    """Return features in float32, of unit length if asked for."""
    h = features.to(torch.float32)
    return F.normalize(h, dim=1) if normalize else h


def nearest_distances(h: Tensor, references: Tensor, n_neighbours: int) -> Tensor:
    """Return the distances to the nearest references, in any order, shape ``(n, n_neighbours)``.

    A sample itself, or an exact copy of it, is not its neighbour.
    """
    # A graph has no loop over blocks of a batch whose size it does not know.
    if torch.compiler.is_compiling():
        return _of_block(h, references, n_neighbours)
    rows = max(1, _BLOCK_ENTRIES // len(references))
    return torch.cat([_of_block(block, references, n_neighbours) for block in h.split(rows)])


def _of_block(h: Tensor, references: Tensor, n_neighbours: int) -> Tensor:
    size = h.square().sum(dim=1, keepdim=True) + references.square().sum(dim=1)
    # Written out, because torch.cdist has no counterpart in ONNX. What differs from 0 by rounding only is a
    # copy, which goes to the farthest place there is.
    squared = size - 2 * h @ references.T
    squared = torch.where(squared <= _SAME * size, 2 * size, squared)
    nearest = squared.topk(n_neighbours, dim=1, largest=False, sorted=False).values
    return nearest.clamp(min=1e-12).sqrt()
