"""Reference of a drift monitor: how confidence and truth differed when all was well, and how surely."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from calibrant.bins import equal_mass_bins
from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, check_count
from calibrant.monitoring.betting import mean_region
from calibrant.outcomes import Outcomes, check_outcomes

_FORMAT = 1


@dataclass(frozen=True)
class ReferenceGroup:
    """Predictions of similar confidence on the reference: their mean gap, accuracy minus confidence.

    Attributes:
        level: 0 for all confidences, higher for finer groups.
        first: First bin of the group.
        last: Last bin of the group.
        low: Confidences of the group are above this, or equal if the group is the lowest.
        high: And not above this.
        n: Number of samples of the reference in the group.
        gap: Their mean of ``correct - confidence``; negative is overconfident.
        region: Where the expected gap lies, for all groups at once, but for the reference's ``alpha``.
    """

    level: int
    first: int
    last: int
    low: float
    high: float
    n: int
    gap: float
    region: tuple[float, float]


@dataclass(frozen=True)
class DriftReference:
    """What "as calibrated as on the reference" means: a region for the mean gap of every group.

    Groups are ranges of confidence: all of it, its lower and upper half, and ``n_bins`` bins of equal mass.
    Wide groups see small changes that all samples share, narrow ones see changes that cancel out elsewhere.

    Attributes:
        n: Number of samples of the reference.
        alpha: Chance that any region misses the expected gap of its group.
        tolerance: Change of the gap that is still no drift.
        edges: Inner edges of the bins; bins are closed on the right.
        groups: All groups, widest first.

    Example:
        >>> reference = DriftReference.from_outcomes([0.9] * 1000, [True] * 900 + [False] * 100)
        >>> low, high = reference.groups[0].region
        >>> low < 0 < high
        True
    """

    n: int
    alpha: float
    tolerance: float
    edges: tuple[float, ...]
    groups: tuple[ReferenceGroup, ...]

    @classmethod
    def from_outcomes(
        cls,
        confidence: ArrayLike,
        correct: ArrayLike,
        *,
        n_bins: int = 10,
        alpha: float = 0.025,
        tolerance: float = 0.0,
    ) -> Self:
        """Learn the regions from independent samples of the time when all was well.

        Args:
            confidence: Confidences of shape ``(n,)``.
            correct: Whether each prediction was right, shape ``(n,)``.
            n_bins: Number of bins of equal mass; equal confidences share one, so there may be fewer.
            alpha: Chance of a region that misses, shared out evenly among levels, the groups of a level,
                and both ends. It is part of the false alarms that a monitor allows.
            tolerance: Change of the mean gap that shall not count as drift: both ends of every region move
                out by as much.
        """
        outcomes = check_outcomes(confidence=confidence, correct=correct)
        n_bins = check_count(n_bins, "n_bins")
        if not 0 < alpha < 1:
            raise InputError(f"alpha: expected a number between 0 and 1, got {alpha}; 2.5 % is 0.025")
        if not 0 <= tolerance < 1:
            raise InputError(f"tolerance: expected a number from 0 to below 1, got {tolerance}")
        c = outcomes.confidence.cpu().numpy().astype(np.float64)
        gaps = outcomes.correct.cpu().numpy() - c
        edges = _inner_edges(outcomes, n_bins)
        groups = tuple(_groups(c, gaps, edges, alpha))
        return cls(len(c), float(alpha), float(tolerance), tuple(edges.tolist()), groups)

    @property
    def n_bins(self) -> int:
        """Number of bins."""
        return len(self.edges) + 1

    def as_json(self) -> dict[str, Any]:
        """Return a dictionary of plain values."""
        return {"format": _FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Return the reference whose ``as_json`` this was."""
        if not isinstance(stored, Mapping) or stored.get("format") != _FORMAT:
            got = stored.get("format") if isinstance(stored, Mapping) else type(stored).__name__
            raise InputError(f"reference: expected that of a drift monitor in format {_FORMAT}, got {got!r}")
        try:
            groups = tuple(
                ReferenceGroup(**{**group, "region": tuple(group["region"])}) for group in stored["groups"]
            )
            return cls(stored["n"], stored["alpha"], stored["tolerance"], tuple(stored["edges"]), groups)
        except (KeyError, TypeError) as error:
            raise InputError(f"reference: expected that of a drift monitor, got a fault at {error}") from None


def _inner_edges(outcomes: Outcomes, n_bins: int) -> npt.NDArray[np.float64]:
    """Return where bins of equal mass meet; without bins that ties leave empty."""
    return np.unique(equal_mass_bins(outcomes, n_bins).edges.numpy()[1:])[:-1]


def _groups(
    c: npt.NDArray[np.float64], gaps: npt.NDArray[np.float64], edges: npt.NDArray[np.float64], alpha: float
) -> Iterator[ReferenceGroup]:
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
                # Given the sample that is the edge, the others below it are independent draws.
                inside = np.delete(rows, np.argmax(c[rows] == high))
            region = mean_region(gaps[inside], low=-high, high=1 - low, alpha=share)
            yield ReferenceGroup(level, first, last, low, high, len(rows), float(gaps[rows].mean()), region)


def _levels(n_bins: int) -> list[list[tuple[int, int]]]:
    """Return the groups of each level as first and last bins: all, halves, single bins."""
    levels = [[(0, n_bins - 1)]]
    if n_bins >= 4:
        levels.append([(0, n_bins // 2 - 1), (n_bins // 2, n_bins - 1)])
    if n_bins >= 2:
        levels.append([(b, b) for b in range(n_bins)])
    return levels
