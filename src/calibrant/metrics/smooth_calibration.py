"""Smooth calibration error: no bins, only cumulative sums of the error."""

from dataclasses import dataclass
from typing import Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.inputs import ArrayLike, Floats
from calibrant.metrics.counted import Counts, Ordered, Weighted
from calibrant.metrics.cumulative import CumulativeDifference
from calibrant.outcomes import Pairs, check_outcomes


@dataclass(frozen=True, eq=False)
class Probe:
    """Smooth function of the confidence: low where a model is overconfident, high where it is underconfident.

    Attributes:
        confidence: The distinct confidences in ascending order, float64 on the CPU.
        phi: Value of the best probe at each confidence: between -1 and 1, and 1-Lipschitz.
        value: The smooth calibration error, which is the mean of ``(correct - confidence) * phi``.
    """

    confidence: Tensor
    phi: Tensor
    value: float

    def __call__(self, confidence: Tensor) -> Tensor:
        """Return the probe at any confidences: linear between those it is known at, constant beyond them.

        Example:
            >>> worst_case_probe(confidence=[0.5, 1.0], correct=[True, False])(torch.tensor([0.2, 0.75]))
            tensor([-0.5000, -0.7500])
        """
        x, phi = self.confidence.to(confidence), self.phi.to(confidence)
        if len(x) == 1:
            return phi.expand_as(confidence)
        right = torch.searchsorted(x, confidence.detach()).clamp(1, len(x) - 1)
        share = ((confidence - x[right - 1]) / (x[right] - x[right - 1])).clamp(0, 1)
        return torch.lerp(phi[right - 1], phi[right], share)


def smooth_calibration_error(
    probs: ArrayLike | None = None, labels: ArrayLike | None = None, **pairs: Unpack[Pairs]
) -> float:
    r"""Return the largest mean of ``correct - confidence`` times a smooth function of the confidence (smCE).

    .. math:: \mathrm{smCE} = \max_\phi \frac{1}{n} \sum_i (a_i - p_i)\, \phi(p_i),
        \quad |\phi| \le 1, \quad |\phi(p) - \phi(q)| \le |p - q|

    There are no bins to choose, and a small change of the confidences changes the result little. The maximum
    is exact up to rounding and takes O(n log n) time; :func:`worst_case_probe` returns the maximiser.

    Args:
        probs: Class probabilities of shape ``(n, k)``; only the predicted class is measured.
        labels: Integer classes of shape ``(n,)``.
        confidence: Confidences of shape ``(n,)``, with ``correct``, instead of ``probs``.
        correct: Whether each prediction was right, shape ``(n,)``.

    Returns:
        A number from 0 (calibrated) to 1 (always certain, always wrong).

    Example:
        >>> smooth_calibration_error(confidence=[0.75, 0.75, 0.75, 0.75], correct=[1, 1, 0, 0])
        0.25
        >>> smooth_calibration_error(confidence=[0.5, 1.0], correct=[True, False])
        0.375

    References:
        Blasiok, Gopalan, Hu, Nakkiran, "A unifying theory of distance from calibration", STOC 2023.
    """
    return worst_case_probe(probs, labels, **pairs).value


def worst_case_probe(
    probs: ArrayLike | None = None, labels: ArrayLike | None = None, **pairs: Unpack[Pairs]
) -> Probe:
    """Return the smooth function of the confidence that attains :func:`smooth_calibration_error`.

    The arguments are those of :func:`smooth_calibration_error`.

    Example:
        >>> worst_case_probe(confidence=[0.5, 1.0], correct=[True, False]).phi.tolist()
        [-0.5, -1.0]
    """
    # Let S_i be the summed error, over n, up to the i-th distinct confidence, d_i the gap to the next one,
    # and S_m >= 0 (else flip all signs). Summing by parts, the linear program has the dual
    #     min_u  sum_i d_i |S_i - u_i| + sum_i |u_i - u_{i-1}|,   u_0 = 0,  u_m = S_m.
    # Confidences span at most 1, so phi varies by at most 1; as S_m >= 0 it may be raised until it touches
    # +1, and the bound at -1 never binds. Hence u need never fall: it is the weighted isotonic median
    # regression of S, clipped to [0, S_m], and
    #     smCE = S_m + min over nondecreasing u of  sum_i d_i |S_i - u_i|.
    cumulative = CumulativeDifference.from_outcomes(check_outcomes(probs, labels, **pairs))
    x, s = cumulative.confidence, cumulative.difference
    sign = -1.0 if s[-1] < 0 else 1.0
    total, s, gap = float(sign * s[-1]), sign * s[:-1], np.diff(x)
    u = _isotonic_median(s.clip(0.0, total), gap)
    phi = sign * (1.0 - _depth(s - u, np.diff(u, prepend=0.0, append=total) > 0, gap))
    return Probe(torch.from_numpy(x), torch.from_numpy(phi), total + float(gap @ np.abs(s - u)))


