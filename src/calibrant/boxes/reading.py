"""Detections from the files that people have: COCO, YOLO and Pascal VOC, recognised by what is there."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibrant.boxes.coco import coco_detections, read_coco_results, read_coco_truth
from calibrant.boxes.detections import Detections, GroundTruth
from calibrant.boxes.folders import is_box_folder, read_folder_detections, read_folder_truth
from calibrant.errors import FormatError, InputError
from calibrant.files import read_text, reading


def read_ground_truth(
    path: str | os.PathLike[str],
    *,
    class_names: Sequence[str] | None = None,
    pictures: str | os.PathLike[str] | None = None,
) -> GroundTruth:
    """Read ground truth: a file of COCO, or a folder of YOLO's text or Pascal VOC's XML.

    Args:
        path: The file or the folder.
        class_names: The names of the classes, which YOLO's files do not have.
        pictures: The folder of the pictures, whose sizes YOLO's files do not have.
    """
    path = _existing(path)
    of_folder = is_box_folder(path)
    with reading(path.name, "files of YOLO or Pascal VOC" if of_folder else "a ground truth of COCO"):
        if of_folder:
            return read_folder_truth(path, class_names, None if pictures is None else Path(pictures))
        return read_coco_truth(path, class_names)


def read_detections(path: str | os.PathLike[str], truth: GroundTruth) -> Detections:
    """Read what a detector found: results of COCO, or a folder of YOLO's text or Pascal VOC's XML.

    Args:
        path: The file or the folder.
        truth: The ground truth of the same images.
    """
    path = _existing(path)
    of_folder = is_box_folder(path)
    with reading(path.name, "files of YOLO or Pascal VOC" if of_folder else "results of COCO"):
        if of_folder:
            return read_folder_detections(path, truth)
        return coco_detections(read_coco_results(path), truth)


def read_images(path: str | os.PathLike[str], truth: GroundTruth) -> set[Any]:
    """Read which images of a ground truth are meant.

    Args:
        path: Another ground truth of COCO, or a text file with the number, name or file of an image per line.
        truth: The ground truth of all images.
    """
    path = Path(path)
    with reading(path.name, "a list of images"):
        if path.suffix == ".json":
            named = [str(each) for each in read_coco_truth(path).images]
        else:
            named = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    known = {Path(file).name: image for file, image in zip(truth.files, truth.images, strict=False) if file}
    known |= {str(image): image for image in truth.images}
    for each in named:
        if each not in known and Path(each).name not in known:
            raise InputError(
                f"{path.name}: expected images of the ground truth, got {each!r}; name the number or the "
                "file of an image in each line"
            )
    if not named:
        raise InputError(f"{path.name}: expected at least one image, got none")
    return {known.get(each, known.get(Path(each).name)) for each in named}


def _existing(path: str | os.PathLike[str]) -> Path:
    found = Path(path)
    if not found.exists():
        raise FormatError(f"{found.name}: no such file or folder in {found.parent}; check the path")
    if found.is_dir() and not is_box_folder(found):
        raise FormatError(f"{found.name}: expected a .txt or .xml file for each image, got none")
    return found
