"""Files of COCO: a list of results, and a ground truth with images, categories and annotations."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.boxes.detections import Detections, GroundTruth
from calibrant.errors import FormatError, InputError, listed
from calibrant.files import read_json

# What entries must have, and what they may have.
_NAME, _NUMBER = (int, str), (int, float)
_KINDS = {
    "id": _NAME,
    "image_id": _NAME,
    "category_id": (int,),
    "bbox": (list,),
    "score": _NUMBER,
    "area": _NUMBER,
    "width": _NUMBER,
    "height": _NUMBER,
}
_OF_ANNOTATION = ("image_id", "category_id", "bbox")
_OF_RESULT = (*_OF_ANNOTATION, "score")


def read_coco_truth(path: Path, class_names: Sequence[str] | None = None) -> GroundTruth:
    """Read ground truth; without annotations it says which images and classes there are, and their sizes.

    Args:
        path: A JSON object with ``images`` and ``categories``, and ``annotations`` if the truth is known.
        class_names: Other names of the categories, in the order of their ids.
    """
    value = read_json(path, "a ground truth of COCO")
    if not isinstance(value, dict) or not {"images", "categories"} <= set(value):
        got = listed(list(value)) if isinstance(value, dict) else f"a {type(value).__name__}"
        raise FormatError(
            f"{path.name}: expected an object with images, categories and annotations, got {got}; name a "
            "ground truth in the format of COCO"
        )
    images = _entries(value["images"], ("id",), "image")
    categories = sorted(_entries(value["categories"], ("id",), "category"), key=lambda each: int(each["id"]))
    annotations = _entries(value.get("annotations", []), _OF_ANNOTATION, "annotation")
    boxes = [each["bbox"] for each in annotations]
    names = [str(each.get("name", each["id"])) for each in categories]
    if class_names is not None and len(class_names) != len(names):
        raise InputError(
            f"classes: expected {len(names)} names, one for each category of {path.name}, got "
            f"{len(class_names)}"
        )
    return GroundTruth.of(
        images=[each["id"] for each in images],
        sizes=[_size(each) for each in images] or np.empty((0, 2)),
        class_names=names if class_names is None else class_names,
        class_ids=[int(each["id"]) for each in categories],
        boxes=boxes,
        image=[each["image_id"] for each in annotations],
        label=[each["category_id"] for each in annotations],
        crowd=[bool(each.get("iscrowd", 0)) for each in annotations],
        area=[float(each.get("area", each["bbox"][2] * each["bbox"][3])) for each in annotations],
        files=[str(each.get("file_name", "")) for each in images],
    )


def read_coco_results(path: Path) -> list[dict[str, Any]]:
    """Read the results of a detector as they are: a list of objects with a box and a score."""
    value = read_json(path, "results of COCO")
    if not isinstance(value, list):
        got = listed(list(value)) if isinstance(value, dict) else f"a {type(value).__name__}"
        raise FormatError(
            f"{path.name}: expected a list of objects with {listed(list(_OF_RESULT))}, got {got}; name "
            "the results of a detector"
        )
    return _entries(value, _OF_RESULT, "result")


def coco_detections(results: Sequence[Mapping[str, Any]], truth: GroundTruth) -> Detections:
    """Return results of COCO as detections in the images of a ground truth."""
    return Detections.of(
        truth,
        boxes=[each["bbox"] for each in results],
        score=[float(each["score"]) for each in results],
        image=[each["image_id"] for each in results],
        label=[each["category_id"] for each in results],
    )


def as_coco_results(detections: Detections) -> list[dict[str, Any]]:
    """Return detections as results of COCO."""
    truth = detections.truth
    rows = zip(detections.image, detections.label, detections.boxes, detections.score, strict=True)
    return [
        {
            "image_id": truth.images[image],
            "category_id": truth.class_ids[label],
            "bbox": box.tolist(),
            "score": float(score),
        }
        for image, label, box, score in rows
    ]


def _size(image: Mapping[str, Any]) -> tuple[float, float]:
    return float(image.get("width", np.nan)), float(image.get("height", np.nan))


def _entries(entries: Any, keys: Sequence[str], what: str) -> list[dict[str, Any]]:  # noqa: ANN401  # any JSON
    """Return entries of a file that have some keys; refuse others, and values of other kinds."""
    if not isinstance(entries, list):
        raise FormatError(f"expected a list with each {what}, got {_short(entries)}")
    for place, each in enumerate(entries):
        if not isinstance(each, dict) or any(key not in each for key in keys):
            got = listed(list(each)) if isinstance(each, dict) else _short(each)
            raise FormatError(f"{what} {place}: expected an object with {listed(list(keys))}, got {got}")
        for key, kinds in _KINDS.items():
            value = each.get(key, 0)
            if key in each and (isinstance(value, bool) or not isinstance(value, kinds)):
                raise FormatError(
                    f"{what} {place}: expected {key} to be {_words(kinds)}, got {_short(value)}"
                )
        if "bbox" in each and not _is_box(each["bbox"]):
            raise FormatError(
                f"{what} {place}: expected bbox to be four numbers, left, top, width and height, got "
                f"{_short(each['bbox'])}"
            )
    return entries


def _is_box(box: list[Any]) -> bool:
    return len(box) == 4 and all(isinstance(x, _NUMBER) and not isinstance(x, bool) for x in box)


def _words(kinds: tuple[type, ...]) -> str:
    if list in kinds:
        return "a list"
    return "a number" if float in kinds else "a whole number" + (" or a name" if str in kinds else "")


def _short(value: object) -> str:
    return repr(value)[:60]
