"""Ratios of two sums over units, such as wrong answers to answers: tests and bounds that count units."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import scipy

from calibrant.inference.rows import check_level
from calibrant.inputs import Floats, Integers

# Steps of Newton's method towards the saddle point; it settles in less than ten.
_STEPS = 60
_SETTLED = 1e-10
# Nearer to the mean than this, the formula of the tail divides zero by zero, and its limit is used.
_AT_MEAN = 1e-4
# Halvings of the interval of a bound: more than its digits that count.
_HALVINGS = 40


@dataclass(frozen=True, eq=False)
class UnitRatios:
    r"""Ratios of the sum of a part to the sum of a whole, for several collections of units.

    The part of a unit is between zero and its whole, such as its wrong answers among its answers. The ratio
    is that of the population of units, whose rows count equally: :math:`E[\text{part}] / E[\text{whole}]`.
    It is at least a limit :math:`r` if :math:`X = \text{part} - r\,\text{whole}` has a mean of at least 0.
    The p-value of this is Gaffke's,

    .. math:: p(r) = P\Big(\sum_u D_u X_u + D_0\,(1 - r)\max_u \text{whole}_u > 0\Big)

    with weights :math:`D` that are uniform among those of sum one (Dirichlet). The last term is a unit that
    has not been seen: it is as large as the largest, and all of it is part. If each unit is one row, this is
    the exact binomial test, and the bound that of Clopper and Pearson. Else it needs no assumption about
    the dependence within units, and gains from what they have in common with independent rows.

    That the p-value is valid for all bounded distributions is a conjecture, which no known distribution
    contradicts. A proof exists for bets on units (the mean over :math:`\lambda` of :math:`\prod_u (1 -
    \lambda X_u)`), but thresholds for a risk of 5 % by 540 units of 5 rows then answer 40 to 53 % instead of
    54 to 58 % (``benchmarks/unit_guarantees.py``).

    The probability is computed by the saddle point approximation of Lugannani and Rice, whose p-value is
    larger than the exact one by at most 2 % of it where each unit is one row.

    Attributes:
        parts: The parts that occur, shape ``(t, c)``: a row for each collection, a column for each pair of
            part and whole.
        wholes: The wholes of these pairs.
        counts: Number of units with each pair; 0 fills the rows.

    Example:
        >>> wrong, answers = np.array([0, 1, 0, 0]), np.array([5, 5, 4, 5])
        >>> UnitRatios.of([(wrong, answers)]).upper(0.95).round(3)
        array([0.568])

    References:
        Gaffke, "Three test statistics for a nonparametric one-sided hypothesis on the mean of a nonnegative
        variable", Mathematical Methods of Statistics 2005.
        Learned-Miller and Thomas, "A New Confidence Interval for the Mean of a Bounded Random Variable",
        arXiv 1905.06208.
        Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 2024.
        Lugannani and Rice, "Saddle point approximation for the distribution of the sum of independent random
        variables", Advances in Applied Probability 1980.
    """

    parts: Floats
    wholes: Floats
    counts: Floats

    @classmethod
    def of(cls, sums: Iterable[tuple[Integers, Integers]]) -> "UnitRatios":
        """Return the ratios of collections of units, from the part and the whole of each unit."""
        found = []
        for part, whole in sums:
            used = whole > 0
            stride = int(whole.max(initial=0)) + 1
            pairs, counts = np.unique(whole[used] * stride + part[used], return_counts=True)
            found.append((pairs % stride, pairs // stride, counts))
        width = max((len(counts) for _, _, counts in found), default=0)
        padded = np.zeros((3, len(found), max(width, 1)))
        for place, columns in enumerate(found):
            padded[:, place, : len(columns[0])] = columns
        return cls(*padded)

    @property
    def effective(self) -> Floats:
        """Number of units as large as the largest that would have the same whole."""
        largest = self.wholes.max(axis=1)
        return np.asarray((self.counts * self.wholes).sum(axis=1) / np.where(largest > 0, largest, 1.0))

    def p_values(self, limit: float | Floats) -> Floats:
        """Return the p-values of "the ratio is at least the limit", shape ``(t,)``."""
        r = np.broadcast_to(np.asarray(limit, dtype=np.float64), len(self.parts))[:, None]
        scale = (1 - r) * self.wholes.max(axis=1, keepdims=True)
        x = np.divide(self.parts - r * self.wholes, scale, out=np.zeros_like(self.parts), where=scale > 0)
        return _probability_above_zero(
            np.append(x, np.ones_like(r), axis=1), np.append(self.counts, np.ones_like(r), axis=1)
        )

    def upper(self, level: float) -> Floats:
        """Return one-sided upper bounds of the ratios, shape ``(t,)``."""
        error = 1 - check_level(level)
        low, high = np.zeros(len(self.parts)), np.ones(len(self.parts))
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            is_above = self.p_values(middle) > error
            low, high = np.where(is_above, middle, low), np.where(is_above, high, middle)
        return np.where(low > 1 - 2.0 ** (1 - _HALVINGS), 1.0, high)

    def lower(self, level: float) -> Floats:
        """Return one-sided lower bounds of the ratios: one minus the upper bounds of what is no part."""
        return 1 - UnitRatios(self.wholes - self.parts, self.wholes, self.counts).upper(level)


def _probability_above_zero(x: Floats, counts: Floats) -> Floats:
    """Return the probability that sums of exponential variables times ``x``, at most 1 and once 1, exceed 0.

    Args:
        x: Factors of shape ``(t, c)``.
        counts: Number of variables with each factor.
    """
    least = x.min(axis=1)
    found = np.ones(len(x))  # that of no negative factor
    rows = np.flatnonzero(least < 0)
    x, counts, low = x[rows], counts[rows], 1 / least[rows]
    s, high = np.zeros(len(rows)), np.ones(len(rows))
    for _ in range(_STEPS):
        q = x / (1 - s[:, None] * x)
        slope, curvature = (counts * q).sum(axis=1), (counts * q * q).sum(axis=1)
        low, high = np.where(slope < 0, s, low), np.where(slope < 0, high, s)
        step = s - slope / curvature
        step = np.where((step > low) & (step < high), step, (low + high) / 2)
        moved, s = np.abs(step - s), step
        if not (moved > _SETTLED * (high - low + np.abs(s))).any():
            break
    shrunk = 1 - s[:, None] * x
    q = x / shrunk
    curvature = (counts * q * q).sum(axis=1)
    w = np.sign(s) * np.sqrt(np.maximum(2 * (counts * np.log(shrunk)).sum(axis=1), 0.0))
    v = s * np.sqrt(curvature)
    skewness = 2 * (counts * q**3).sum(axis=1) / curvature**1.5
    density = np.exp(-(w**2) / 2) / math.sqrt(2 * math.pi)
    with np.errstate(divide="ignore", invalid="ignore"):
        beside = np.where(np.abs(w) < _AT_MEAN, -skewness / 6, 1 / v - 1 / w)
    found[rows] = np.clip(scipy.special.ndtr(-w) + density * beside, 0.0, 1.0)
    return found
