"""Corruptions of test images in five severities, with the constants of CIFAR-10-C."""

from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import check_choice
from calibrant.training.datasets.pictures import in_threads, pillow

SEVERITIES = (1, 2, 3, 4, 5)

# Images that are floating-point numbers at one time.
_CHUNK = 1000

Pixels: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
# From pixels between 0 and 1 (or, for codecs, between 0 and 255) of shape (n, c, h, w), a strength and a
# source of random numbers to pixels of the same range.
Corruption: TypeAlias = Callable[[Pixels, float, np.random.Generator], Pixels]


def corrupt(images: Tensor, name: str, severity: int, seed: int = 0) -> Tensor:
    """Corrupt images; the same seed gives the same images.

    All corruptions follow the definitions of CIFAR-10-C (``blur`` is its Gaussian blur); only the random
    numbers differ from those of the published files. The strengths were chosen for 32 pixels: blur and
    pixelation have less effect on larger images.

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
    function = CORRUPTIONS[name]
    strength = STRENGTHS[name][severity - 1]
    generator = np.random.default_rng([seed, severity, crc32(name.encode())])
    clean = images.cpu().numpy()
    result = np.empty_like(clean)
    for start in range(0, len(clean), _CHUNK):
        rows = slice(start, start + _CHUNK)
        result[rows] = function(clean[rows], strength, generator)
    return torch.from_numpy(result).to(images.device)


def _in_unit_range(change: Corruption) -> Corruption:
    """Apply a corruption to numbers between 0 and 1; the result is rounded down as in CIFAR-10-C."""

    def changed(pixels: Pixels, strength: float, generator: np.random.Generator) -> Pixels:
        x = change(pixels.astype(np.float32) / 255, strength, generator)
        # Rounding errors must not lower a pixel that did not change.
        return np.floor(np.clip(x, 0, 1) * 255 + 1e-3).astype(np.uint8)

    return changed


@_in_unit_range
def _gaussian_noise(x: Pixels, deviation: float, generator: np.random.Generator) -> Pixels:
    return x + np.float32(deviation) * generator.standard_normal(x.shape, dtype=np.float32)


@_in_unit_range
def _shot_noise(x: Pixels, photons: float, generator: np.random.Generator) -> Pixels:
    return np.asarray(generator.poisson(x * photons) / photons)


@_in_unit_range
def _impulse_noise(x: Pixels, share: float, generator: np.random.Generator) -> Pixels:
    draw = generator.random(x.shape, dtype=np.float32)
    return np.where(draw < share / 2, 0, np.where(draw < share, 1, x))


@_in_unit_range
def _blur(x: Pixels, deviation: float, _: np.random.Generator) -> Pixels:
    return np.asarray(gaussian_filter(x, sigma=(0, 0, deviation, deviation), mode="nearest"))


@_in_unit_range
def _contrast(x: Pixels, factor: float, _: np.random.Generator) -> Pixels:
    mean = x.mean(axis=(2, 3), keepdims=True)
    return np.asarray((x - mean) * factor + mean)


@_in_unit_range
def _brightness(x: Pixels, amount: float, _: np.random.Generator) -> Pixels:
    # Adding to the value of HSV scales the colour, because hue and saturation stay; black turns grey.
    value = x.max(axis=1, keepdims=True)
    brighter = np.minimum(value + amount, 1)
    scale = brighter / np.where(value > 0, value, 1)
    return np.asarray(np.where(value > 0, x * scale, brighter))


def _jpeg(pixels: Pixels, quality: float, _: np.random.Generator) -> Pixels:
    image = pillow()

    def compress(picture: Any) -> Any:  # noqa: ANN401  # Pillow is imported when needed
        buffer = BytesIO()
        picture.save(buffer, "JPEG", quality=int(quality))
        return image.open(buffer)

    return _each_picture(pixels, compress)


def _pixelate(pixels: Pixels, factor: float, _: np.random.Generator) -> Pixels:
    box = pillow().Resampling.BOX
    height, width = pixels.shape[2:]
    small = (max(1, int(width * factor)), max(1, int(height * factor)))
    return _each_picture(pixels, lambda picture: picture.resize(small, box).resize((width, height), box))


def _each_picture(pixels: Pixels, change: Callable[[Any], Any]) -> Pixels:
    image = pillow()
    result = np.empty_like(pixels)

    def fill(row: int) -> None:
        planes = pixels[row]
        grey = len(planes) == 1
        picture = image.fromarray(planes[0] if grey else np.ascontiguousarray(planes.transpose(1, 2, 0)))
        changed = np.asarray(change(picture))
        result[row] = changed[None] if grey else changed.transpose(2, 0, 1)

    in_threads(fill, len(pixels))
    return result


CORRUPTIONS: Mapping[str, Corruption] = {
    "gaussian_noise": _gaussian_noise,
    "shot_noise": _shot_noise,
    "impulse_noise": _impulse_noise,
    "blur": _blur,
    "contrast": _contrast,
    "brightness": _brightness,
    "jpeg": _jpeg,
    "pixelate": _pixelate,
}

# Severities 1 to 5 of CIFAR-10-C: a standard deviation, photons at full brightness, a share of pixels, a
# radius in pixels, a factor, an addition, the JPEG quality, and the share of the resolution that is left.
STRENGTHS: Mapping[str, tuple[float, float, float, float, float]] = {
    "gaussian_noise": (0.04, 0.06, 0.08, 0.09, 0.10),
    "shot_noise": (500, 250, 100, 75, 50),
    "impulse_noise": (0.01, 0.02, 0.03, 0.05, 0.07),
    "blur": (0.4, 0.6, 0.7, 0.8, 1.0),
    "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
    "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),
    "jpeg": (80, 65, 58, 50, 40),
    "pixelate": (0.95, 0.9, 0.85, 0.75, 0.65),
}
