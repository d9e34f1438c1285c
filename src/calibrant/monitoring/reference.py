"""The reference of a drift monitor: the gap between accuracy and confidence, with confidence regions.

A region bounds a mean by betting: a claim about the mean is refuted once bets against it have won enough.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Annotated, Any, Self

import numpy as np

from calibrant.bins import equal_mass_bins
from calibrant.errors import InputError
from calibrant.files import Count, Share, at_least, between, read_dataclass
from calibrant.inference.units import Indices, Units
from calibrant.inputs import ArrayLike, Floats, check_count
from calibrant.outcomes import check_outcomes
from calibrant.solvers import increasing_root

_FORMAT = 1
# A mean of equal numbers may differ from them in its last digits.
_SLACK = 1e-9
#: A window is measured in as many bins, each with a number for every row.
MOST_BINS = 1000
# Less is no probability that anybody means, and is lost when it is shared among groups.
_LEAST_ALPHA = 1e-100
# No single bet risks more than this share of the capital.
_AT_RISK = 0.75


@dataclass(frozen=True)
class ReferenceGroup:
    """Predictions of similar confidence on the reference, and their mean gap: accuracy minus confidence.

    Attributes:
        level: 0 for all confidences, higher for finer groups.
        first: First bin of the group.
        last: Last bin of the group.
        low: Confidences of the group are above this, or equal if the group is the lowest.
        high: Confidences of the group are not above this.
        n: Number of samples of the reference in the group.
        gap: Their mean of ``correct - confidence``; negative is overconfident.
        region: Contains the expected gap, for all groups at once, except with probability ``alpha`` of the
            reference. If samples belong to units, this is the expected mean gap of a unit in the group.
    """

    level: Count
    first: Count
    last: Count
    low: Share
    high: Share
    n: Annotated[int, at_least(1)]
    gap: Annotated[float, between(-1, 1)]
    region: tuple[Annotated[float, between(-1, 1)], Annotated[float, between(-1, 1)]]


@dataclass(frozen=True)
class DriftReference:
    """What "as calibrated as on the reference" means: a region for the mean gap of every group.

    Groups are ranges of confidence: the whole range, its lower and upper half, and ``n_bins`` bins of equal
    mass. Wide groups detect small changes that all samples share; narrow groups detect changes that cancel
    out in wide ones.

    Attributes:
        n: Number of samples of the reference.
        alpha: Probability that any region misses the expected gap of its group.
        tolerance: Change of the gap that does not count as drift.
        edges: Inner edges of the bins; bins are closed on the right.
        groups: All groups, widest first.
        n_units: Number of units of the reference; None if samples have none.

    Example:
        >>> reference = DriftReference.from_outcomes([0.9] * 1000, [True] * 900 + [False] * 100)
        >>> low, high = reference.groups[0].region
        >>> low < 0 < high
        True
    """

    n: Annotated[int, at_least(1)]
    alpha: Share
    tolerance: Share
    edges: tuple[Share, ...]
    groups: tuple[ReferenceGroup, ...]
    n_units: Annotated[int, at_least(2)] | None = None

    @classmethod
    def from_outcomes(
        cls,
        confidence: ArrayLike,
        correct: ArrayLike,
        *,
        units: ArrayLike | None = None,
        n_bins: int = 10,
        alpha: float = 0.025,
        tolerance: float = 0.0,
    ) -> Self:
        """Learn the regions from independent samples, or from independent units of samples.

        Args:
            confidence: Confidences of shape ``(n,)``.
            correct: Whether each prediction was right, shape ``(n,)``.
            units: An integer for each sample, shape ``(n,)``: samples with equal ones depend on each other.
            n_bins: Number of bins of equal mass, at most 1,000; equal confidences share one, so there may be
                fewer.
            alpha: Probability that any region misses, shared evenly among levels, the groups of a level,
                and both ends. It is part of a monitor's probability of a false alarm.
            tolerance: Change of the mean gap that does not count as drift: both ends of every region are
                moved out by it.
        """
        outcomes = check_outcomes(confidence=confidence, correct=correct)
        n_bins = check_count(n_bins, "n_bins", at_most=MOST_BINS)
        _check_levels(alpha, tolerance)
        c = outcomes.confidence.cpu().numpy().astype(np.float64)
        gaps = outcomes.correct.cpu().numpy() - c
        # Ties may leave bins of equal mass empty.
        edges = np.unique(equal_mass_bins(outcomes, n_bins).edges.numpy()[1:])[:-1]
        drawn = Units.of(units, len(c))
        groups = tuple(_groups(c, gaps, edges, alpha, drawn))
        n_units = None if units is None else drawn.n
        return cls(len(c), float(alpha), float(tolerance), tuple(edges.tolist()), groups, n_units)

    @property
    def n_bins(self) -> int:
        """Number of bins."""
        return len(self.edges) + 1

    def as_json(self) -> dict[str, Any]:
        """Return a dictionary of plain values."""
        return {"format": _FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], *, name: str = "reference") -> Self:
        """Return the reference that was written by ``as_json``; ``name`` is what messages call it."""
        if not isinstance(stored, Mapping) or stored.get("format") != _FORMAT:
            got = stored.get("format") if isinstance(stored, Mapping) else type(stored).__name__
            raise InputError(f"{name}: expected that of a drift monitor in format {_FORMAT}, got {got!r}")
        values = {key: value for key, value in stored.items() if key != "format"}
        new = read_dataclass(cls, values, name, error=InputError)
        try:
            _check_levels(new.alpha, new.tolerance)
            _check_groups(new)
        except InputError as error:
            raise InputError(f"{name}.{error}") from None
        return new


def _check_levels(alpha: float, tolerance: float) -> None:
    if not 0 < alpha < 1:
        raise InputError(f"alpha: expected a number between 0 and 1, got {alpha}; 2.5 % is 0.025")
    if alpha < _LEAST_ALPHA:
        raise InputError(f"alpha: expected a probability of at least {_LEAST_ALPHA}, got {alpha}")
    if not 0 <= tolerance < 1:
        raise InputError(f"tolerance: expected a number from 0 to below 1, got {tolerance}")


def _check_groups(reference: DriftReference) -> None:
    """Refuse groups that are not those of the bins, and gaps that no sample of a group can have."""
    bounds = (0.0, *reference.edges, 1.0)
    if any(low >= high for low, high in pairwise(bounds[1:])) or reference.n_bins > MOST_BINS:
        raise InputError(f"edges: expected at most {MOST_BINS - 1:,} numbers below 1 that rise, got others")
    found = [(group.level, group.first, group.last, group.low, group.high) for group in reference.groups]
    ranges = [(level, *bins) for level, some in enumerate(_levels(reference.n_bins)) for bins in some]
    if found != [(*bins, bounds[bins[1]], bounds[bins[2] + 1]) for bins in ranges]:
        raise InputError(f"groups: expected those of {reference.n_bins} bins, got others")
    total = Counter[int]()
    for group in reference.groups:
        total[group.level] += group.n
        low, high = -group.high - _SLACK, 1 - group.low + _SLACK
        if not all(low <= gap <= high for gap in (group.gap, *group.region)):
            raise InputError(f"groups.region: expected gaps of its confidences, got {group}")
    if set(total.values()) != {reference.n}:
        raise InputError(f"groups.n: expected {reference.n} samples in all groups of a level, got others")
    if (reference.n_units or 0) > reference.n:
        raise InputError(f"n_units: expected at most the {reference.n} samples, got {reference.n_units}")


def _groups(c: Floats, gaps: Floats, edges: Floats, alpha: float, units: Units) -> Iterator[ReferenceGroup]:
    n_bins = len(edges) + 1
    bounds = np.concatenate([[0.0], edges, [1.0]])
    bins = np.searchsorted(edges, c, side="left")
    levels = _levels(n_bins)
    for level, ranges in enumerate(levels):
        share = alpha / len(levels) / len(ranges)
        for first, last in ranges:
            low, high = float(bounds[first]), float(bounds[last + 1])
            rows = np.flatnonzero((bins >= first) & (bins <= last))
            inside = rows
            if last < n_bins - 1:
                # Given the sample at the edge, the others below it are independent draws.
                edge = rows[np.argmax(c[rows] == high)]
                inside = rows[units.code[rows] != units.code[edge]]
            means = _unit_means(gaps[inside], units.code[inside])
            region = mean_region(means, low=-high, high=1 - low, alpha=share)
            yield ReferenceGroup(level, first, last, low, high, len(rows), float(gaps[rows].mean()), region)


def _unit_means(gaps: Floats, code: Indices) -> Floats:
    """Return the mean gap of each unit that has samples, in the order of the units."""
    _, place, sizes = np.unique(code, return_inverse=True, return_counts=True)
    return np.asarray(np.bincount(place, weights=gaps) / sizes) if len(gaps) else gaps


def _levels(n_bins: int) -> list[list[tuple[int, int]]]:
    """Return the groups of each level as first and last bins: all, halves, single bins."""
    levels = [[(0, n_bins - 1)]]
    if n_bins >= 4:
        levels.append([(0, n_bins // 2 - 1), (n_bins // 2, n_bins - 1)])
    if n_bins >= 2:
        levels.append([(b, b) for b in range(n_bins)])
    return levels


def lower_bound(values: Floats, *, low: float, high: float, alpha: float) -> float:
    r"""Bound the mean of independent draws from below; valid for every sample size and distribution.

    If the mean is at most ``m``, capital of one unit that each draw multiplies by
    :math:`1 + \lambda_i (x_i - m)` reaches ``1 / alpha`` with probability at most ``alpha``. The bound is the
    highest ``m`` for which it is reached. The bet :math:`\lambda_i` is the best one for normal draws with the
    variance of the draws before, so the bound depends slightly on their order.

    Args:
        values: Draws, in the order in which they came.
        low: No draw can be lower.
        high: No draw can be higher.
        alpha: Probability of a mean below the bound.

    References:
        Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 2024.
    """
    n, span = len(values), high - low
    if n == 0:
        return low
    count = np.arange(1, n + 1)
    mean = ((low + high) / 2 + np.cumsum(values)) / (count + 1)
    spread = np.append(span**2 / 4, np.square(values - mean)[:-1])
    variance = np.cumsum(spread) / count
    bets = np.minimum(np.sqrt(2 * math.log(1 / alpha) / (n * variance)), _AT_RISK / span)

    def missing(claim: float) -> tuple[float, float]:
        """Return how much log-capital is missing to reject a claimed mean, and the slope of that."""
        factors = 1 + bets * (values - claim)
        return -math.log(alpha) - float(np.log(factors).sum()), float((bets / factors).sum())

    if missing(low)[0] >= 0:
        return low
    # The function is convex, so Newton steps from the right stay there, where factors are positive.
    return increasing_root(missing, start=high)


def mean_region(values: Floats, *, low: float, high: float, alpha: float) -> tuple[float, float]:
    """Return an interval that misses the mean of bounded draws with probability at most ``alpha``."""
    return (
        lower_bound(values, low=low, high=high, alpha=alpha / 2),
        -lower_bound(-values, low=-high, high=-low, alpha=alpha / 2),
    )
