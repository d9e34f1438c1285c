"""Corruptions of test images in five severities: the fifteen of CIFAR-10-C, and its Gaussian blur."""

import math
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np
import torch
import torch.nn.functional as F
from scipy.ndimage import convolve, gaussian_filter
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import check_choice
from calibrant.training.datasets.pictures import in_threads, pillow


def gaussian_noise(x: np.ndarray, generator: np.random.Generator, deviation: float) -> np.ndarray:
    """Add noise with this standard deviation."""
    return np.asarray(x + np.float32(deviation) * generator.standard_normal(x.shape, dtype=np.float32))


def shot_noise(x: np.ndarray, generator: np.random.Generator, photons: float) -> np.ndarray:
    """Count photons; the given number arrives at full brightness."""
    return np.asarray(generator.poisson(x * photons) / photons)


def impulse_noise(x: np.ndarray, generator: np.random.Generator, share: float) -> np.ndarray:
    """Turn a share of the values black or white, half of them each."""
    draw = generator.random(x.shape, dtype=np.float32)
    return np.where(draw < share / 2, 0, np.where(draw < share, 1, x))


def gaussian_blur(x: np.ndarray, _: np.random.Generator, deviation: float) -> np.ndarray:
    """Blur by a Gaussian of this width in pixels."""
    return np.asarray(gaussian_filter(x, sigma=(0, 0, deviation, deviation), mode="nearest"))


def defocus_blur(x: np.ndarray, _: np.random.Generator, radius: float, soft: float) -> np.ndarray:
    """Spread each pixel over a disk; a Gaussian of width ``soft``, cut to 3 x 3 pixels, softens its edge."""
    reach = math.floor(radius) + 1
    steps = np.arange(-reach, reach + 1)
    disk = (steps[:, None] ** 2 + steps**2 <= radius**2).astype(np.float64)
    edge = np.exp(-0.5 * (np.arange(-1, 2) / soft) ** 2)
    kernel = convolve(disk / disk.sum(), np.outer(edge, edge) / edge.sum() ** 2, mode="constant")
    return np.asarray(convolve(x, kernel[None, None].astype(np.float32), mode="mirror"))


def glass_blur(
    x: np.ndarray, generator: np.random.Generator, deviation: float, repetitions: int
) -> np.ndarray:
    """Blur, replace each pixel by itself or a neighbour above or to the left, and blur again.

    The authors describe this as swapping pixels. Their program copies them instead, because it assigns views
    of one array to each other, and so does this one: the published images were made like that. The first two
    rows and columns stay.
    """
    blurred = np.floor(gaussian_blur(x, generator, deviation) * 255 + 1e-3) / np.float32(255)
    n, _, height, width = x.shape
    sample = np.arange(n)[:, None, None]
    for _ in range(repetitions):
        up, left = (
            generator.integers(0, 2, (n, max(0, height - 2), max(0, width - 2)), dtype=np.int8)
            for _ in range(2)
        )
        rows = np.arange(2, height)[:, None] - up
        columns = np.arange(2, width) - left
        # The index in front of a slice moves the channels to the end.
        blurred[:, :, 2:, 2:] = blurred[sample, :, rows, columns].transpose(0, 3, 1, 2)
    return gaussian_blur(blurred, generator, deviation)


def motion_blur(x: np.ndarray, generator: np.random.Generator, radius: float, deviation: float) -> np.ndarray:
    """Drag each picture along a direction of its own, at most 45 degrees from the horizontal."""
    return moved(x, generator.uniform(-45, 45, len(x)), radius, deviation)


