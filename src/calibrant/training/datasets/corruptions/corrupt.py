"""Corruptions by name, with the strengths of CIFAR-10-C."""

from collections.abc import Callable, Mapping
from typing import TypeAlias
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import check_choice
from calibrant.training.datasets.corruptions.blur import (
    defocus_blur,
    gaussian_blur,
    glass_blur,
    motion_blur,
    zoom_blur,
)
from calibrant.training.datasets.corruptions.digital import contrast, elastic_transform, jpeg, pixelate
from calibrant.training.datasets.corruptions.noise import gaussian_noise, impulse_noise, shot_noise
from calibrant.training.datasets.corruptions.weather import brightness, fog, frost, snow

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
    function, strengths = CORRUPTIONS[name], STRENGTHS[name][severity - 1]
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
STRENGTHS: Mapping[str, tuple[tuple[float, ...], ...]] = {
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
