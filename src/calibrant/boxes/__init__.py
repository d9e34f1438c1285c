"""Detectors: boxes with scores as confidences with outcomes, their measures and their repair."""

import typing as _typing

from calibrant.lazy import import_when_used as _import_when_used

if _typing.TYPE_CHECKING:
    from calibrant.boxes.detections import Detections, GroundTruth, detections_from_dicts
    from calibrant.boxes.matching import match_boxes

__all__ = ["Detections", "GroundTruth", "detections_from_dicts", "match_boxes"]

_import_when_used(__name__)