def moved(x: np.ndarray, angles: np.ndarray, radius: float, deviation: float) -> np.ndarray:
    """Drag pictures along their angles, in degrees, as ImageMagick does.

    A pixel is the mean of those at 0 to ``2 * radius`` steps from it, rounded to whole pixels, weighted by
    half a Gaussian; beyond the border, the border goes on. The result is rounded to shades of 1/255.
    """
    n, _, height, width = x.shape
    steps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(steps**2) / (2 * deviation**2))
    weights = (weights / weights.sum()).astype(np.float32)
    turned = np.deg2rad(angles)[:, None]
    right, down = (np.ceil(steps * direction(turned) - 0.5).astype(int) for direction in (np.cos, np.sin))
    pixels = np.ascontiguousarray(x.transpose(0, 2, 3, 1), dtype=np.float32)
    total = np.zeros_like(pixels)
    sample = np.arange(n)[:, None, None]
    for step in steps:
        rows = np.clip(np.arange(height) + down[:, step, None], 0, height - 1)
        columns = np.clip(np.arange(width) + right[:, step, None], 0, width - 1)
        total += weights[step] * pixels[sample, rows[:, :, None], columns[:, None, :]]
    return np.asarray(np.rint(total.transpose(0, 3, 1, 2) * 255) / np.float32(255))


def zoom_blur(x: np.ndarray, _: np.random.Generator, until: float) -> np.ndarray:
    """Average a picture with its enlargements by 1, 1.01 and so on, as the camera zooms in."""
    factors = np.arange(1, until, 0.01)
    total = x.copy()
    for factor in factors:
        total += zoomed(x, factor)
    return total / (len(factors) + 1)


def zoomed(x: np.ndarray, factor: float) -> np.ndarray:
    """Enlarge the middle of pictures to their size, by linear interpolation."""
    down, across = (_enlargement(side, factor) for side in x.shape[2:])
    return np.asarray(down @ x @ across.T)


def _enlargement(side: int, factor: float) -> np.ndarray:
    """Return the matrix that enlarges the middle of a line of ``side`` pixels to ``side`` pixels."""
    n_middle = math.ceil(side / factor)
    n_large = round(n_middle * factor)
    places = np.linspace(0, n_middle - 1, n_large) + (side - n_middle) // 2
    places = places[(n_large - side) // 2 :][:side]
    before = np.minimum(np.floor(places).astype(int), side - 1)
    after = np.minimum(before + 1, side - 1)
    matrix = np.zeros((side, side), dtype=np.float32)
    row = np.arange(side)
    np.add.at(matrix, (row, before), 1 - (places - before))
    np.add.at(matrix, (row, after), places - before)
    return matrix


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


# The shares of red, green and blue in the brightness of a colour (ITU-R BT.601).
_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)
# Frost is slightly blue.
_ICE = np.array([0.88, 0.95, 1.0], dtype=np.float32)


def snow(
    x: np.ndarray,
    generator: np.random.Generator,
    mean: float,
    deviation: float,
    size: float,
    least: float,
    radius: float,
    spread: float,
    kept: float,
) -> np.ndarray:
    """Whiten pictures and let flakes fall over them.

    Flakes are the part above ``least`` of enlarged Gaussian noise, dragged downwards; a second layer is the
    first one upside down.

    Args:
        x: The pictures.
        generator: Source of the random numbers.
        mean: Of the noise.
        deviation: Of the noise.
        size: Factor by which the noise is enlarged.
        least: Noise below it is no flake.
        radius: Half the length of the fall in pixels.
        spread: Width of the Gaussian along the fall.
        kept: Share of the picture that is not whitened.
    """
    n, channels, height, width = x.shape
    noise = generator.normal(mean, deviation, (n, 1, height, width)).astype(np.float32)
    layer = zoomed(noise, size)
    layer[layer < least] = 0
    layer = np.floor(np.clip(layer, 0, 1) * 255) / np.float32(255)
    layer = moved(layer, generator.uniform(-135, -45, len(x)), radius, spread)
    grey = x if channels == 1 else np.einsum("nchw,c->nhw", x, _LUMA)[:, None]
    white = kept * x + (1 - kept) * np.maximum(x, grey * 1.5 + 0.5)
    return np.asarray(white + layer + layer[:, :, ::-1, ::-1])


