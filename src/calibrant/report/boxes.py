"""The part of the report about a detector: measures, the image as a map of gaps, thresholds, worst boxes."""

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calibrant.boxes.evaluation import evaluate_boxes
from calibrant.boxes.pairs import BoxPairs
from calibrant.boxes.pictured import by_threshold, gaps_by_place
from calibrant.errors import FormatError, InputError
from calibrant.inputs import Floats
from calibrant.report.page import (
    BoxCell,
    BoxClassLine,
    BoxCurve,
    BoxGroup,
    BoxMap,
    BoxPanel,
    BoxPicture,
    ImageMeasureLine,
    Page,
)

if TYPE_CHECKING:
    from PIL import Image

# Bins of small diagrams, boxes that are drawn.
_BINS, _WORST = 5, 20
# Groups with a diagram; the width of a drawn part of a picture, in pixels.
_MOST_GROUPS, _WIDTH = 12, 240


def with_boxes(
    page: Page, pairs: BoxPairs, *, after: Floats | None = None, pictures: Path | None = None
) -> Page:
    """Return a page with the part about a detector.

    Args:
        page: A page about the same boxes.
        pairs: The boxes as the detector scores them.
        after: Their repaired scores, if there was a repair.
        pictures: The folder of the pictures, from which the worst boxes are drawn.
    """
    repaired = None if after is None else pairs.with_scores(after)
    each = (pairs,) if repaired is None else (pairs, repaired)
    found = [evaluate_boxes(one, measures=["accuracy"], intervals=True) for one in each]
    measures = [
        ImageMeasureLine(
            measure.title,
            measure.better,
            _known(measure.value),
            None if measure.interval is None else measure.interval.low,
            None if measure.interval is None else measure.interval.high,
            None if repaired is None else _known(found[-1].measures[name].value),
        )
        for name, measure in found[0].measures.items()
    ]
    classes = [
        BoxClassLine(
            row.name,
            row.objects,
            row.missed,
            row.boxes,
            *map(_known, (row.precision, row.mean_score, row.ap.value)),
            *((ends.low, ends.high) if (ends := row.precision_interval) else (None, None)),
        )
        for row in found[0].classes
    ]
    panel = BoxPanel(
        found[0].heading,
        tuple(measures),
        tuple(classes),
        tuple(_map(one) for one in each),
        tuple(_curve(one) for one in each),
        _groups(pairs, repaired),
        () if pictures is None else _worst(pairs, pictures),
    )
    return replace(page, boxes=panel)


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _map(pairs: BoxPairs) -> BoxMap:
    """Return mean score minus precision in cells of the image, by the centre of the box."""
    found = gaps_by_place(pairs)
    cells = [
        BoxCell(int(across), int(down), int(found.n[down, across]), float(found.gap[down, across]))
        for down, across in np.argwhere(found.n)
    ]
    return BoxMap(len(found.n), tuple(cells))


def _curve(pairs: BoxPairs) -> BoxCurve:
    """Return precision and the share of objects that are found at some thresholds of the score."""
    found = by_threshold(pairs, intervals=True)
    lines = (found.threshold, found.precision, found.found, found.low, found.high)
    return BoxCurve(*(() if each is None else tuple(each.tolist()) for each in lines))


def _groups(before: BoxPairs, after: BoxPairs | None) -> tuple[BoxGroup, ...]:
    """Return small reliability diagrams of the largest groups of each column."""
    groups = before.predictions.groups
    if groups is None:
        return ()
    columns = {column: np.array(names) for column, names in groups.by_column.items()}
    columns = columns or {"": np.array(groups.values)}
    found = []
    for values in columns.values():
        names, counts = np.unique(values, return_counts=True)
        for name in names[np.argsort(-counts, kind="stable")][:_MOST_GROUPS]:
            inside = values == name
            each = (before,) if after is None else (before, after)
            found.append(BoxGroup(str(name), int(inside.sum()), tuple(_points(one, inside) for one in each)))
    return tuple(found)


