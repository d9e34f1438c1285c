"""How the boxes of a detector are read, instead of the columns of a table."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from calibrant.boxes.detections import Detections
from calibrant.boxes.pairs import GROUPS_BY, BoxPairs, GroupBy, match_pairs
from calibrant.boxes.reading import read_detections, read_ground_truth
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
    """

    ground_truth: Path
    iou: float = 0.5
    class_names: tuple[str, ...] | None = None
    pictures: Path | None = None

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
    ) -> Self:
        """Return how boxes are read; refuse what only tables have.

        Args:
            columns: What was said about columns.
            by: What makes groups if nothing was said.
            ground_truth: The file or folder with the objects.
            iou: The overlap from which a box is right.
            classes: Names of the classes with commas, or their file.
            pictures: The folder of the pictures.
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
    return read_detections(path, truth)


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
