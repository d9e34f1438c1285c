"""Folders with a file for each image: text of YOLO, and XML of Pascal VOC."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from calibrant.boxes.detections import Detections, GroundTruth
from calibrant.errors import FormatError, InputError, listed

_PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")


class _File(NamedTuple):
    """The boxes of an image as its file has them.

    Attributes:
        name: The name of the image, that of the file without its suffix.
        classes: The class of each box: a number of YOLO, or a name.
        boxes: Left, top, width and height of each box; of YOLO as shares of the image.
        scores: The score of each box, if the file has them.
        ignored: Whether each box is marked as difficult.
        size: Width and height of the image, if they are known.
        shares: Whether boxes are shares of the image, as those of YOLO.
    """

    name: str
    classes: list[str]
    boxes: list[list[float]]
    scores: list[float]
    ignored: list[bool]
    size: tuple[float, float] | None
    shares: bool


def is_box_folder(path: Path) -> bool:
    """Return whether a folder has text of YOLO or XML of Pascal VOC."""
    return path.is_dir() and any(each.suffix.lower() in _READERS for each in path.iterdir())


def read_folder_truth(path: Path, class_names: Sequence[str] | None, pictures: Path | None) -> GroundTruth:
    """Read the ground truth of a folder: a file for each image, empty or missing if nothing is there.

    Boxes of YOLO are shares of the image. Its size in pixels is read from the picture of the same name, in
    ``pictures`` or in a folder ``images`` beside the folder; without pictures every image counts as one
    pixel, and boxes have no size in pixels.

    Args:
        path: The folder.
        class_names: The names of the classes; YOLO's numbers count from 0. XML has names already.
        pictures: The folder of the pictures.
    """
    files = _read(path, pictures, scored=False)
    names = _class_names(files, class_names, path)
    sizes = [each.size or (1.0, 1.0) for each in files]
    shaped = [_in_pixels(each, size) for each, size in zip(files, sizes, strict=True)]
    return GroundTruth.of(
        images=[each.name for each in files],
        sizes=sizes,
        class_names=names,
        boxes=[box for boxes in shaped for box in boxes],
        image=[each.name for each in files for _ in each.boxes],
        label=[_class_place(name, names, path) for each in files for name in each.classes],
        crowd=[ignored for each in files for ignored in each.ignored],
        files=[each.name for each in files],
    )


def read_folder_detections(path: Path, truth: GroundTruth) -> Detections:
    """Read the detections of a folder: a file for each image, with a score for each box."""
    files = _read(path, None, scored=True)
    place = {str(name): number for number, name in enumerate(truth.images)}
    stems = {Path(name).stem: number for number, name in enumerate(truth.files) if name}
    boxes, image = [], []
    for each in files:
        if (known := place.get(each.name, stems.get(each.name))) is None:
            raise InputError(
                f"image: expected one of the ground truth ({listed([str(i) for i in truth.images], 5)}), got "
                f"{each.name!r} in {path.name}; check that both are of the same images"
            )
        boxes += _in_pixels(each, truth.sizes[known].tolist())
        image += [truth.images[known]] * len(each.boxes)
    return Detections.of(
        truth,
        boxes=boxes,
        score=[score for each in files for score in each.scores],
        image=image,
        label=[
            truth.class_ids[_class_place(name, truth.class_names, path)]
            for each in files
            for name in each.classes
        ],
    )


def _read(path: Path, pictures: Path | None, *, scored: bool) -> list[_File]:
    found = sorted(each for each in path.iterdir() if each.suffix.lower() in _READERS)
    found = [each for each in found if each.name != "classes.txt"]
    if not found:
        raise FormatError(f"{path.name}: expected a .txt or .xml file for each image, got none")
    folder = pictures or path.parent / "images"
    sizes = {} if scored else {each.stem: each for each in _pictures(folder)}
    files = []
    for file in found:
        read = _READERS[file.suffix.lower()](file, scored)
        if read.size is None and file.stem in sizes:
            read = read._replace(size=_picture_size(sizes[file.stem]))
        files.append(read)
    known = {each.name for each in files}
    files += [
        _File(name, [], [], [], [], _picture_size(picture), shares=True)
        for name, picture in sorted(sizes.items())
        if name not in known
    ]
    if not scored and len({each.size is None for each in files}) > 1:
        without = next(each.name for each in files if each.size is None)
        raise InputError(
            f"{folder}: expected a picture for each image, got none for {without!r}; its size is needed"
        )
    return files


def _read_yolo(file: Path, scored: bool) -> _File:  # as _read_voc
    classes, boxes, scores = [], [], []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        words = line.split()
        try:
            values = [float(word) for word in words]
        except ValueError:
            values = []
        if len(values) != 5 + scored:
            wanted = "class, x, y, width, height" + (" and score" if scored else "")
            raise FormatError(f"{file.name}: expected {wanted} in line {number}, got {line[:60]!r}")
        x, y, width, height = values[1:5]
        classes.append(words[0])
        boxes.append([x - width / 2, y - height / 2, width, height])
        scores += values[5:]
    return _File(file.stem, classes, boxes, scores, [False] * len(boxes), None, shares=True)


def _read_voc(file: Path, scored: bool) -> _File:
    try:
        root = ElementTree.parse(file).getroot()  # expat refuses entities that grow
    except ElementTree.ParseError as error:
        raise FormatError(f"{file.name}: expected XML of Pascal VOC, got {error}") from None
    classes, boxes, scores, ignored = [], [], [], []
    for number, each in enumerate(root.iter("object")):
        try:
            left, top, right, bottom = (
                float(each.findtext(f"bndbox/{key}", "")) for key in ("xmin", "ymin", "xmax", "ymax")
            )
            scores += [float(each.findtext("score", each.findtext("confidence", "")))] if scored else []
        except ValueError:
            wanted = "name, bndbox and score" if scored else "name and bndbox"
            raise FormatError(f"{file.name}: expected {wanted} in object {number}, got others") from None
        classes.append(each.findtext("name", ""))
        boxes.append([left, top, right - left, bottom - top])
        ignored.append(each.findtext("difficult", "0").strip() == "1")
    try:
        size = (float(root.findtext("size/width", "")), float(root.findtext("size/height", "")))
    except ValueError:
        raise FormatError(
            f"{file.name}: expected the width and height of the image in size, got none"
        ) from None
    return _File(file.stem, classes, boxes, scores, ignored, size, shares=False)


_READERS = {".txt": _read_yolo, ".xml": _read_voc}


def _in_pixels(file: _File, size: Sequence[float]) -> list[list[float]]:
    wide, high = size if file.shares else (1.0, 1.0)
    return [[x * wide, y * high, w * wide, h * high] for x, y, w, h in file.boxes]


def _class_names(files: Sequence[_File], given: Sequence[str] | None, path: Path) -> list[str]:
    if given is not None:
        return list(given)
    used = {name for each in files for name in each.classes}
    if not used or any(not name.isdecimal() for name in used):
        return sorted(used)
    raise InputError(
        f"classes: expected the names of the classes of {path.name}, which has numbers, got none; name them, "
        "or the file with one in each line"
    )


def _class_place(name: str, names: Sequence[str], path: Path) -> int:
    if name in names:
        return list(names).index(name)
    if name.isdecimal() and int(name) < len(names):
        return int(name)
    raise InputError(f"class: expected one of {listed(list(names), 5)}, got {name!r} in {path.name}")


def _pictures(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [each for each in folder.iterdir() if each.suffix.lower() in _PICTURES]


def _picture_size(path: Path) -> tuple[float, float]:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as picture:
            wide, high = picture.size
    except (OSError, UnidentifiedImageError):
        raise FormatError(f"{path.name}: expected a picture, got a file that is none") from None
    return float(wide), float(high)
