"""Detectors: boxes with scores as confidences with outcomes, their measures and their repair."""

import typing as _typing

from calibrant.lazy import import_when_used as _import_when_used

if _typing.TYPE_CHECKING:
    from calibrant.boxes.detections import Detections, GroundTruth, detections_from_dicts
    from calibrant.boxes.evaluation import evaluate_boxes
    from calibrant.boxes.matching import match_boxes
    from calibrant.boxes.measures import (
        average_precision,
        detection_ece,
        localisation_ace,
        localisation_ece,
    )
    from calibrant.boxes.pairs import box_predictions, match_pairs
    from calibrant.boxes.reading import read_detections, read_ground_truth
    from calibrant.boxes.repair import repaired_scores, write_repaired

__all__ = [
    "Detections",
    "GroundTruth",
    "average_precision",
    "box_predictions",
    "detection_ece",
    "detections_from_dicts",
    "evaluate_boxes",
    "localisation_ace",
    "localisation_ece",
    "match_boxes",
    "match_pairs",
    "read_detections",
    "read_ground_truth",
    "repaired_scores",
    "write_repaired",
]

_import_when_used(__name__)