def _points(pairs: BoxPairs, inside: np.ndarray) -> tuple[tuple[float, float, int], ...]:
    """Return mean score, precision and number of the boxes in bins of equal width of the score."""
    score, right = pairs.score[inside], pairs.correct[inside]
    place = np.clip(score * _BINS, 0, _BINS - 1).astype(int)
    return tuple(
        (float(score[place == b].mean()), float(right[place == b].mean()), int((place == b).sum()))
        for b in np.unique(place)
    )


def _worst(pairs: BoxPairs, folder: Path) -> tuple[BoxPicture, ...]:
    """Return the wrong boxes with the highest scores, drawn with the objects beside them."""
    if not folder.is_dir():
        raise InputError(f"images: expected a folder of pictures, got {folder}; check the path")
    wrong = np.flatnonzero(~pairs.correct)
    chosen = wrong[np.argsort(-pairs.score[wrong], kind="stable")][:_WORST]
    found = []
    for place in chosen:
        row = pairs.rows[place]
        name = (
            pairs.detections.truth.files[pairs.detections.image[row]] if pairs.detections.truth.files else ""
        )
        picture = _opened(folder, name or str(pairs.detections.truth.images[pairs.detections.image[row]]))
        caption = (
            f"{pairs.detections.classes[row]}, score {pairs.score[place]:.2f}, {Path(name).name or 'image'}"
        )
        found.append(BoxPicture(caption, _drawn(pairs, int(row), picture)))
    return tuple(found)


def _opened(folder: Path, name: str) -> "Image.Image":
    """Return the picture of an image by the name of its file, or by that of the image."""
    from PIL import Image, UnidentifiedImageError

    known = [folder / name, folder / Path(name).name, *sorted(folder.glob(f"{_literal(Path(name).stem)}.*"))]
    path = next((each for each in known if each.is_file()), None)
    if path is None:
        raise InputError(
            f"images: expected a picture of each image, got none named {name!r} in {folder.name}"
        )
    try:
        with Image.open(path) as picture:
            return picture.convert("RGB")
    except (OSError, UnidentifiedImageError):
        raise FormatError(f"{path.name}: expected a picture, got a file that is none") from None


def _literal(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _drawn(pairs: BoxPairs, row: int, picture: "Image.Image") -> str:
    """Return the part of a picture around a box as an address of data: the box and the objects beside it."""
    from PIL import ImageDraw

    truth, image = pairs.detections.truth, pairs.detections.image[row]
    scale = np.array(picture.size) / truth.sizes[image]
    left, top, wide, high = _in_picture(pairs.detections.boxes[row], scale)
    room = 0.5 * max(wide, high)
    part = (
        max(0, int(left - room)),
        max(0, int(top - room)),
        min(picture.width, int(left + wide + room) + 1),
        min(picture.height, int(top + high + room) + 1),
    )
    shrink = _WIDTH / (part[2] - part[0])
    height = max(1, min(2 * _WIDTH, int(shrink * (part[3] - part[1]))))
    shown = picture.crop(part).resize((_WIDTH, height))
    draw = ImageDraw.Draw(shown)
    boxes = [(truth.boxes[thing], "#35c796") for thing in np.flatnonzero(truth.image == image)]
    for box, colour in (*boxes, (pairs.detections.boxes[row], "#d55e00")):
        x, y, w, h = _in_picture(box, scale)
        corners = [((x - part[0]), (y - part[1])), ((x + w - part[0]), (y + h - part[1]))]
        points = [(a * shrink, b * height / (part[3] - part[1])) for a, b in corners]
        draw.rectangle([*points[0], *points[1]], outline=colour, width=3)
    buffer = io.BytesIO()
    shown.save(buffer, format="JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _in_picture(box: Floats, scale: Floats) -> Sequence[float]:
    return [float(number) for number in box * np.tile(scale, 2)]
