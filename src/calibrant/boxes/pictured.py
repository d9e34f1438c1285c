"""What pictures of a detector show: the gap in each part of the image, and what thresholds keep."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from calibrant.boxes.measures import precision
from calibrant.boxes.pairs import BoxPairs, shares_of_image
from calibrant.inputs import Floats


@dataclass(frozen=True, eq=False)
class GapsByPlace:
    """Mean score minus precision of the boxes whose centre is in each cell of the image.

    Attributes:
        n: Number of boxes in each cell, shape ``(cells, cells)``, from the top left.
        gap: Mean score minus precision, of the same shape; NaN where there is no box.
    """

    n: npt.NDArray[np.intp]
    gap: Floats


def gaps_by_place(pairs: BoxPairs, *, cells: int = 6) -> GapsByPlace:
    """Return the gap in each of ``cells`` times ``cells`` parts of the image."""
    shares = shares_of_image(pairs.detections)[pairs.rows, :2]
    across, down = np.clip(shares * cells, 0, cells - 1).astype(int).T
    code = down * cells + across
    n = np.bincount(code, minlength=cells**2)
    sums = np.bincount(code, weights=pairs.score - pairs.correct, minlength=cells**2)
    gap = np.divide(sums, n, out=np.full(cells**2, np.nan), where=n > 0)
    return GapsByPlace(n.reshape(cells, cells), gap.reshape(cells, cells))


@dataclass(frozen=True, eq=False)
class ByThreshold:
    """The boxes from a score on.

    Attributes:
        threshold: Scores, ascending, from each of which on there is a box.
        precision: The share of these boxes that are right.
        found: The share of all objects that they find.
        low: Lower ends of the 95 % intervals of the precision by image, if requested.
        high: Upper ends.
    """

    threshold: Floats
    precision: Floats
    found: Floats
    low: Floats | None = None
    high: Floats | None = None


def by_threshold(pairs: BoxPairs, *, steps: int = 50, intervals: bool = False) -> ByThreshold:
    """Return precision and the share of objects found at even thresholds from 0.

    Args:
        pairs: The boxes.
        steps: Number of thresholds.
        intervals: Whether to draw images again for intervals of the precision.
    """
    thresholds = np.arange(steps) / steps
    kept = pairs.score >= thresholds[:, None]
    boxes, right = kept.sum(axis=1), (kept & pairs.correct).sum(axis=1)
    some = boxes > 0
    n_objects = max(sum(pairs.objects.values()), 1)
    ends = [precision(pairs, each).interval() for each in kept[some]] if intervals else []
    low, high = (np.array([getattr(each, end) for each in ends]) if ends else None for end in ("low", "high"))
    return ByThreshold(thresholds[some], right[some] / boxes[some], right[some] / n_objects, low, high)
