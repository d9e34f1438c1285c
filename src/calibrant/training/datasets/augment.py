"""Augmentation of image batches: random shifts, resized crops, mirror images and colours."""

import math
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.errors import InputError

# Size of the whole batch and the rows of it that are here.
Part: TypeAlias = tuple[int, slice]

# The shares of red, green and blue in the brightness of a colour (ITU-R BT.601).
_BRIGHTNESS = (0.299, 0.587, 0.114)
# The two differences of colour that are 0 for grey (the I and Q of YIQ).
_COLOUR = ((0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112))


def augment(
    images: Tensor,
    *,
    padding: int = 4,
    flip: bool = True,
    generator: torch.Generator | None = None,
    part: Part | None = None,
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
    _check_images(images)
    if padding < 0:
        raise InputError(f"padding: expected a number of pixels from 0, got {padding}")
    size, place = part or (len(images), slice(None))
    if padding:
        top, left = (_draw(2 * padding + 1, size, generator)[place].to(images.device) for _ in range(2))
        images = _crop(images, padding, top, left)
    return mirror(images, generator=generator, part=part) if flip else images


def two_views(
    images: Tensor, *, padding: int = 4, flip: bool = True, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Return two independent augmentations of each image, for contrastive training."""
    first = augment(images, padding=padding, flip=flip, generator=generator)
    return first, augment(images, padding=padding, flip=flip, generator=generator)


def mirror(images: Tensor, *, generator: torch.Generator | None = None, part: Part | None = None) -> Tensor:
    """Mirror half of the images, left to right; the arguments are those of :func:`augment`."""
    _check_images(images)
    size, place = part or (len(images), slice(None))
    mirrored = _draw(2, size, generator)[place].to(images.device).bool()
    return torch.where(mirrored[:, None, None, None], images.flip(3), images)


def resized_crops(
    images: Tensor,
    *,
    smallest: float = 0.2,
    stretch: float = 4 / 3,
    generator: torch.Generator | None = None,
    part: Part | None = None,
) -> Tensor:
    """Cut a random window out of every image and enlarge it to the size of the image.

    This is the usual crop of contrastive learning. The share of the area is uniform, and so is the logarithm
    of the ratio of sides; a side that would be longer than the image is as long as the image.

    Args:
        images: A batch of shape ``(n, c, h, w)``, uint8 or floating point.
        smallest: Smallest share of the area of an image.
        stretch: Largest ratio of the sides of a window, relative to those of the image.
        generator: As in :func:`augment`.
        part: As in :func:`augment`.

    Example:
        >>> resized_crops(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape
        torch.Size([2, 3, 32, 32])
    """
    _check_images(images)
    if not 0 < smallest <= 1:
        raise InputError(f"smallest: expected a share above 0, at most 1, got {smallest}")
    if not 1 <= stretch < math.inf:
        raise InputError(f"stretch: expected a ratio of at least 1, got {stretch}")
    draws = uniform(4, len(images), generator=generator, part=part)
    area, ratio, down, right = (each.to(images.device) for each in draws)
    side = (smallest + (1 - smallest) * area).sqrt()
    longer = torch.exp((2 * ratio - 1) * math.log(stretch) / 2)
    height, width = (side / longer).clamp_max(1), (side * longer).clamp_max(1)
    # An affine map from the window to the image, whose sides reach from -1 to 1.
    window = images.new_zeros(len(images), 2, 3, dtype=torch.float32)
    window[:, 0, 0], window[:, 0, 2] = width, (2 * right - 1) * (1 - width)
    window[:, 1, 1], window[:, 1, 2] = height, (2 * down - 1) * (1 - height)
    grid = F.affine_grid(window, list(images.shape), align_corners=False)
    cut = F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    return _as_before(cut, images)


def recolour(
    images: Tensor,
    *,
    strength: float = 0.4,
    jittered: float = 0.8,
    grey: float = 0.2,
    generator: torch.Generator | None = None,
    part: Part | None = None,
) -> Tensor:
    """Change brightness, contrast, saturation and hue of most images, and turn some grey.

    This is the usual change of colours in contrastive learning. Images with one channel change in brightness
    and contrast only.

    Args:
        images: A batch of uint8 images with one or three channels, shape ``(n, c, h, w)``.
        strength: Largest relative change of brightness, contrast and saturation; the hue turns by at most a
            quarter of it.
        jittered: Share of the images that change.
        grey: Share of the images that turn grey.
        generator: As in :func:`augment`.
        part: As in :func:`augment`.

    Example:
        >>> image = torch.full((1, 3, 1, 1), 100, dtype=torch.uint8)
        >>> recolour(image, strength=0, grey=0).flatten().tolist()
        [100, 100, 100]
    """
    _check_images(images)
    if images.dtype != torch.uint8 or images.shape[1] not in (1, 3):
        raise InputError(
            f"images: expected uint8 images with 1 or 3 channels, got {images.dtype} with {images.shape[1]}"
        )
    if not 0 <= strength <= 1:
        raise InputError(f"strength: expected a number from 0 to 1, got {strength}")
    draws = uniform(6, len(images), generator=generator, part=part)
    *changes, turn, changed, faded = (each.to(images.device) for each in draws)
    brightness, contrast, saturation = (1 + strength * (2 * each - 1) for each in changes)
    pixels = images.float()
    new = (pixels * _each(brightness)).clamp(0, 255)
    new = _blend(new, _grey(new).mean(dim=(2, 3), keepdim=True), contrast)
    if images.shape[1] == 3:
        new = _blend(new, _grey(new), saturation)
        new = _turn_hue(new, strength / 4 * (2 * turn - 1))
    new = torch.where(_each(changed < jittered), new, pixels)
    return _as_before(torch.where(_each(faded < grey), _grey(new), new), images)


def _blend(pixels: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """Return pixels whose distance from the others is multiplied by the factor of their image."""
    return (other + _each(factor) * (pixels - other)).clamp(0, 255)


def _grey(pixels: Tensor) -> Tensor:
    """Return the brightness of each pixel, shape ``(n, 1, h, w)``."""
    if pixels.shape[1] == 1:
        return pixels
    return (pixels * pixels.new_tensor(_BRIGHTNESS).view(1, 3, 1, 1)).sum(dim=1, keepdim=True)


def _turn_hue(pixels: Tensor, turns: Tensor) -> Tensor:
    """Turn the colours of each image around grey, by a share of a full turn; the brightness stays."""
    to_colour = pixels.new_tensor((_BRIGHTNESS, *_COLOUR))
    turned = torch.eye(3, device=pixels.device).repeat(len(pixels), 1, 1)
    angle = 2 * math.pi * turns
    turned[:, 1, 1], turned[:, 1, 2] = angle.cos(), -angle.sin()
    turned[:, 2, 1], turned[:, 2, 2] = angle.sin(), angle.cos()
    change = torch.linalg.inv(to_colour) @ turned @ to_colour
    return torch.einsum("nij,njhw->nihw", change, pixels).clamp(0, 255)


def _each(values: Tensor) -> Tensor:
    """Return one value per image, in a shape that goes with images."""
    return values[:, None, None, None]


def _as_before(pixels: Tensor, images: Tensor) -> Tensor:
    """Return pixels in the type of the images that they come from."""
    return pixels.to(images.dtype) if images.is_floating_point() else pixels.round().to(images.dtype)


def _check_images(images: Tensor) -> None:
    if images.ndim != 4:
        raise InputError(
            f"images: expected a batch of shape (n, c, h, w), got shape {tuple(images.shape)}; "
            "augment images only"
        )


def uniform(
    n: int, size: int, *, generator: torch.Generator | None = None, part: Part | None = None
) -> tuple[Tensor, ...]:
    """Return several random numbers between 0 and 1 for each of some images; see :func:`augment`."""
    whole, place = part or (size, slice(None))
    device = None if generator is None else generator.device
    return tuple(torch.rand(whole, generator=generator, device=device)[place] for _ in range(n))


def _crop(images: Tensor, padding: int, top: Tensor, left: Tensor) -> Tensor:
    n, _, height, width = images.shape
    padded = F.pad(images, (padding, padding, padding, padding))
    # This is a view of all windows of all images; the index copies one window of each image.
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(n, device=images.device), :, top, left]


def _draw(high: int, n: int, generator: torch.Generator | None) -> Tensor:
    device = None if generator is None else generator.device
    return torch.randint(high, (n,), generator=generator, device=device)
