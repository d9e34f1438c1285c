"""An evaluation of a detector: what pairs have, what only boxes have, and each class with its misses."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from calibrant.boxes.matching import COCO_IOU
from calibrant.boxes.measures import (
    ImageMeasure,
    average_precision,
    detection_ece,
    localisation_ace,
    localisation_ece,
    precision,
    with_misses,
)
from calibrant.boxes.pairs import SIZES, BoxPairs
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.full import FullEvaluation, evaluate_fully
from calibrant.files import without_nan
from calibrant.inference.intervals import Interval
from calibrant.inputs import Progress
from calibrant.results import FrozenDict, Result
from calibrant.show.numbers import NOTHING, Cell, count, pair, percent, points, span
from calibrant.show.table import Column, Table

_ARROWS = {"lower": "↓", "higher": "↑"}
# Classes with intervals of their own.
_MOST_CLASSES = 20


@dataclass(frozen=True)
class BoxMeasure:
    """A measure of a detector.

    Attributes:
        title: What it measures.
        better: Which direction is better.
        value: The measure; NaN if it is undefined.
        interval: Its interval by image, if requested and defined.
    """

    title: str
    better: str
    value: float
    interval: Interval | None


@dataclass(frozen=True)
class BoxClass:
    """A class of a detector.

    Attributes:
        name: Its name.
        objects: Number of objects.
        missed: Number of those that no box has found.
        boxes: Number of boxes.
        precision: Share of boxes that are right.
        mean_score: Mean score of the boxes.
        ap: Average precision at the overlap of the evaluation, with its interval if requested.
        precision_interval: The interval of the precision by image, if requested and defined.
    """

    name: str
    objects: int
    missed: int
    boxes: int
    precision: float
    mean_score: float
    ap: BoxMeasure
    precision_interval: Interval | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        interval = self.precision_interval
        ends = {} if interval is None else {"precision_interval": [interval.low, interval.high]}
        own = {name: value for name, value in vars(self).items() if name != "precision_interval"}
        return own | ends | {"ap": _measure_to_dict(self.ap)}


@dataclass(frozen=True, eq=False)
class BoxEvaluation(Result):
    """The measures of a detector.

    Attributes:
        full: What pairs of score and outcome have, and the groups.
        measures: What only detectors have, by name.
        classes: The classes, those with most objects first.
        iou: The overlap from which a box is right.
        n_images: Number of images.
    """

    full: FullEvaluation
    measures: Mapping[str, BoxMeasure]
    classes: tuple[BoxClass, ...]
    iou: float
    n_images: int
    not_in_json: ClassVar[tuple[str, ...]] = ("full",)

    @property
    def heading(self) -> str:
        """The number of boxes, images, objects and misses."""
        objects, missed = (sum(getattr(row, name) for row in self.classes) for name in ("objects", "missed"))
        return (
            f"{self.full.evaluation.n:,} boxes in {self.n_images:,} images, right from an overlap of "
            f"{self.iou:g}; {missed:,} of {objects:,} objects missed"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: those of the pairs, and under ``detector`` those of boxes."""
        own: dict[str, Any] = without_nan(
            {
                "iou": self.iou,
                "images": self.n_images,
                "measures": {name: _measure_to_dict(each) for name, each in self.measures.items()},
                "classes": {row.name: row.to_dict() for row in self.classes},
            }
        )
        return self.full.to_dict() | {"detector": own}

    def to_table(self) -> Table:
        """Return the measures that only detectors have."""
        has_intervals = any(each.interval is not None for each in self.measures.values())
        rows = []
        for name, each in self.measures.items():
            row = [Cell(name, f"{_ARROWS[each.better]} {each.title}"), percent(each.value)]
            if has_intervals:
                known = each.interval
                row.append(NOTHING if known is None else pair(known.low, known.high, " to ", in_percent=True))
            rows.append(row)
        columns: list[str | Column] = ["measure of boxes", "value"]
        columns += ["95 % interval"] if has_intervals else []
        return Table.of(columns, rows, title=self.heading)

    @property
    def tables(self) -> tuple[Table, ...]:
        """The table of the classes."""
        rows = []
        has_intervals = any(row.precision_interval is not None for row in self.classes)
        for row in self.classes:
            known, cells = row.precision_interval, [row.name, row.objects, count(row.missed), row.boxes]
            cells.append(points(row.precision))
            if has_intervals:
                cells.append(NOTHING if known is None else span(known.low, known.high, points))
            rows.append([*cells, points(row.mean_score), points(row.ap.value)])
        columns: list[str | Column] = [
            *("class", "objects", "missed", "boxes", Column("precision", "%")),
            *([Column("95 %\ninterval")] if has_intervals else []),
            *(Column("score", "%"), Column("AP", "%")),
        ]
        return (Table.of(columns, rows, title=f"classes, AP from an overlap of {self.iou:g}", most=50),)


