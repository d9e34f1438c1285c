"""How the boxes of a detector are read, instead of the columns of a table."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from calibrant.boxes.detections import Detections
from calibrant.boxes.pairs import GROUPS_BY, BoxPairs, GroupBy, match_pairs
from calibrant.boxes.reading import read_detections, read_ground_truth, read_images
from calibrant.data.columns import Columns, read_classes
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.inputs import check_choice

# What the options of columns say about boxes too.
_SHARED = ("groups", "confidence")


@dataclass(frozen=True, kw_only=True)
class BoxColumns(Columns):
    """How the boxes of a detector are read: groups are class, size and position, signals those of boxes.

    Args:
        ground_truth: The file or folder with the objects of the images.
        iou: The overlap from which a box is right.
        class_names: The names of the classes, if the files do not have them.
        pictures: The folder of the pictures.
        only: A file that lists the images that count; by default all of the ground truth do.
        elsewhere: Images that count in another file of detections.
    """

    ground_truth: Path
    iou: float = 0.5
    class_names: tuple[str, ...] | None = None
    pictures: Path | None = None
    only: Path | None = None
    elsewhere: frozenset[Any] = frozenset()

    @classmethod
    def of(
        cls,
        columns: Columns,
        *,
        by: Sequence[str],
        ground_truth: Path,
        iou: float = 0.5,
        classes: str | None = None,
        pictures: Path | None = None,
        only: Path | None = None,
    ) -> Self:
        """Return how boxes are read; refuse what only tables have.

        Args:
            columns: What was said about columns.
            by: What makes groups if nothing was said.
            ground_truth: The file or folder with the objects.
            iou: The overlap from which a box is right.
            classes: Names of the classes with commas, or their file.
            pictures: The folder of the pictures.
            only: A file that lists the images that count.
        """
        for field in fields(Columns):
            if field.name not in _SHARED and getattr(columns, field.name) != getattr(Columns(), field.name):
                raise InputError(
                    f"ground_truth: expected boxes, which have no columns, got {field.name} of a table; "
                    "leave out one of the two"
                )
        return cls(
            groups=(tuple(by) or None) if columns.groups is None else columns.groups,
            confidence=columns.confidence,
            ground_truth=ground_truth,
            iou=iou,
            class_names=None if classes is None else tuple(read_classes(classes)),
            pictures=pictures,
            only=only,
        )

    @property
    def of_boxes(self) -> bool:
        """Whether rows are the boxes of a detector: yes."""
        return True

    @property
    def needs_whole_files(self) -> bool:
        """Whether files cannot be read as a stream: yes."""
        return True


def read_boxes(path: str | Path, columns: Columns) -> Detections:
    """Read the boxes of a detector with the ground truth of their images."""
    assert isinstance(columns, BoxColumns)
    truth = read_ground_truth(
        columns.ground_truth, class_names=columns.class_names, pictures=columns.pictures
    )
    boxes = read_detections(path, truth)
    if columns.only is not None:
        boxes = boxes.only(read_images(columns.only, truth))
    return boxes.only(set(boxes.truth.images) - columns.elsewhere) if columns.elsewhere else boxes


def columns_of_parts(columns: Columns, first: Path, second: Path) -> tuple[Columns, Columns]:
    """Return how two files with boxes in parts of the images of one ground truth are read.

    An image counts where it has boxes: one with boxes in the other file alone is left out. An image without
    any box counts in both files, where its objects are missed.
    """
    assert isinstance(columns, BoxColumns)
    boxes = [read_boxes(path, columns) for path in (first, second)]
    a, b = ({each.truth.images[place] for place in np.unique(each.image)} for each in boxes)
    return replace(columns, elsewhere=frozenset(b - a)), replace(columns, elsewhere=frozenset(a - b))


def read_box_pairs(path: str | Path, columns: Columns) -> BoxPairs:
    """Read boxes and match them with the objects of their images."""
    assert isinstance(columns, BoxColumns)
    pairs = match_pairs(read_boxes(path, columns), iou=columns.iou, by=_groups(columns))
    return pairs.with_predictions(_with_signals(pairs.predictions, columns))


def _with_signals(predictions: Predictions, columns: BoxColumns) -> Predictions:
    """Return boxes with the signals that ``--confidence`` names; by default with all."""
    if not columns.confidence:
        return predictions
    named = [check_choice(each, "confidence", tuple(predictions.signals)) for each in columns.confidence]
    if named[0] != "score":
        raise InputError(f"confidence: expected score first for boxes, got {named[0]}; others follow it")
    signals = {name: predictions.signals[name] for name in named} if len(named) > 1 else {}
    return predictions.replaced(signals=signals)


def _groups(columns: BoxColumns) -> tuple[GroupBy, ...]:
    return tuple(check_choice(each, "by", GROUPS_BY) for each in columns.group_columns)
