"""Augmentation of image batches: random crops and mirror images, the whole batch at once."""

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.errors import InputError


def augment(
    images: Tensor,
    *,
    padding: int = 4,
    flip: bool = True,
    generator: torch.Generator | None = None,
    part: tuple[int, slice] | None = None,
) -> Tensor:
    """Return every image shifted at random and, half of the time, mirrored.

    This is the standard of CIFAR: pad with zeros, cut a window of the original size, flip left to right. The
    numbers are drawn on the generator's device, so that a batch on any device follows the same seed.

    Args:
        images: A batch of shape ``(n, c, h, w)``, uint8 or floating point.
        padding: The most pixels an image moves in each direction; 0 leaves it in place.
        flip: Whether images are mirrored; not for digits or letters.
        generator: Where the random numbers come from; torch's own if none.
        part: Size of the batch that these images are a part of, and where they stand in it: processes that
            share a batch then draw the same numbers as one process with the whole of it.

    Example:
        >>> augment(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape
        torch.Size([2, 3, 32, 32])
    """
    if images.ndim != 4:
        raise InputError(
            f"images: expected a batch of shape (n, c, h, w), got shape {tuple(images.shape)}; "
            "augment images only"
        )
    if padding < 0:
        raise InputError(f"padding: expected a number of pixels from 0, got {padding}")
    size, place = part or (len(images), slice(None))
    if padding:
        top, left = (_draw(2 * padding + 1, size, generator)[place].to(images.device) for _ in range(2))
        images = _crop(images, padding, top, left)
    if flip:
        mirrored = _draw(2, size, generator)[place].to(images.device).bool()
        images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
    return images


def two_views(
    images: Tensor, *, padding: int = 4, flip: bool = True, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Return two independent augmentations of each image, for contrastive training."""
    first = augment(images, padding=padding, flip=flip, generator=generator)
    return first, augment(images, padding=padding, flip=flip, generator=generator)


def _crop(images: Tensor, padding: int, top: Tensor, left: Tensor) -> Tensor:
    n, _, height, width = images.shape
    padded = F.pad(images, (padding, padding, padding, padding))
    # All windows of all images as a view without copies; the index then reads one window of each image.
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(n, device=images.device), :, top, left]


def _draw(high: int, n: int, generator: torch.Generator | None) -> Tensor:
    device = None if generator is None else generator.device
    return torch.randint(high, (n,), generator=generator, device=device)
