"""Smooth ECE: the calibration error after a blur that is as wide as the error itself."""

import math
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import numpy.typing as npt
import torch
from scipy import fft
from scipy.optimize import brentq
from torch import Tensor

from calibrant.errors import InputError
from calibrant.inputs import ArrayLike
from calibrant.outcomes import Outcomes, Pairs, check_outcomes

_Floats = npt.NDArray[np.float64]

# A power of two: scaling a confidence by it does not round.
_CELLS = 1 << 12
_BLOCK = 1 << 17


@dataclass(frozen=True, eq=False)
class SmoothReliability:
    """Reliability diagram without bins: the curve, and how many predictions stand behind each point of it.

    The tensors are float64 on the CPU, one entry per point of an even grid from 0 to 1. The area between
    the curve and the diagonal, weighted by the density, is ``value``.

    Attributes:
        confidence: The grid.
        accuracy: The grid plus the smoothed gap ``correct - confidence``; NaN where no prediction is near.
            In thin regions it may leave the unit interval.
        density: Smoothed density of the confidences; it integrates to one.
        bandwidth: Standard deviation of the Gaussian blur.
        value: The smooth ECE at this bandwidth.
    """

    confidence: Tensor
    accuracy: Tensor
    density: Tensor
    bandwidth: float
    value: float


def smooth_ece(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    bandwidth: float | None = None,
    **pairs: Unpack[Pairs],
) -> float:
    r"""Mean gap between confidence and accuracy after a blur as wide as the gap itself (smECE).

    .. math:: \mathrm{smECE}_\sigma
        = \int_0^1 \Big| \frac{1}{n} \sum_i (a_i - p_i) K_\sigma(t, p_i) \Big|\,dt,
        \qquad \mathrm{smECE} = \mathrm{smECE}_{\sigma^*} = \sigma^*

    The kernel is the Gaussian reflected at 0 and 1. A wider blur lets more errors cancel, so there is
    exactly one bandwidth that equals its own error: nothing is left to choose, and a small change of the
    confidences changes the result little. It takes O(n) time and constant memory beside the input.

    The integral is taken on a grid of 4097 points, on which each confidence is shared between its two
    neighbours; bandwidths below the spacing of 0.00024 therefore blur no less than that.

    The package ``relplot`` of the authors cuts the kernel off at a distance of 0.5 and counts a confidence
    of exactly 0 or 1 by half, so it differs where the error is large or where many predictions are certain.

    Args:
        probs: Class probabilities of shape ``(n, k)``; the most probable class is judged.
        labels: Integer classes of shape ``(n,)``.
        confidence: Instead of ``probs``: stated probabilities of being right, shape ``(n,)``.
        correct: Instead of ``labels``: whether each prediction was right, shape ``(n,)``.
        bandwidth: Standard deviation of the blur on the scale of the confidence. By default the fixed point.

    Returns:
        A number from 0 (calibrated) to 1 (always sure, always wrong).

    Example:
        >>> round(smooth_ece(confidence=[0.75, 0.75, 0.75, 0.75], correct=[1, 1, 0, 0]), 6)
        0.25
        >>> round(smooth_ece(confidence=[0.5, 1.0], correct=[True, False], bandwidth=0.01), 6)
        0.75

    References:
        Blasiok and Nakkiran, "Smooth ECE: principled reliability diagrams via kernel smoothing", ICLR 2024.
    """
    gap, _ = _gap_and_mass(check_outcomes(probs, labels, **pairs))
    spectrum = _spectrum(gap)
    return _area(_blur(spectrum, _choose_bandwidth(spectrum, bandwidth)))


