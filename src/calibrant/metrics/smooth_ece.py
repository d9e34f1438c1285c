"""Smooth ECE: the calibration error after kernel smoothing, with a bandwidth equal to the error itself."""

from dataclasses import dataclass
from typing import Unpack

import numpy as np
import scipy
import torch
from torch import Tensor

from calibrant.inputs import ArrayLike, Floats, check_number
from calibrant.metrics.counted import Counts, Weighted
from calibrant.outcomes import Outcomes, Pairs, check_outcomes

# A power of two: scaling a confidence by it does not round.
_CELLS = 1 << 12
_BLOCK = 1 << 17
_ONE_LESS_COSINE = 1 - np.cos(np.arange(_CELLS + 1) * (np.pi / _CELLS))
_DAMPED = 60.0
# All wider kernels give the same curve.
_WIDEST = 1e6
# The search for the bandwidth ends this close to its error, usually after fewer than ten steps; resamples
# differ by far more from each other than by what an earlier end changes.
_CLOSE = 1e-12
_CLOSE_FOR_RESAMPLES = 1e-7
_FEWEST_CELLS = 1 << 9
_STEPS = 100


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
    return float(_area(_smooth(spectrum, _choose_bandwidth(spectrum, bandwidth))))


def smooth_ece_terms(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    bandwidth: float | None = None,
    **pairs: Unpack[Pairs],
) -> Floats:
    r"""Return a number for each sample whose mean, with their weights, is :func:`smooth_ece`: ``(n,)``.

    With the sign :math:`s(t)` of the smoothed gap, the term of a sample is :math:`(a - p)\,(K s)(p)`. The
    deviation of the terms gives the standard error of the measure, and that of their differences between two
    models the standard error of the difference, without resampling. The arguments are those of
    :func:`smooth_ece`.

    Example:
        >>> smooth_ece_terms(confidence=[0.75, 0.75, 0.75, 0.75], correct=[1, 1, 0, 0]).round(3).tolist()
        [-0.25, -0.25, 0.75, 0.75]
    """
    outcomes = check_outcomes(probs, labels, **pairs)
    gap, _ = _gap_and_mass(outcomes)
    spectrum = _spectrum(gap)
    chosen = _choose_bandwidth(spectrum, bandwidth)
    side = np.sign(_smooth(spectrum, chosen))
    witness = _smooth(_cosine_transform(side), chosen)
    p = outcomes.confidence.cpu().double().numpy()
    terms: Floats = (outcomes.correct.cpu().numpy() - p) * np.interp(
        p, np.arange(_CELLS + 1) / _CELLS, witness
    )
    return terms


def smooth_ece_weights(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    bandwidth: float | None = None,
    **pairs: Unpack[Pairs],
) -> Weighted:
    """Return :func:`smooth_ece` as a function of counts."""
    outcomes = check_outcomes(probs, labels, **pairs)
    scaled = np.multiply(outcomes.confidence.cpu().numpy(), _CELLS, dtype=np.float64)
    hits, n = outcomes.correct.cpu().numpy(), len(scaled)
    place = scaled.astype(np.intp)
    # Each sample is split between the ends of its cell, as in the measure itself; the end of the last cell
    # belongs to no other cell, and its share is zero.
    ends = np.concatenate([place, np.minimum(place + 1, _CELLS)])
    shares = np.concatenate([1 - (scaled - place), scaled - place])
    gaps = shares * (np.tile(hits, 2) - ends / _CELLS)
    grid = scipy.sparse.csr_array((gaps, (ends, np.tile(np.arange(n), 2))), shape=(_CELLS + 1, n))

    def values(counts: Counts) -> Floats:
        spectrum = _spectrum((grid @ counts.T.astype(np.float64)).T / counts.sum(axis=1, keepdims=True))
        return _area(_smooth(spectrum, _choose_bandwidth(spectrum, bandwidth, fast=True), fast=True))

    return Weighted(n, values, 4 * _CELLS, max(2 * n, 16 * _CELLS), outcomes.weights)


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
    chosen = _choose_bandwidth(spectrum, bandwidth)
    smoothed = _smooth(spectrum, chosen)
    density = _smooth(_spectrum(mass), chosen).clip(min=0.0)
    grid = np.arange(_CELLS + 1) / _CELLS
    # The transform leaves rounding noise of about 1e-12 where the density is zero.
    near = density > 1e-9
    accuracy = np.where(near, grid + smoothed / np.where(near, density, 1.0), np.nan)
    return SmoothReliability(
        confidence=torch.from_numpy(grid),
        accuracy=torch.from_numpy(accuracy),
        density=torch.from_numpy(density),
        bandwidth=float(chosen),
        value=float(_area(smoothed)),
    )


