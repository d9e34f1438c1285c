"""Smooth ECE: the calibration error after kernel smoothing, with a bandwidth equal to the error itself."""

from dataclasses import dataclass
from typing import Unpack

import numpy as np
import torch
from scipy import fft
from scipy.optimize import brentq
from torch import Tensor

from calibrant.inputs import ArrayLike, Floats, check_number
from calibrant.outcomes import Outcomes, Pairs, check_outcomes

# A power of two: scaling a confidence by it does not round.
_CELLS = 1 << 12
_BLOCK = 1 << 17


@dataclass(frozen=True, eq=False)
class SmoothReliability:
    """Reliability diagram without bins: the curve, and the density of predictions at each point.

    The tensors are float64 on the CPU, with one entry per point of an even grid from 0 to 1. ``value`` is the
    area between the curve and the diagonal, weighted by the density.

    Attributes:
        confidence: The grid.
        accuracy: The grid plus the smoothed gap ``correct - confidence``; NaN where no prediction is near.
            Where predictions are rare it may lie outside the unit interval.
        density: Smoothed density of the confidences; it integrates to one.
        bandwidth: Standard deviation of the Gaussian kernel.
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
    r"""Return the mean gap between confidence and accuracy after kernel smoothing (smECE).

    .. math:: \mathrm{smECE}_\sigma
        = \int_0^1 \Big| \frac{1}{n} \sum_i (a_i - p_i) K_\sigma(t, p_i) \Big|\,dt,
        \qquad \mathrm{smECE} = \mathrm{smECE}_{\sigma^*} = \sigma^*

    The kernel is the Gaussian reflected at 0 and 1. With a wider kernel more errors cancel, so exactly one
    bandwidth equals its own error: there is nothing to choose, and a small change of the confidences changes
    the result little. It takes O(n) time and constant memory besides the input.

    The integral is computed on a grid of 4097 points; each confidence is split between its two neighbours on
    the grid. Therefore a bandwidth below the grid spacing of 0.00024 smooths as much as the spacing does.

    The authors' package ``relplot`` truncates the kernel at a distance of 0.5 and gives a confidence of
    exactly 0 or 1 half its weight, so it differs where the error is large or many predictions are certain.

    Args:
        probs: Class probabilities of shape ``(n, k)``; only the predicted class is measured.
        labels: Integer classes of shape ``(n,)``.
        confidence: Confidences of shape ``(n,)``, with ``correct``, instead of ``probs``.
        correct: Whether each prediction was right, shape ``(n,)``.
        bandwidth: Standard deviation of the kernel, as a confidence; by default the fixed point.

    Returns:
        A number from 0 (calibrated) to 1 (always certain, always wrong).

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
    return _area(_smooth(spectrum, _choose_bandwidth(spectrum, bandwidth)))


def smooth_reliability(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    bandwidth: float | None = None,
    **pairs: Unpack[Pairs],
) -> SmoothReliability:
    """Return accuracy as a smooth function of confidence, whose distance to the diagonal is the smECE.

    The arguments are those of :func:`smooth_ece`.

    Example:
        >>> curve = smooth_reliability(confidence=[0.75, 0.75, 0.75, 0.75], correct=[1, 1, 0, 0])
        >>> round(float(curve.accuracy[3072]), 6), round(curve.bandwidth, 6)
        (0.5, 0.25)
    """
    gap, mass = _gap_and_mass(check_outcomes(probs, labels, **pairs))
    spectrum = _spectrum(gap)
    bandwidth = _choose_bandwidth(spectrum, bandwidth)
    smoothed = _smooth(spectrum, bandwidth)
    density = _smooth(_spectrum(mass), bandwidth).clip(min=0.0)
    grid = np.arange(_CELLS + 1) / _CELLS
    # The transform leaves rounding noise of about 1e-12 where the density is zero.
    near = density > 1e-9
    accuracy = np.where(near, grid + smoothed / np.where(near, density, 1.0), np.nan)
    return SmoothReliability(
        confidence=torch.from_numpy(grid),
        accuracy=torch.from_numpy(accuracy),
        density=torch.from_numpy(density),
        bandwidth=bandwidth,
        value=_area(smoothed),
    )


def _choose_bandwidth(spectrum: Floats, bandwidth: float | None) -> float:
    """Return the given bandwidth, or the one that equals its own error."""
    if bandwidth is not None:
        return check_number(bandwidth, "bandwidth")
    # The error is at most 1, so the difference is negative at 2, also with rounding.
    return float(brentq(lambda sigma: _area(_smooth(spectrum, sigma)) - sigma, 0.0, 2.0, xtol=1e-9))


def _gap_and_mass(outcomes: Outcomes) -> tuple[Floats, Floats]:
    """Return the sum of ``correct - confidence`` and the count at each grid point, both over ``n``."""
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
    # Each sample is split between the ends of its cell so that their weighted mean is its confidence.
    shares = (count - upper).reshape(-1, 2)
    shares[1:] += upper.reshape(-1, 2)[:-1]
    shares /= len(values)
    mass = shares.sum(axis=1)
    return shares[:, 1] - mass * np.arange(_CELLS + 1) / _CELLS, mass


def _spectrum(mass: Floats) -> Floats:
    """Return the cosine transform of the density with these masses; the end points represent half a cell."""
    density = mass * _CELLS
    density[[0, -1]] *= 2
    spectrum: Floats = fft.dct(density, type=1)
    return spectrum


def _smooth(spectrum: Floats, bandwidth: float) -> Floats:
    """Smooth by a random walk on the grid, reflected at both ends, with the given standard deviation."""
    # For bandwidths of several cells the walk is the reflected Gaussian. Unlike a sampled Gaussian it is a
    # contraction at every bandwidth, so the error never rises with bandwidth and the fixed point is unique.
    cosine = np.cos(np.arange(_CELLS + 1) * (np.pi / _CELLS))
    smoothed: Floats = fft.idct(spectrum * np.exp((bandwidth * _CELLS) ** 2 * (cosine - 1)), type=1)
    return smoothed


def _area(density: Floats) -> float:
    """Return the integral of the absolute value by the trapezoidal rule."""
    size = np.abs(density)
    return float(size.sum() - (size[0] + size[-1]) / 2) / _CELLS
