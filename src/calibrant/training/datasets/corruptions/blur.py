"""Blur: out of focus, through frosted glass, by motion, by zooming, and Gaussian."""

import math

import numpy as np
from scipy.ndimage import convolve, gaussian_filter


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
