"""Weather: snow, frost, fog and brightness."""

import numpy as np

from calibrant.training.datasets.corruptions.blur import moved, zoomed

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
