"""Augmentation of image batches by random crops and mirror images."""

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
    """Shift every image at random and mirror half of them.

    This is the usual augmentation for CIFAR: pad with zeros, cut a window of the original size, flip left to
    right. Random numbers are drawn on the generator's device, so they do not depend on that of the images.

    Args:
        images: A batch of shape ``(n, c, h, w)``, uint8 or floating point.
        padding: Largest shift in pixels in each direction.
        flip: Whether images are mirrored; not for digits or letters.
        generator: Source of the random numbers; torch's own if none.
        part: Size of the whole batch and the rows of it that these images are: processes that share a batch
            then draw the same numbers as one process with the whole batch.

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
    # This is a view of all windows of all images; the index copies one window of each image.
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(n, device=images.device), :, top, left]


def _draw(high: int, n: int, generator: torch.Generator | None) -> Tensor:
    device = None if generator is None else generator.device
    return torch.randint(high, (n,), generator=generator, device=device)
