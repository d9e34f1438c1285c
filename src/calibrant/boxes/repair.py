"""Repair of a detector: scores of all boxes by a calibrator, and files of COCO with them."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from calibrant.boxes.coco import as_coco_results, read_coco_results
from calibrant.boxes.detections import Bools, Detections
from calibrant.boxes.pairs import GROUPS_BY, POSITIONS, SIZES, GroupBy, box_predictions
from calibrant.data.columns import Columns
from calibrant.data.predictions import Predictions
from calibrant.decisions.rule import Rule
from calibrant.errors import InputError
from calibrant.evaluation.calibrated import calibrated
from calibrant.files import write_file
from calibrant.inputs import Floats
from calibrant.posthoc.calibrator import Calibrator

#: Methods whose maps rise with the score, so that the order of the boxes of a class and its AP stay.
MONOTONE_METHODS = ("uncalibrated", "temperature", "platt", "beta", "isotonic_centred", "pool")
# The part of a repaired score that is the rank of the score, so that different scores stay different.
_OF_RANK, _ROUNDING = 1e-9, 1e-12


def repaired_scores(calibrator: Calibrator, detections: Detections) -> Floats:
    """Return the repaired score of each box, shape ``(n,)``.

    Boxes of a class that get equal scores, for example beyond the scores of the fitting set, stay in the
    order of their own scores: a billionth of the repaired score is the rank of the score in its class. So a
    calibrator that rises with the score of each class leaves AP as it was.

    Args:
        calibrator: A calibrator that was fitted on boxes.
        detections: The boxes; of their ground truth only images and classes are read.
    """
    found = calibrated(calibrator, _readable(detections, calibrator.group_names, calibrator.group_columns))
    assert found.confidence is not None
    repaired = found.confidence.numpy(force=True).astype(np.float64)
    return in_order_of(repaired, detections)


def in_order_of(repaired: Floats, detections: Detections) -> Floats:
    """Return repaired scores that are in the order of the own scores of a class wherever they are equal.

    Where own scores are equal, repaired ones that differ by rounding alone become equal.
    """
    found = repaired.copy()
    for label in np.unique(detections.label):
        inside = np.flatnonzero(detections.label == label)
        values, place = np.unique(detections.score[inside], return_inverse=True)
        high, low = np.zeros(len(values)), np.ones(len(values))
        np.maximum.at(high, place, repaired[inside])
        np.minimum.at(low, place, repaired[inside])
        one = np.where((high - low < _ROUNDING)[place], high[place], repaired[inside])
        found[inside] = (1 - _OF_RANK) * one + _OF_RANK * (place + 1) / len(values)
    return found


def kept_boxes(rule: Rule, detections: Detections) -> Bools:
    """Return whether a rule that was found on boxes answers each box, shape ``(n,)``."""
    names, columns = getattr(rule, "group_names", None), getattr(rule, "group_columns", ())
    decided = rule.decide(_readable(detections, names, columns))
    if "answer" not in decided.columns:
        raise InputError(f"rule: expected a threshold, got {type(rule).__name__}; boxes are kept or dropped")
    return np.asarray(decided.columns["answer"], dtype=bool)


def write_repaired(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    detections: Detections,
    scores: Floats,
    *,
    kept: Bools | None = None,
) -> int:
    """Write results of COCO with other scores, whole or not at all; return the number of boxes.

    Boxes stay in their order with all their other fields. Detections of folders are written as results of
    COCO, too.

    Args:
        source: The file or folder that the detections come from.
        target: The file to write, a ``.json``.
        detections: The boxes.
        scores: The score of each of them.
        kept: Which of them are written; by default all.
    """
    source = Path(source)
    rows = read_coco_results(source) if source.is_file() else as_coco_results(detections)
    if len(rows) > detections.n:
        images = set(detections.truth.images)
        rows = [row for row in rows if row["image_id"] in images]
    kept = np.ones(len(rows), dtype=bool) if kept is None else kept
    pairs = zip(rows, scores.tolist(), kept.tolist(), strict=True)
    written = [{**row, "score": score} for row, score, wanted in pairs if wanted]
    write_file(target, json.dumps(written, allow_nan=False) + "\n")
    return len(written)


def keeping_order(columns: Columns) -> Columns:
    """Return how boxes are read for a repair that keeps the order of each class: by class, no signals."""
    if columns.group_columns not in (("class",), ("class", "size")):
        raise InputError(
            f"by: expected class alone where the order of the boxes of a class must not change, got "
            f"{columns.by}; leave out one of the two"
        )
    return replace(columns, groups="class", confidence=("score",))


def _readable(detections: Detections, names: tuple[str, ...] | None, columns: tuple[str, ...]) -> Predictions:
    """Return boxes with the groups that a calibrator or a rule reads."""
    by = tuple(each for each in GROUPS_BY if each in columns)
    if names is not None and not columns:
        by = (_single(names),)
    return box_predictions(detections, by=by)


def _single(names: tuple[str, ...]) -> GroupBy:
    """Return what makes groups of these names, if one column does."""
    if set(names) <= set(SIZES):
        return "size"
    return "position" if set(names) <= set(POSITIONS) else "class"
