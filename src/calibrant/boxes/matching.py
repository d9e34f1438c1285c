"""Which boxes are right: matching detections with objects by the rule of COCO."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from calibrant.boxes.detections import Bools, Detections
from calibrant.errors import InputError
from calibrant.inputs import Floats, Integers, check_count

#: Boxes of an image that count, those of the highest scores of each class.
MOST_BOXES = 100
#: The thresholds of COCO's main measure.
COCO_IOU = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))


@dataclass(frozen=True, eq=False)
class Matching:
    """Which object each box was matched with, for each threshold of the overlap.

    Attributes:
        detections: The boxes.
        iou: The thresholds, shape ``(t,)``.
        rows: Numbers of the boxes that count, sorted by image, class and falling score, shape ``(r,)``.
        matched: Number of the object that each of these was matched with, -1 for none, shape ``(t, r)``.
        overlap: The overlap of each of these with its object, 0 without one, shape ``(t, r)``.
        ignored: Whether each of these is neither right nor wrong, shape ``(t, r)``.
        counted: Whether each object counts, shape ``(m,)``; crowds do not.
    """

    detections: Detections
    iou: Floats
    rows: Integers
    matched: Integers
    overlap: Floats
    ignored: Bools
    counted: Bools

    @property
    def correct(self) -> Bools:
        """Whether each box that counts is right, shape ``(t, r)``; meaningless where ignored."""
        return np.asarray((self.matched >= 0) & ~self.ignored)


class _Pairs(NamedTuple):
    """Pairs of a box and an object of the same image and class that overlap, box by box.

    Attributes:
        row: Place of the box among the rows.
        thing: Number of the object.
        iou: Their overlap; with a crowd, the share of the box inside it.
    """

    row: Integers
    thing: Integers
    iou: Floats

    def take(self, some: "Integers | slice") -> "_Pairs":
        """Return some of the pairs."""
        return _Pairs(self.row[some], self.thing[some], self.iou[some])


def match_boxes(
    detections: Detections,
    *,
    iou: float | Sequence[float] = 0.5,
    most: int = MOST_BOXES,
    area: tuple[float, float] | None = None,
) -> Matching:
    """Match boxes with objects of the same image and class, as COCO does.

    The box with the highest score comes first and takes the object with which it overlaps most, if the
    overlap (intersection over union) reaches the threshold and no other box has taken the object. A box that
    finds none may fall into a crowd, with which several can be matched; it is then ignored.

    Args:
        detections: The boxes, and the objects of their images.
        iou: The threshold of the overlap, or several.
        most: Boxes of each image and class that count.
        area: The smallest and the largest area of an object that counts; others are ignored, and so are boxes
            of other areas that are matched with none.
    """
    thresholds = _check_iou(iou)
    truth = detections.truth
    ignored = truth.crowd.copy()
    if area is not None:
        ignored |= (truth.area < area[0]) | (truth.area > area[1])
    rows, rank = _ranked(detections, check_count(most, "most", at_least=1))
    pairs = _pairs(detections, rows)
    matched = np.full((len(thresholds), len(rows)), -1, dtype=np.int64)
    taken = np.zeros((len(thresholds), truth.n), dtype=bool)
    order = np.argsort(rank[pairs.row], kind="stable")
    pairs = pairs.take(order)
    starts = np.searchsorted(rank[pairs.row], np.arange(rank.max(initial=-1) + 2))
    for start, stop in pairwise(starts):
        _match_rank(pairs.take(slice(start, stop)), thresholds, truth.crowd, ignored, taken, matched)
    t, row = np.nonzero(matched >= 0)
    overlap = np.zeros(matched.shape)
    overlap[t, row] = overlaps(detections.boxes[rows[row]], truth.boxes[matched[t, row]])
    passed = (matched >= 0) & ignored[matched] if truth.n else np.zeros(matched.shape, dtype=bool)
    if area is not None:
        own = detections.area[rows]
        passed |= (matched < 0) & ((own < area[0]) | (own > area[1]))
    return Matching(detections, thresholds, rows, matched, overlap, passed, ~ignored)


def _check_iou(iou: float | Sequence[float]) -> Floats:
    thresholds = np.atleast_1d(np.asarray(iou, dtype=np.float64))
    bad = thresholds[~((thresholds > 0) & (thresholds <= 1))]
    if thresholds.ndim != 1 or not len(thresholds) or len(bad):
        got = f"{bad[0]:g}" if len(bad) else f"shape {thresholds.shape}"
        raise InputError(f"iou: expected overlaps above 0 and at most 1, got {got}")
    return thresholds


def _ranked(detections: Detections, most: int) -> tuple[Integers, Integers]:
    """Return the boxes that count, by image, class and falling score, and the rank of each in its cell."""
    cell = detections.image * len(detections.truth.class_names) + detections.label
    rows = np.lexsort((np.arange(detections.n), -detections.score, cell))
    ordered = cell[rows]
    first = np.searchsorted(ordered, ordered)
    rank = np.arange(len(rows)) - first
    return rows[rank < most], rank[rank < most]


def _pairs(detections: Detections, rows: Integers) -> _Pairs:
    """Return all pairs that overlap; objects of a box are in the order of the file."""
    truth, k = detections.truth, len(detections.truth.class_names)
    of_thing = truth.image * k + truth.label
    things = np.argsort(of_thing, kind="stable")
    of_row = (detections.image * k + detections.label)[rows]
    low, high = (np.searchsorted(of_thing[things], of_row, side=side) for side in ("left", "right"))
    count = high - low
    row = np.repeat(np.arange(len(rows)), count)
    inside = np.arange(len(row)) - np.repeat(count.cumsum() - count, count)
    thing = things[np.repeat(low, count) + inside]
    iou = overlaps(detections.boxes[rows[row]], truth.boxes[thing], truth.crowd[thing])
    kept = iou > 0
    return _Pairs(row[kept], thing[kept], iou[kept])


def overlaps(boxes: Floats, things: Floats, crowd: Bools | None = None) -> Floats:
    """Return the intersection over union of each box with the object beside it.

    Args:
        boxes: Left, top, width and height, shape ``(n, 4)``.
        things: Likewise.
        crowd: Where the object is a crowd the intersection is divided by the area of the box alone.
    """
    span = [
        np.minimum(boxes[:, axis] + boxes[:, axis + 2], things[:, axis] + things[:, axis + 2])
        - np.maximum(boxes[:, axis], things[:, axis])
        for axis in (0, 1)
    ]
    inter = np.where((span[0] > 0) & (span[1] > 0), span[0] * span[1], 0.0)
    own, other = boxes[:, 2] * boxes[:, 3], things[:, 2] * things[:, 3]
    union = own + other - inter
    if crowd is not None:
        union = np.where(crowd, own, union)
    return np.divide(inter, union, out=np.zeros_like(inter), where=inter > 0)


def _match_rank(
    pairs: _Pairs, thresholds: Floats, crowd: Bools, ignored: Bools, taken: Bools, matched: Integers
) -> None:
    """Match the boxes of one rank, one of each image and class, which compete for no object."""
    if not len(pairs.row):
        return
    rows, first = np.unique(pairs.row, return_index=True)  # pairs of a box follow each other
    # What is taken is no choice, but a crowd is never full.
    free = ~taken[:, pairs.thing] | crowd[pairs.thing]
    free &= pairs.iou >= np.minimum(thresholds, 1 - 1e-10)[:, None]
    passed = ignored[pairs.thing]
    for which in (free & ~passed, free & passed):
        best = np.where(which, pairs.iou, -1.0)
        top = np.maximum.reduceat(best, first, axis=1)
        # Of equal overlaps COCO takes the last.
        sizes = np.diff(np.append(first, len(pairs.row)))
        is_top = which & (best == np.repeat(top, sizes, axis=1))
        last = np.maximum.reduceat(np.where(is_top, np.arange(len(pairs.row)), -1), first, axis=1)
        t, place = np.nonzero((last >= 0) & (matched[:, rows] < 0))
        thing = pairs.thing[last[t, place]]
        matched[t, rows[place]] = thing
        taken[t, thing] = True