def smooth_calibration_weights(
    probs: ArrayLike | None = None, labels: ArrayLike | None = None, **pairs: Unpack[Pairs]
) -> Weighted:
    """Return :func:`smooth_calibration_error` as a function of counts."""
    ordered = Ordered.from_outcomes(check_outcomes(probs, labels, **pairs))
    x = ordered.values.astype(np.float64)

    def values(counts: Counts) -> Floats:
        cumulative = ordered.errors(counts).cumsum(axis=1) / counts.sum(axis=1, keepdims=True)
        return np.array([_smooth_error(x, s) for s in cumulative])

    # A fit sorts the samples and passes over them a dozen times.
    return Weighted(len(ordered), values, 4 * len(ordered), 40 * len(ordered), ordered.weights)


def _smooth_error(x: Floats, s: Floats) -> float:
    """Return the smooth calibration error, given distinct confidences and the summed error up to each."""
    sign = -1.0 if s[-1] < 0 else 1.0
    total = float(sign * s[-1])
    # Where the sum does not change, the fit does not either: one point stands for all of them.
    first = np.flatnonzero(np.append(True, s[1:] != s[:-1]))
    gap = np.diff(x[first], append=x[-1])
    s = sign * s[first]
    return total + float(gap @ np.abs(s - _isotonic_median(s.clip(0.0, total), gap)))


def _isotonic_median(y: Floats, weight: Floats) -> Floats:
    """Return the nondecreasing ``u`` that minimises ``sum(weight * |y - u|)``."""
    # The fit takes values of y; the bits of its rank are determined from the highest down. Points that share
    # the bits so far are neighbours and form a group. Setting the next bit adds the weight of a point to the
    # cost if the rank of its y is lower, and subtracts it otherwise. As u does not fall, the points to set
    # are a suffix of their group, after the largest prefix sum. One sweep over all groups gives one bit:
    # O(n log n) in total.
    if not len(y):
        return y
    values, rank = np.unique(y, return_inverse=True)
    # The fit never leaves a stretch of points that all lie above the points before it and below those after
    # it. So each stretch starts at its lowest rank, and the longest one determines the number of bits.
    highest, lowest = np.maximum.accumulate(rank), np.minimum.accumulate(rank[::-1])[::-1]
    starts = np.flatnonzero(np.append(True, highest[:-1] < lowest[1:]))
    sizes = np.diff(starts, append=len(rank))
    fit = np.repeat(lowest[starts], sizes)
    longest = int((np.append(highest[starts[1:] - 1], highest[-1]) - lowest[starts]).max())
    for power in reversed(range(longest.bit_length())):
        raised = fit + (1 << power)
        before = np.cumsum(np.append(0.0, np.where(rank < raised, weight, -weight)))
        start = np.flatnonzero(np.diff(fit, prepend=-1))
        end = np.append(start[1:], len(fit))
        largest = np.maximum.reduceat(before[:-1], start)
        largest[largest <= before[end]] = np.inf  # no suffix is better than the empty one
        cut = before[:-1] == np.repeat(largest, end - start)
        fit = np.maximum.accumulate(np.where(cut, raised, fit))
    fitted: Floats = values[fit]
    return fitted


def _depth(flow: Floats, touches: npt.NDArray[np.bool_], gap: Floats) -> Floats:
    """Return the distance between the best probe and its upper bound at each confidence."""
    # Complementary slackness: the depth is 0 where u rises; it climbs at slope 1 where the flow S - u is
    # positive, falls at slope 1 where it is negative, and is free between these slopes where it is 0. The
    # greatest such function is the length of the shortest path from a point of depth 0, left or right.
    rightward = np.append(0.0, np.cumsum(np.where(flow < 0, -gap, gap)))
    leftward = np.append(0.0, np.cumsum(np.where(flow > 0, -gap, gap)))
    if not touches.any():  # the errors cancel, so the height of the probe does not matter
        touches = rightward == rightward.min()
    from_left = rightward - np.maximum.accumulate(np.where(touches, rightward, -np.inf))
    from_right = np.minimum.accumulate(np.where(touches, leftward, np.inf)[::-1])[::-1] - leftward
    depth: Floats = np.minimum(from_left, from_right)
    return depth.clip(min=0.0)
