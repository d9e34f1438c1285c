"""Noise on every pixel: Gaussian, shot and impulse noise."""

import numpy as np


def gaussian_noise(x: np.ndarray, generator: np.random.Generator, deviation: float) -> np.ndarray:
    """Add noise with this standard deviation."""
    return np.asarray(x + np.float32(deviation) * generator.standard_normal(x.shape, dtype=np.float32))


def shot_noise(x: np.ndarray, generator: np.random.Generator, photons: float) -> np.ndarray:
    """Count photons, so many at full brightness."""
    return np.asarray(generator.poisson(x * photons) / photons)


def impulse_noise(x: np.ndarray, generator: np.random.Generator, share: float) -> np.ndarray:
    """Turn a share of the values black or white, half of them each."""
    draw = generator.random(x.shape, dtype=np.float32)
    return np.where(draw < share / 2, 0, np.where(draw < share, 1, x))
