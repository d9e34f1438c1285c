"""Boxes as predictions: a score is a confidence, being right is the outcome, and the image is the unit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import numpy as np

from calibrant.boxes.detections import Bools, Detections
from calibrant.boxes.matching import MOST_BOXES, match_boxes
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.inputs import ArrayLike, Floats, Integers, check_choice
from calibrant.results import FrozenDict

#: What boxes can be grouped by.
GroupBy: TypeAlias = Literal["class", "size", "position"]
GROUPS_BY: tuple[GroupBy, ...] = get_args(GroupBy)
#: Areas in pixels at which COCO's sizes begin.
SIZES = {"small": 0.0, "medium": 32.0**2, "large": 96.0**2}
#: What a box says beside its score, as shares of the image.
SIGNALS = ("cx", "cy", "w", "h")

# The least overlap that counts as one.
_ANY = 1e-9
_ACROSS, _DOWN = ("left", "centre", "right"), ("top", "middle", "bottom")
#: The nine parts of an image, row by row.
POSITIONS = tuple(f"{down} {across}" for down in _DOWN for across in _ACROSS)


@dataclass(frozen=True, eq=False)
class BoxPairs:
    """Boxes that are right or wrong, and the objects that were missed.

    Boxes that fall into crowds, and those beyond the most of an image, are left out.

    Attributes:
        detections: All boxes.
        iou: The overlap from which a box is right.
        rows: Number of each box that counts, ascending, shape ``(n,)``.
        predictions: Their scores as confidences with outcomes; the image is the unit.
        overlap: The overlap of each of them with its object, 0 for those that are wrong.
        loose_overlap: The same if any overlap at all were right.
        objects: Number of objects of each class, without crowds, by name.
        missed: Number of those that no box was matched with.
        missed_image: Place of the image of each missed object.
        missed_label: Place of its class.
        thing_image: Place of the image of each object that counts.
        thing_label: Place of its class.
    """

    detections: Detections
    iou: float
    rows: Integers
    predictions: Predictions
    overlap: Floats
    loose_overlap: Floats
    objects: FrozenDict[str, int]
    missed: FrozenDict[str, int]
    missed_image: Integers
    missed_label: Integers
    thing_image: Integers
    thing_label: Integers

    def with_predictions(self, predictions: Predictions) -> "BoxPairs":
        """Return the same boxes with other signals or groups."""
        return replace(self, predictions=predictions)

    def with_scores(self, scores: Floats) -> "BoxPairs":
        """Return the same boxes with other scores of those that count, each as right as it was."""
        every = self.detections.score.copy()
        every[self.rows] = scores
        detections = replace(self.detections, score=every)
        return replace(self, detections=detections, predictions=self.predictions.replaced(confidence=scores))

    @property
    def correct(self) -> Bools:
        """Whether each box that counts is right."""
        assert self.predictions.correct is not None
        return np.asarray(self.predictions.correct.numpy(force=True))

    @property
    def score(self) -> Floats:
        """The score of each box that counts."""
        assert self.predictions.confidence is not None
        return np.asarray(self.predictions.confidence.numpy(force=True).astype(np.float64))


def match_pairs(
    detections: Detections,
    *,
    iou: float = 0.5,
    by: Sequence[GroupBy] = ("class", "size"),
    most: int = MOST_BOXES,
) -> BoxPairs:
    """Match boxes with objects, and return them as predictions with the missed objects counted.

    Args:
        detections: The boxes, and the objects of their images.
        iou: The overlap (intersection over union) from which a box is right.
        by: What makes the groups: ``"class"``, ``"size"`` (COCO's small, medium and large, by the area of the
            box) and ``"position"`` (of the centre, in nine parts of the image).
        most: Boxes of each image and class that count.

    Example:
        >>> from calibrant.boxes import detections_from_dicts
        >>> found = [{"boxes": [[0, 0, 10, 10], [30, 30, 40, 40]], "scores": [0.9, 0.6], "labels": [0, 0]}]
        >>> real = [{"boxes": [[0, 0, 10, 9], [50, 0, 60, 9]], "labels": [0, 0]}]
        >>> boxes = match_pairs(detections_from_dicts(found, real, class_names=["cat"], sizes=(64, 64)))
        >>> boxes.predictions.correct.tolist(), boxes.missed
        ([True, False], {'cat': 1})
    """
    truth = detections.truth
    if detections.n == 0:
        raise InputError("detections: expected at least one box, got none; there is no score to measure")
    matching = match_boxes(detections, iou=[float(iou), _ANY], most=most)
    kept = np.flatnonzero(~matching.ignored[0])
    kept = kept[np.argsort(matching.rows[kept])]
    rows = matching.rows[kept]
    found = np.zeros(truth.n, dtype=bool)
    found[matching.matched[0][matching.matched[0] >= 0]] = True
    missed = matching.counted & ~found
    n_classes = len(truth.class_names)

    def counted(which: Bools) -> FrozenDict[str, int]:
        number = np.bincount(truth.label[which], minlength=n_classes)
        return FrozenDict(zip(truth.class_names, number.tolist(), strict=True))

    if not len(rows):
        raise InputError("detections: expected a box that counts, got only boxes inside crowds")
    return BoxPairs(
        detections,
        float(iou),
        rows,
        box_predictions(detections, rows=rows, by=by).replaced(correct=matching.correct[0][kept]),
        matching.overlap[0][kept],
        matching.overlap[1][kept],
        counted(matching.counted),
        counted(missed),
        truth.image[missed],
        truth.label[missed],
        truth.image[matching.counted],
        truth.label[matching.counted],
    )


def box_predictions(
    detections: Detections, *, rows: Integers | None = None, by: Sequence[GroupBy] = ("class", "size")
) -> Predictions:
    """Return boxes as confidences without outcomes, with groups, signals, and the image as the unit.

    Args:
        detections: The boxes; of their ground truth only images and classes are read.
        rows: Numbers of some boxes; by default all.
        by: What makes the groups.
    """
    rows = np.arange(detections.n) if rows is None else rows
    groups: dict[str, ArrayLike] = {name: np.asarray(_group(detections, name))[rows] for name in by}
    shares = shares_of_image(detections)[rows]
    return Predictions(
        confidence=detections.score[rows],
        signals={
            "score": detections.score[rows],
            **{name: shares[:, column] for column, name in enumerate(SIGNALS)},
        },
        groups=groups or None,
        units=detections.image[rows],
    )


def _group(detections: Detections, by: str) -> list[str]:
    check_choice(by, "by", GROUPS_BY)
    if by == "class":
        return detections.classes
    if by == "size":
        if detections.truth.sizes.max(initial=0) <= 1:
            raise InputError(
                "by: expected the sizes of the images for groups by size, got boxes as shares of images; "
                "give the folder of the pictures, or leave out size"
            )
        edges = list(SIZES.values())[1:]
        return [list(SIZES)[place] for place in np.searchsorted(edges, detections.area, side="right")]
    third = np.clip(shares_of_image(detections)[:, :2] * 3, 0, 2).astype(int)
    return [POSITIONS[3 * down + across] for across, down in third]


def shares_of_image(detections: Detections) -> Floats:
    """Return the centre, the width and the height of each box as shares of its image."""
    sizes = detections.truth.sizes[detections.image]
    if np.isnan(sizes).any():
        row = int(np.isnan(sizes).any(axis=1).argmax())
        raise InputError(
            f"images: expected a width and a height, got none for image "
            f"{detections.truth.images[detections.image[row]]!r}; add them to the ground truth"
        )
    left, top, wide, high = detections.boxes.T
    columns = [(left + wide / 2) / sizes[:, 0], (top + high / 2) / sizes[:, 1]]
    return np.stack([*columns, wide / sizes[:, 0], high / sizes[:, 1]], axis=1)