def _choose_bandwidth(spectrum: Floats, bandwidth: float | None, *, fast: bool = False) -> Floats:
    """Return the given bandwidth, or the one that equals its own error; one for each leading entry."""
    close = _CLOSE_FOR_RESAMPLES if fast else _CLOSE
    if bandwidth is not None:
        return np.full(spectrum.shape[:-1], check_number(bandwidth, "bandwidth"))
    spectra = spectrum.reshape(-1, _CELLS + 1)
    # The error never rises with the bandwidth, and it is at least the absolute mean gap. So the fixed point
    # lies between that bandwidth and its error. False position with the Illinois rule narrows this.
    low = np.abs(spectra[:, 0]) / (2 * _CELLS)
    over_low = _excess(spectra, low, fast=fast)
    high = low + over_low
    over_high = _excess(spectra, high, fast=fast)
    chosen = low.copy()
    active = np.flatnonzero(over_low > close)
    for _ in range(_STEPS):
        if not len(active):
            break
        a, b, over_a, over_b = (each[active] for each in (low, high, over_low, over_high))
        chosen[active] = middle = a + (b - a) * over_a / (over_a - over_b)
        over = _excess(spectra[active], middle, fast=fast)
        rises = over > 0
        low[active], high[active] = np.where(rises, middle, a), np.where(rises, b, middle)
        over_low[active] = np.where(rises, over, over_a / 2)
        over_high[active] = np.where(rises, over_b / 2, over)
        # The distance to the fixed point is at most this excess.
        active = active[np.abs(over) > close]
    return chosen.reshape(spectrum.shape[:-1])


def _excess(spectrum: Floats, bandwidth: Floats, *, fast: bool) -> Floats:
    """Return by how much the error exceeds the bandwidth."""
    return _area(_smooth(spectrum, bandwidth, fast=fast)) - bandwidth


def _gap_and_mass(outcomes: Outcomes) -> tuple[Floats, Floats]:
    """Return the sum of ``correct - confidence`` and the count at each grid point, both over ``n``."""
    values, hits = outcomes.confidence.cpu().numpy(), outcomes.correct.cpu().numpy()
    weights = outcomes.counts.cpu().numpy()
    size = 2 * (_CELLS + 1)
    count, upper = np.zeros(size), np.zeros(size)
    for start in range(0, len(values), _BLOCK):
        scaled = np.multiply(values[start : start + _BLOCK], _CELLS, dtype=np.float64)
        place = scaled.astype(np.intp)
        scaled -= place
        # Misses go to the even places and hits to the odd ones.
        place *= 2
        place += hits[start : start + _BLOCK]
        count += np.bincount(place, weights=weights[start : start + _BLOCK], minlength=size)
        scaled *= weights[start : start + _BLOCK]
        upper += np.bincount(place, weights=scaled, minlength=size)
    # Each sample is split between the ends of its cell so that their weighted mean is its confidence.
    shares = (count - upper).reshape(-1, 2)
    shares[1:] += upper.reshape(-1, 2)[:-1]
    shares /= weights.sum()
    mass = shares.sum(axis=1)
    return shares[:, 1] - mass * np.arange(_CELLS + 1) / _CELLS, mass


def _spectrum(mass: Floats) -> Floats:
    """Return the cosine transform of the density with these masses; the end points represent half a cell."""
    density = mass * _CELLS
    density[..., [0, -1]] *= 2
    return _cosine_transform(density)


def _cosine_transform(values: Floats) -> Floats:
    """Return the cosine transform (DCT-I) along the last axis: the Fourier transform of the mirrored row."""
    # SciPy's computes the same, but takes a tenth of the time of `import torch` to import.
    transform: Floats = np.fft.rfft(np.concatenate([values, values[..., -2:0:-1]], axis=-1)).real
    return transform


def _smooth(spectrum: Floats, bandwidth: Floats, *, fast: bool = False) -> Floats:
    """Smooth by a random walk on the grid, reflected at both ends, with the given standard deviation.

    A smooth curve is known from fewer points; ``fast`` returns no more than these.
    """
    # For bandwidths of several cells the walk is the reflected Gaussian. Unlike a sampled Gaussian it is a
    # contraction at every bandwidth, so the error never rises with bandwidth and the fixed point is unique.
    steps = (np.minimum(bandwidth, _WIDEST)[..., None] * _CELLS) ** 2
    # Frequencies that are damped below any rounding are left out: numbers close to zero are slow.
    kept = int(np.searchsorted(_ONE_LESS_COSINE * steps.min(), _DAMPED, side="right"))
    cells = min(_CELLS, max(_FEWEST_CELLS, 1 << (2 * kept).bit_length())) if fast else _CELLS
    damped = np.zeros((*spectrum.shape[:-1], cells + 1))
    np.multiply(spectrum[..., :kept], np.exp(-steps * _ONE_LESS_COSINE[:kept]), out=damped[..., :kept])
    return _cosine_transform(damped) / (2 * _CELLS)


def _area(density: Floats) -> Floats:
    """Return the integral of the absolute value by the trapezoidal rule."""
    size = np.abs(density)
    return np.asarray((size.sum(axis=-1) - (size[..., 0] + size[..., -1]) / 2) / (size.shape[-1] - 1))
