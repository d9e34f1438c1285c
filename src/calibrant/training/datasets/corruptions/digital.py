"""Digital corruptions: contrast, elastic transforms, pixelation and JPEG compression."""

from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.ndimage import gaussian_filter

from calibrant.training.datasets.pictures import in_threads, pillow


def contrast(x: np.ndarray, _: np.random.Generator, factor: float) -> np.ndarray:
    """Shrink differences from the mean of each channel."""
    mean = x.mean(axis=(2, 3), keepdims=True)
    return np.asarray((x - mean) * factor + mean)


def elastic_transform(
    x: np.ndarray, generator: np.random.Generator, strength: float, smoothness: float, affine: float
) -> np.ndarray:
    """Move, turn and shear a picture, then stretch it like rubber.

    Args:
        x: The pictures.
        generator: Source of the random numbers.
        strength: Factor of the random displacements, as a share of the side.
        smoothness: Width of the Gaussian that smooths them, as a share of the side.
        affine: How far the three points that define the affine map move at most, as a share of the side.
    """
    n, _, height, width = x.shape
    side = min(height, width)
    columns, rows = affine_places(n, height, width, generator, distance=affine * side)
    pictures = _sampled(torch.from_numpy(x), columns, rows, reflects_pixels=False)
    across, down = (
        strength * side * _smooth(generator.uniform(-1, 1, (n, height, width)), smoothness * side)
        for _ in range(2)
    )
    columns, rows = np.arange(width) + across, np.arange(height)[:, None] + down
    return _sampled(pictures, columns, rows, reflects_pixels=True).numpy()


def affine_places(
    n: int, height: int, width: int, generator: np.random.Generator, *, distance: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return where each pixel of ``n`` pictures comes from, as columns and rows of shape ``(n, h, w)``.

    Three corners of a square in the middle move by up to ``distance`` in each direction, and the picture with
    them.
    """
    middle, reach = np.array([width // 2, height // 2]), max(1, min(height, width) // 3)
    corners = middle + reach * np.array([[1, 1], [1, -1], [-1, -1]])
    moved = corners + generator.uniform(-distance, distance, (n, 3, 2))
    # A map from the moved corners back to the corners: 3 x 2 numbers for (column, row, 1).
    back = np.linalg.solve(np.concatenate([moved, np.ones((n, 3, 1))], axis=2), corners[None])
    columns, rows = np.meshgrid(np.arange(width), np.arange(height))
    places = np.stack([columns, rows, np.ones_like(rows)], axis=-1)
    from_columns, from_rows = np.moveaxis(np.einsum("hwi,nij->nhwj", places, back), -1, 0)
    return from_columns, from_rows


def _smooth(field: np.ndarray, deviation: float) -> np.ndarray:
    return np.asarray(gaussian_filter(field, (0, deviation, deviation), mode="reflect", truncate=3))


def _sampled(
    pictures: torch.Tensor, columns: np.ndarray, rows: np.ndarray, *, reflects_pixels: bool
) -> torch.Tensor:
    """Interpolate pictures at places; beyond the border they are mirrored, with or without the last pixel."""
    height, width = pictures.shape[2:]
    # Torch counts from -1 to 1: between the outer edges of the pixels, or between their centres.
    if reflects_pixels:
        across, down = (2 * columns + 1) / width - 1, (2 * rows + 1) / height - 1
    else:
        across, down = 2 * columns / max(1, width - 1) - 1, 2 * rows / max(1, height - 1) - 1
    grid = torch.from_numpy(np.stack([across, down], axis=-1).astype(np.float32))
    return F.grid_sample(
        pictures, grid, mode="bilinear", padding_mode="reflection", align_corners=not reflects_pixels
    )


def pixelate(x: np.ndarray, _: np.random.Generator, factor: float) -> np.ndarray:
    """Reduce the resolution to this share."""
    box = pillow().Resampling.BOX
    height, width = x.shape[2:]
    small = (max(1, int(width * factor)), max(1, int(height * factor)))
    return _each_picture(x, lambda picture: picture.resize(small, box).resize((width, height), box))


def jpeg(x: np.ndarray, _: np.random.Generator, quality: int) -> np.ndarray:
    """Compress by JPEG with this quality, from 1 to 100."""
    image = pillow()

    def compress(picture: Any) -> Any:  # noqa: ANN401  # Pillow is imported when needed
        buffer = BytesIO()
        picture.save(buffer, "JPEG", quality=quality)
        return image.open(buffer)

    return _each_picture(x, compress)


def _each_picture(x: np.ndarray, change: Callable[[Any], Any]) -> np.ndarray:
    image = pillow()
    pixels = np.rint(x * 255).astype(np.uint8)
    result = np.empty_like(pixels)

    def fill(row: int) -> None:
        planes = pixels[row]
        grey = len(planes) == 1
        picture = image.fromarray(planes[0] if grey else np.ascontiguousarray(planes.transpose(1, 2, 0)))
        changed = np.asarray(change(picture))
        result[row] = changed[None] if grey else changed.transpose(2, 0, 1)

    in_threads(fill, len(pixels))
    return np.asarray(result / np.float32(255))
