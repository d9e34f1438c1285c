"""Smooth calibration error: the largest bias that a smooth function of the confidence can reveal."""

from dataclasses import dataclass
from typing import Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from calibrant.inputs import ArrayLike
from calibrant.outcomes import Outcomes, Pairs, check_outcomes

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Probe:
    """Smooth function that is low where a model is too sure and high where it is not sure enough.

    Attributes:
        confidence: The distinct confidences in ascending order, float64 on the CPU.
        phi: The best probe at each of them: between -1 and 1, and 1-Lipschitz.
        value: The smooth calibration error, which is the mean of ``(correct - confidence) * phi``.
    """

    confidence: Tensor
    phi: Tensor
    value: float


def smooth_calibration_error(
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    **pairs: Unpack[Pairs],
) -> float:
    r"""Largest correlation of the error ``correct - confidence`` with a smooth function of the confidence.

    .. math:: \mathrm{smCE} = \max_\phi \frac{1}{n} \sum_i (a_i - p_i)\, \phi(p_i),
        \quad |\phi| \le 1, \quad |\phi(p) - \phi(q)| \le |p - q|

    There are no bins to choose, and a small change of the confidences changes it little. The maximum is
    exact up to rounding and takes O(n log n) time; :func:`worst_case_probe` returns where it is attained.

    Args:
        probs: Class probabilities of shape ``(n, k)``; the most probable class is judged.
        labels: Integer classes of shape ``(n,)``.
        confidence: Instead of ``probs``: stated probabilities of being right, shape ``(n,)``.
        correct: Instead of ``labels``: whether each prediction was right, shape ``(n,)``.

    Returns:
        A number from 0 (calibrated) to 1 (always sure, always wrong).

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
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    **pairs: Unpack[Pairs],
) -> Probe:
    """Smooth function of the confidence that shows the miscalibration best.

    The arguments are those of :func:`smooth_calibration_error`, whose value this function attains.

    Example:
        >>> worst_case_probe(confidence=[0.5, 1.0], correct=[True, False]).phi.tolist()
        [-0.5, -1.0]
    """
    # Let S_i be the summed error, over n, up to the i-th distinct confidence, d_i the gap to the next one,
    # and S_m >= 0 (else flip all signs). Summing by parts, the linear program has the dual
    #     min_u  sum_i d_i |S_i - u_i| + sum_i |u_i - u_{i-1}|,   u_0 = 0,  u_m = S_m.
    # Confidences span at most 1, so phi varies by at most 1; as S_m >= 0 it may be raised until it touches
    # +1, and the bound at -1 never binds. Hence u need never fall: it is the weighted isotonic median
    # regression of S, kept within [0, S_m], and
    #     smCE = S_m + min over nondecreasing u of  sum_i d_i |S_i - u_i|.
    x, s = _cumulative_error(check_outcomes(probs, labels, **pairs))
    sign = -1.0 if s[-1] < 0 else 1.0
    total, s, gap = float(sign * s[-1]), sign * s[:-1], np.diff(x)
    u = _isotonic_median(s.clip(0.0, total), gap)
    phi = sign * (1.0 - _depth(s - u, np.diff(u, prepend=0.0, append=total) > 0, gap))
    return Probe(torch.from_numpy(x), torch.from_numpy(phi), total + float(gap @ np.abs(s - u)))


def _cumulative_error(outcomes: Outcomes) -> tuple[_Floats, _Floats]:
    """Distinct confidences in ascending order, and the mean of ``[p <= x] (a - p)`` at each of them."""
    ordered = outcomes.sorted()
    p = ordered.confidence.double().numpy()
    last = np.append(p[1:] > p[:-1], True)
    return p[last], np.cumsum(ordered.correct.numpy() - p)[last] / len(p)


def _isotonic_median(y: _Floats, weight: _Floats) -> _Floats:
    """Nondecreasing ``u`` that minimises ``sum(weight * |y - u|)``."""
    # The fit takes values of y, and the bits of its rank are found from the highest down. The points that
    # share the bits found so far are neighbours. Setting the next bit costs a point its weight if its own
    # rank is lower and saves it otherwise; as u does not fall, the points to set are a suffix of their group,
    # the one after the largest prefix sum. A sweep over all groups finds one bit: O(n log n) in total.
    values, rank = np.unique(y, return_inverse=True)
    fit = np.zeros_like(rank)
    for power in reversed(range(max(len(values) - 1, 0).bit_length())):
        raised = fit + (1 << power)
        before = np.cumsum(np.append(0.0, np.where(rank < raised, weight, -weight)))
        start = np.flatnonzero(np.diff(fit, prepend=-1))
        end = np.append(start[1:], len(fit))
        largest = np.maximum.reduceat(before[:-1], start)
        largest[largest <= before[end]] = np.inf  # no suffix is better than the empty one
        cut = before[:-1] == np.repeat(largest, end - start)
        fit = np.maximum.accumulate(np.where(cut, raised, fit))
    return values[fit]


def _depth(flow: _Floats, touches: npt.NDArray[np.bool_], gap: _Floats) -> _Floats:
    """How far the best probe stays below its bound at each confidence."""
    # Complementary slackness: the depth is 0 where u rises; it climbs at slope 1 where the flow S - u is
    # positive, falls at slope 1 where it is negative, and is free in between where it is 0. The greatest such
    # function is the length of the shortest way from a point of depth 0, on the left or on the right.
    rightward = np.append(0.0, np.cumsum(np.where(flow < 0, -gap, gap)))
    leftward = np.append(0.0, np.cumsum(np.where(flow > 0, -gap, gap)))
    if not touches.any():  # the errors cancel, so that the height of the probe is immaterial
        touches = rightward == rightward.min()
    from_left = rightward - np.maximum.accumulate(np.where(touches, rightward, -np.inf))
    from_right = np.minimum.accumulate(np.where(touches, leftward, np.inf)[::-1])[::-1] - leftward
    depth: _Floats = np.minimum(from_left, from_right)
    return depth.clip(min=0.0)