def evaluate_boxes(
    pairs: BoxPairs,
    *,
    measures: str | list[str] = "core",
    n_bins: int = 15,
    intervals: bool = False,
    by: str = "class,size",
    progress: Progress | None = None,
) -> BoxEvaluation:
    """Measure a detector: its scores as confidences, D-ECE, LaECE, LaACE, AURC with misses, and AP.

    Groups are tested with a correction for their number. Intervals and tests draw images.

    Args:
        pairs: The boxes with their outcomes.
        measures: Measures of pairs: ``"core"``, ``"all"``, or names.
        n_bins: Number of bins of the binned measures of pairs.
        intervals: Whether to bootstrap an interval of each measure.
        by: What made the groups, for the heading of their table.
        progress: Called with the current step, the number of steps done, and their total.
    """
    full = evaluate_fully(
        pairs.predictions,
        measures=measures,
        n_bins=n_bins,
        intervals=intervals,
        by=by if pairs.predictions.groups is not None else None,
        progress=progress,
    )
    found: dict[str, BoxMeasure] = {}
    wanted = _image_measures(pairs)
    for done, (name, each) in enumerate(wanted.items()):
        if progress is not None:
            progress(each.title, done, len(wanted))
        found[name] = _measured(each, intervals=intervals)
    found["detection_aurc"] = _aurc(pairs, intervals=intervals)
    return BoxEvaluation(
        full,
        FrozenDict(found),
        _classes(pairs, intervals=intervals),
        pairs.iou,
        len(pairs.detections.truth.images),
    )


def _image_measures(pairs: BoxPairs) -> dict[str, ImageMeasure]:
    detections, edges = pairs.detections, [*list(SIZES.values()), 1e10]
    areas = dict(zip(SIZES, pairwise(edges), strict=True))
    return {
        "d_ece": detection_ece(pairs),
        "laece": localisation_ece(pairs),
        "laece_0": localisation_ece(pairs, loose=True),
        "laace_0": localisation_ace(pairs),
        "ap": average_precision(detections, iou=COCO_IOU),
        f"ap_{100 * pairs.iou:g}": average_precision(detections, iou=pairs.iou),
    } | {
        f"ap_{size}": replace(
            average_precision(detections, iou=COCO_IOU, area=area), title=f"AP of {size} objects"
        )
        for size, area in areas.items()
        if detections.truth.sizes.max(initial=0) > 1
    }


def _measured(measure: ImageMeasure, *, intervals: bool) -> BoxMeasure:
    value = measure.value
    known = measure.interval() if intervals and np.isfinite(value) else None
    return BoxMeasure(measure.title, measure.better, value, known)


def _aurc(pairs: BoxPairs, *, intervals: bool) -> BoxMeasure:
    found = evaluate(with_misses(pairs), measures=["aurc"], intervals=intervals)
    return BoxMeasure("AURC with misses", "lower", found.metrics["aurc"], found.intervals.get("aurc"))


def _classes(pairs: BoxPairs, *, intervals: bool) -> tuple[BoxClass, ...]:
    label, correct, score = pairs.detections.label[pairs.rows], pairs.correct, pairs.score
    rows = []
    for place, name in enumerate(pairs.detections.truth.class_names):
        inside = label == place
        objects = pairs.objects[name]
        if not (objects or inside.any()):
            continue
        each = average_precision(pairs.detections, iou=pairs.iou, only=place)
        wanted = intervals and objects > 0 and len(pairs.objects) <= _MOST_CLASSES
        rows.append(
            BoxClass(
                name,
                objects,
                pairs.missed[name],
                int(inside.sum()),
                float(correct[inside].mean()) if inside.any() else float("nan"),
                float(score[inside].mean()) if inside.any() else float("nan"),
                _measured(each, intervals=wanted),
                _measured(precision(pairs, inside), intervals=wanted).interval,
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.objects))


def _measure_to_dict(measure: BoxMeasure) -> dict[str, Any]:
    interval = measure.interval
    return {"value": measure.value} | (
        {} if interval is None else {"interval": [interval.low, interval.high]}
    )