def smooth_reliability(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    bandwidth: float | None = None,
    **pairs: Unpack[Pairs],
) -> SmoothReliability:
    """Accuracy as a smooth function of confidence, drawn so that its distance to the diagonal is the smECE.

    The arguments are those of :func:`smooth_ece`.

    Example:
        >>> curve = smooth_reliability(confidence=[0.75, 0.75, 0.75, 0.75], correct=[1, 1, 0, 0])
        >>> round(float(curve.accuracy[3072]), 6), round(curve.bandwidth, 6)
        (0.5, 0.25)
    """
    gap, mass = _gap_and_mass(check_outcomes(probs, labels, **pairs))
    spectrum = _spectrum(gap)
    bandwidth = _choose_bandwidth(spectrum, bandwidth)
    blurred = _blur(spectrum, bandwidth)
    density = _blur(_spectrum(mass), bandwidth).clip(min=0.0)
    grid = np.arange(_CELLS + 1) / _CELLS
    # The transform leaves noise of about 1e-12 where the density is zero.
    near = density > 1e-9
    accuracy = np.where(near, grid + blurred / np.where(near, density, 1.0), np.nan)
    return SmoothReliability(
        confidence=torch.from_numpy(grid),
        accuracy=torch.from_numpy(accuracy),
        density=torch.from_numpy(density),
        bandwidth=bandwidth,
        value=_area(blurred),
    )


def _choose_bandwidth(spectrum: _Floats, bandwidth: float | None) -> float:
    """Return the given bandwidth, or the one that equals its own error."""
    if bandwidth is not None:
        if not 0 < bandwidth < math.inf:
            raise InputError(f"bandwidth: expected a positive number, got {bandwidth}")
        return float(bandwidth)
    # The error is at most 1, so the difference is negative at 2 whatever the rounding.
    return float(brentq(lambda sigma: _area(_blur(spectrum, sigma)) - sigma, 0.0, 2.0, xtol=1e-9))


def _gap_and_mass(outcomes: Outcomes) -> tuple[_Floats, _Floats]:
    """Summed ``correct - confidence`` and number of samples at each grid point, both over ``n``."""
    values, hits = outcomes.confidence.cpu().numpy(), outcomes.correct.cpu().numpy()
    size = 2 * (_CELLS + 1)
    count, upper = np.zeros(size), np.zeros(size)
    for start in range(0, len(values), _BLOCK):
        scaled = np.multiply(values[start : start + _BLOCK], _CELLS, dtype=np.float64)
        place = scaled.astype(np.intp)
        scaled -= place
        # Misses go to the even places and hits to the odd ones.
        place *= 2
        place += hits[start : start + _BLOCK]
        count += np.bincount(place, minlength=size)
        upper += np.bincount(place, weights=scaled, minlength=size)
    # Each sample is split between the ends of its cell so that its mean place is its confidence.
    shares = (count - upper).reshape(-1, 2)
    shares[1:] += upper.reshape(-1, 2)[:-1]
    shares /= len(values)
    mass = shares.sum(axis=1)
    return shares[:, 1] - mass * np.arange(_CELLS + 1) / _CELLS, mass


def _spectrum(mass: _Floats) -> _Floats:
    """Cosine transform of the density that has these masses; the grid's end points stand for half a cell."""
    density = mass * _CELLS
    density[[0, -1]] *= 2
    spectrum: _Floats = fft.dct(density, type=1)
    return spectrum


def _blur(spectrum: _Floats, bandwidth: float) -> _Floats:
    """Blur by a random walk on the grid, reflected at both ends, of the given standard deviation."""
    # For bandwidths of several cells the walk is the reflected Gaussian. Unlike a sampled Gaussian it stays
    # a contraction at every bandwidth, so the error never rises with it and the fixed point is unique.
    cosine = np.cos(np.arange(_CELLS + 1) * (np.pi / _CELLS))
    blurred: _Floats = fft.idct(spectrum * np.exp((bandwidth * _CELLS) ** 2 * (cosine - 1)), type=1)
    return blurred


def _area(density: _Floats) -> float:
    """Integral of the absolute value by the trapezoidal rule."""
    size = np.abs(density)
    return float(size.sum() - (size[0] + size[-1]) / 2) / _CELLS