def frost(x: np.ndarray, generator: np.random.Generator, picture: float, ice: float) -> np.ndarray:
    """Add ice crystals to a share of the picture.

    CIFAR-10-C cuts its ice out of photographs. Here it is made instead, another one for each picture: a cloud
    for the cover, and needles in three directions, 60 degrees apart, as ice grows. The shares of picture and
    ice are those of CIFAR-10-C, but accuracies under frost cannot be compared with published ones.
    """
    crystals = ice_crystals(x.shape, generator)
    return np.asarray(picture * x + ice * crystals)


def ice_crystals(shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """Return pictures of ice between 0 and 1 of shape ``(n, c, h, w)``, grey if there is one channel."""
    n, channels, height, width = shape
    cover = plasma(n, height, width, generator, decay=2)
    seeds = generator.random((n, 1, height, width), dtype=np.float32)
    seeds = np.where(seeds > 0.94, np.float32(1), np.float32(0))
    first = generator.uniform(0, 60, n)
    needles = np.zeros_like(seeds)
    for turn in (0, 60, 120):
        needles = np.maximum(needles, moved(seeds, first + turn, 4, 3) * 4)
    grey = np.clip(0.7 * cover + 0.6 * needles, 0, 1)
    return grey if channels == 1 else grey * _ICE[:, None, None]


def fog(x: np.ndarray, generator: np.random.Generator, amount: float, decay: float) -> np.ndarray:
    """Add a random cloud, and darken the sum so that its lightest value stays possible.

    Args:
        x: The pictures.
        generator: Source of the random numbers.
        amount: Of the densest fog; 1 is white.
        decay: How fast the cloud's details fade with their size.
    """
    n, _, height, width = x.shape
    lightest = x.max(axis=(1, 2, 3), keepdims=True)
    return np.asarray(
        (x + amount * plasma(n, height, width, generator, decay=decay)) * lightest / (lightest + amount)
    )


def plasma(n: int, height: int, width: int, generator: np.random.Generator, *, decay: float) -> np.ndarray:
    """Return random clouds between 0 and 1 of shape ``(n, 1, height, width)``, by diamonds and squares.

    Points in the middle of four known ones get their mean and a random number, first on a coarse grid, then
    on ever finer ones; opposite borders are neighbours. The random numbers shrink by the square of ``decay``
    from grid to grid.
    """
    side = 1 << max(height - 1, width - 1, 1).bit_length()
    cloud = np.zeros((n, side, side))
    step, strength = side, 100.0

    def between(four: np.ndarray) -> np.ndarray:
        return four / 4 + strength * generator.uniform(-strength, strength, four.shape)

    while step >= 2:
        half = step // 2
        corners = cloud[:, ::step, ::step]
        two = corners + np.roll(corners, -1, axis=1)
        cloud[:, half::step, half::step] = between(two + np.roll(two, -1, axis=2))
        middles = cloud[:, half::step, half::step]
        above_and_left = corners + np.roll(corners, -1, axis=2) + middles + np.roll(middles, 1, axis=1)
        cloud[:, ::step, half::step] = between(above_and_left)
        cloud[:, half::step, ::step] = between(
            corners + np.roll(corners, -1, axis=1) + middles + np.roll(middles, 1, axis=2)
        )
        step, strength = half, strength / decay
    cloud -= cloud.min(axis=(1, 2), keepdims=True)
    cloud /= cloud.max(axis=(1, 2), keepdims=True)
    return cloud[:, None, :height, :width].astype(np.float32)


def brightness(x: np.ndarray, _: np.random.Generator, amount: float) -> np.ndarray:
    """Add to the value of HSV."""
    # This scales the colour, because hue and saturation stay; black turns grey.
    value = x.max(axis=1, keepdims=True)
    brighter = np.minimum(value + amount, 1)
    scale = brighter / np.where(value > 0, value, 1)
    return np.asarray(np.where(value > 0, x * scale, brighter))


SEVERITIES = (1, 2, 3, 4, 5)

# Images that are floating-point numbers at one time.
_CHUNK = 1000

# From pixels between 0 and 1 of shape (n, c, h, w), a source of random numbers and the numbers of a severity
# to other pixels, which are then clipped.
Corruption: TypeAlias = Callable[..., np.ndarray]


def corrupt(images: Tensor, name: str, severity: int, seed: int = 0) -> Tensor:
    """Corrupt images; the same seed gives the same images.

    All corruptions follow the definitions of CIFAR-10-C (``blur`` is its Gaussian blur and ``jpeg`` its JPEG
    compression). Only the random numbers differ from those of the published files, and the ice of ``frost``
    is made rather than photographed. The strengths were chosen for 32 pixels: those that are lengths, such as
    the widths of blurs, have less effect on larger images.

    Args:
        images: Images as uint8 of shape ``(n, c, h, w)``, grey or in colour.
        name: One of :data:`CORRUPTIONS`.
        severity: From 1, mild, to 5.
        seed: Seed of the random numbers; each corruption and severity has its own sequence.

    Example:
        >>> grey = torch.full((1, 1, 4, 4), 100, dtype=torch.uint8)
        >>> int(corrupt(grey, "brightness", 5).unique())
        176

    References:
        Hendrycks & Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
        Perturbations", ICLR 2019.
    """
    check_choice(name, "corruption", CORRUPTIONS)
    if not isinstance(severity, int) or severity not in SEVERITIES:
        raise InputError(f"severity: expected a whole number from 1 to 5, got {severity!r}")
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        raise InputError(
            f"images: expected uint8 of shape (n, 1, h, w) or (n, 3, h, w), got {images.dtype} of shape "
            f"{tuple(images.shape)}; corrupt images only"
        )
    function, strengths = CORRUPTIONS[name], CORRUPTION_STRENGTHS[name][severity - 1]
    generator = np.random.default_rng([seed, severity, crc32(name.encode())])
    clean = images.cpu().numpy()
    result = np.empty_like(clean)
    for start in range(0, len(clean), _CHUNK):
        rows = slice(start, start + _CHUNK)
        x = function(clean[rows].astype(np.float32) / 255, generator, *strengths)
        # Values are rounded down as in CIFAR-10-C, but rounding errors must not lower a pixel that did not
        # change.
        result[rows] = np.floor(np.clip(x, 0, 1) * 255 + 1e-3)
    return torch.from_numpy(result).to(images.device)


#: The corruptions of images, by name.
CORRUPTIONS: Mapping[str, Corruption] = {
    "gaussian_noise": gaussian_noise,
    "shot_noise": shot_noise,
    "impulse_noise": impulse_noise,
    "defocus_blur": defocus_blur,
    "glass_blur": glass_blur,
    "motion_blur": motion_blur,
    "zoom_blur": zoom_blur,
    "snow": snow,
    "frost": frost,
    "fog": fog,
    "brightness": brightness,
    "contrast": contrast,
    "elastic_transform": elastic_transform,
    "pixelate": pixelate,
    "jpeg": jpeg,
    "blur": gaussian_blur,
}

#: The fifteen that are averaged where papers say "CIFAR-10-C"; Gaussian blur is one of its four extra ones.
CIFAR10_C = tuple(name for name in CORRUPTIONS if name != "blur")

# The numbers of CIFAR-10-C for severities 1 to 5, in the order of the functions' arguments.
CORRUPTION_STRENGTHS: Mapping[str, tuple[tuple[float, ...], ...]] = {
    "gaussian_noise": ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,)),
    "shot_noise": ((500,), (250,), (100,), (75,), (50,)),
    "impulse_noise": ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,)),
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass_blur": ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2)),
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "zoom_blur": ((1.06,), (1.11,), (1.16,), (1.21,), (1.26,)),
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "brightness": ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,)),
    "contrast": ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,)),
    "elastic_transform": (
        (0, 0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    ),
    "pixelate": ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,)),
    "jpeg": ((80,), (65,), (58,), (50,), (40,)),
    "blur": ((0.4,), (0.6,), (0.7,), (0.8,), (1.0,)),
}
