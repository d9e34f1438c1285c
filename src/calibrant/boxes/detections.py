"""Detections and ground truth as values: boxes with scores, and the objects that are really there."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from calibrant.errors import InputError, listed
from calibrant.inputs import ArrayLike, Floats, Integers, to_array

Bools: TypeAlias = npt.NDArray[np.bool_]

# Classes or images that a message names.
_NAMED = 5


@dataclass(frozen=True, eq=False)
class GroundTruth:
    """The objects that are really in some images.

    Attributes:
        images: The name or the number of each image.
        sizes: Width and height of each image in pixels, shape ``(images, 2)``; NaN where unknown.
        class_names: The name of each class.
        class_ids: The number of each class in files, such as COCO's ``category_id``.
        boxes: Left, top, width and height of each object in pixels, shape ``(m, 4)``.
        image: Place of each object's image among the images, shape ``(m,)``.
        label: Place of each object's class among the classes.
        crowd: Whether it is a region with many objects, in which detections are neither right nor wrong.
        area: Its area in pixels, by which COCO tells small objects from large ones.
        files: The name of the file of each image; empty text where unknown.
    """

    images: tuple[Any, ...]
    sizes: Floats
    class_names: tuple[str, ...]
    class_ids: tuple[int, ...]
    boxes: Floats
    image: Integers
    label: Integers
    crowd: Bools
    area: Floats
    files: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        *,
        images: Sequence[Any],
        sizes: ArrayLike,
        class_names: Sequence[str],
        boxes: ArrayLike,
        image: Sequence[Any],
        label: Sequence[int],
        class_ids: Sequence[int] | None = None,
        crowd: ArrayLike | None = None,
        area: ArrayLike | None = None,
        files: Sequence[str] = (),
    ) -> "GroundTruth":
        """Check objects and return them.

        Args:
            images: The name or the number of each image, each once.
            sizes: Width and height of each image, or one pair for all.
            class_names: The name of each class.
            boxes: Left, top, width and height of each object.
            image: The image of each object, by its name or number.
            label: The class of each object, by its number among ``class_ids``.
            class_ids: The number of each class; by default they count from 0.
            crowd: Whether each object is a region with many; by default none is.
            area: The area of each object; by default that of its box.
            files: The name of the file of each image.

        Example:
            >>> truth = GroundTruth.of(
            ...     images=["a"], sizes=[[640, 480]], class_names=["cat"], boxes=[[10, 10, 50, 80]],
            ...     image=["a"], label=[0],
            ... )
            >>> truth.area.tolist()
            [4000.0]
        """
        if len(set(images)) < len(images):
            raise InputError(f"images: expected each image once, got {_twice(images)!r} twice; leave one out")
        ids = tuple(range(len(class_names))) if class_ids is None else tuple(int(each) for each in class_ids)
        if len(set(ids)) < len(ids) or len(ids) != len(class_names):
            raise InputError(
                f"class_ids: expected a different number for each of {len(class_names)} classes, got "
                f"{listed([str(each) for each in ids], _NAMED)}"
            )
        shaped = check_boxes(boxes, "ground truth")
        m = len(shaped)
        known = np.broadcast_to(np.asarray(sizes, dtype=np.float64), (len(images), 2))
        found = cls(
            tuple(images),
            known,
            tuple(str(name) for name in class_names),
            ids,
            shaped,
            places(image, images, "image", "the list of images"),
            places([int(each) for each in label], ids, "class", "the list of classes"),
            np.zeros(m, dtype=bool) if crowd is None else np.asarray(crowd).astype(bool),
            shaped[:, 2] * shaped[:, 3] if area is None else np.asarray(area, dtype=np.float64),
            tuple(files),
        )
        _check_lengths(found, m, ("image", "label", "crowd", "area"), "ground truth")
        _check_inside(
            shaped, found.sizes[found.image], [found.images[p] for p in found.image], "ground truth"
        )
        return found

    def only(self, images: Collection[Any]) -> "GroundTruth":
        """Return the objects of some images."""
        wanted = np.array([each in images for each in self.images], dtype=bool)
        inside, place = wanted[self.image], np.cumsum(wanted) - 1
        return replace(
            self,
            images=tuple(each for each in self.images if each in images),
            sizes=self.sizes[wanted],
            boxes=self.boxes[inside],
            image=place[self.image[inside]],
            label=self.label[inside],
            crowd=self.crowd[inside],
            area=self.area[inside],
            files=tuple(name for name, each in zip(self.files, self.images, strict=False) if each in images),
        )

    @property
    def n(self) -> int:
        """Number of objects, crowds included."""
        return len(self.boxes)

    def __repr__(self) -> str:
        return f"GroundTruth({self.n:,} objects in {len(self.images):,} images, {_classes(self.class_names)})"


@dataclass(frozen=True, eq=False)
class Detections:
    """What a detector found in the images of a ground truth.

    Attributes:
        truth: The images and the classes; it may have no objects.
        boxes: Left, top, width and height of each box in pixels, shape ``(n, 4)``.
        score: The score of each box, from 0 to 1.
        image: Place of each box's image among those of the ground truth, shape ``(n,)``.
        label: Place of each box's class among those of the ground truth.
    """

    truth: GroundTruth
    boxes: Floats
    score: Floats
    image: Integers
    label: Integers

    @classmethod
    def of(
        cls,
        truth: GroundTruth,
        *,
        boxes: ArrayLike,
        score: ArrayLike,
        image: Sequence[Any],
        label: Sequence[int],
    ) -> "Detections":
        """Check detections and return them.

        Args:
            truth: The images and the classes.
            boxes: Left, top, width and height of each box.
            score: The score of each box, from 0 to 1.
            image: The image of each box, by its name or number.
            label: The class of each box, by its number.
        """
        shaped = check_boxes(boxes, "detections")
        found = cls(
            truth,
            shaped,
            check_scores(score),
            places(image, truth.images, "image", "the ground truth"),
            places([int(each) for each in label], truth.class_ids, "class", "the ground truth"),
        )
        _check_lengths(found, len(shaped), ("score", "image", "label"), "detections")
        named = [truth.images[place] for place in found.image]
        _check_inside(shaped, truth.sizes[found.image], named, "detections")
        return found

    @property
    def n(self) -> int:
        """Number of boxes."""
        return len(self.boxes)

    def only(self, images: Collection[Any]) -> "Detections":
        """Return the boxes in some images, with the ground truth of these alone."""
        truth = self.truth.only(images)
        wanted = np.array([each in images for each in self.truth.images], dtype=bool)
        inside = wanted[self.image]
        place = (np.cumsum(wanted) - 1)[self.image[inside]]
        return Detections(truth, self.boxes[inside], self.score[inside], place, self.label[inside])

    @property
    def classes(self) -> list[str]:
        """The name of the class of each box."""
        return [self.truth.class_names[place] for place in self.label]

    @property
    def area(self) -> Floats:
        """The area of each box in pixels."""
        return np.asarray(self.boxes[:, 2] * self.boxes[:, 3])

    def __repr__(self) -> str:
        return f"Detections({self.n:,} boxes in {len(self.truth.images):,} images)"


def detections_from_dicts(
    detections: Sequence[Mapping[str, Any]],
    truth: Sequence[Mapping[str, Any]],
    *,
    class_names: Sequence[str],
    sizes: ArrayLike,
) -> Detections:
    """Return detections from one dictionary per image, as torchvision and ultralytics give them.

    Corners are left, top, right and bottom in pixels.

    Args:
        detections: For each image ``boxes`` (or ``xyxy``), ``scores`` (or ``conf``) and ``labels`` (or
            ``cls``).
        truth: For each image ``boxes`` and ``labels``, and ``iscrowd`` and ``area`` if known.
        class_names: The name of each class.
        sizes: Width and height of each image, or one pair for all.

    Example:
        >>> found = [{"boxes": [[0, 0, 10, 10]], "scores": [0.9], "labels": [0]}]
        >>> real = [{"boxes": [[0, 0, 10, 9]], "labels": [0]}]
        >>> detections_from_dicts(found, real, class_names=["cat"], sizes=(64, 64))
        Detections(1 boxes in 1 images)
    """
    if len(detections) != len(truth):
        raise InputError(
            f"truth: expected one dictionary for each of {len(detections)} images, got {len(truth)}"
        )
    objects = [_of_dict(each, place, "truth") for place, each in enumerate(truth)]
    found = [_of_dict(each, place, "detections") for place, each in enumerate(detections)]
    crowds = [_entries(each, "iscrowd", len(part[0]), 0) for each, part in zip(truth, objects, strict=True)]
    areas = [_entries(each, "area", len(part[0]), np.nan) for each, part in zip(truth, objects, strict=True)]
    boxes = np.concatenate([part[0] for part in objects])
    area = np.concatenate(areas)
    known = GroundTruth.of(
        images=range(len(truth)),
        sizes=sizes,
        class_names=class_names,
        boxes=boxes,
        image=np.repeat(np.arange(len(truth)), [len(part[0]) for part in objects]).tolist(),
        label=np.concatenate([part[1] for part in objects]).tolist(),
        crowd=np.concatenate(crowds),
        area=np.where(np.isnan(area), boxes[:, 2] * boxes[:, 3], area),
    )
    return Detections.of(
        known,
        boxes=np.concatenate([part[0] for part in found]),
        score=np.concatenate([part[2] for part in found]),
        image=np.repeat(np.arange(len(found)), [len(part[0]) for part in found]).tolist(),
        label=np.concatenate([part[1] for part in found]).tolist(),
    )


_OTHER_NAMES = {"boxes": "xyxy", "scores": "conf", "labels": "cls"}


def _of_dict(each: Mapping[str, Any], place: int, name: str) -> tuple[Floats, Floats, Floats]:
    """Return boxes as left, top, width and height, labels and scores of one image."""
    values = {}
    for key in ("boxes", "labels", *(["scores"] if name == "detections" else [])):
        own = key if key in each else _OTHER_NAMES[key]
        if own not in each:
            raise InputError(
                f"{name}: expected {key} in each dictionary, got {listed(list(each))} for image {place}"
            )
        values[key] = np.asarray(to_array(each[own], key), dtype=np.float64)
    corners = values["boxes"].reshape(-1, 4)
    boxes = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)
    return boxes, values["labels"].reshape(-1), values.get("scores", np.empty(0)).reshape(-1)


def _entries(each: Mapping[str, Any], key: str, n: int, otherwise: float) -> Floats:
    return np.asarray(to_array(each[key], key), dtype=np.float64) if key in each else np.full(n, otherwise)


def check_boxes(boxes: ArrayLike, name: str) -> Floats:
    """Return boxes of shape ``(n, 4)``; refuse other shapes, NaN and negative sizes."""
    found = np.asarray(to_array(boxes, name), dtype=np.float64)
    found = found.reshape(0, 4) if not found.size else found
    if found.ndim != 2 or found.shape[1] != 4:
        raise InputError(
            f"{name}: expected boxes of shape (n, 4), left, top, width and height, got shape {found.shape}"
        )
    if (bad := np.flatnonzero(~np.isfinite(found).all(axis=1))).size:
        raise InputError(f"{name}: expected finite boxes, got {found[bad[0]].tolist()} in box {bad[0]}")
    if (bad := np.flatnonzero((found[:, 2:] < 0).any(axis=1))).size:
        raise InputError(
            f"{name}: expected a width and a height of at least 0, got {found[bad[0]].tolist()} in box "
            f"{bad[0]}; boxes are left, top, width and height"
        )
    return found


def check_scores(score: ArrayLike) -> Floats:
    """Return scores from 0 to 1; refuse NaN and others."""
    found = np.asarray(to_array(score, "score"), dtype=np.float64).reshape(-1)
    if (bad := np.flatnonzero(~((found >= 0) & (found <= 1)))).size:
        raise InputError(
            f"score: expected numbers from 0 to 1, got {found[bad[0]]} in box {bad[0]}; pass scores after "
            "the sigmoid or softmax"
        )
    return found


def places(values: Sequence[Any], known: Sequence[Any], what: str, where: str) -> Integers:
    """Return the place of each value among the known ones; refuse unknown ones."""
    place = {each: number for number, each in enumerate(known)}
    try:
        return np.array([place[each] for each in values], dtype=np.int64)
    except KeyError as error:
        names = listed([str(each) for each in known], _NAMED)
        raise InputError(
            f"{what}: expected one of {where} ({names}), got {error.args[0]!r}; check that both files "
            "are of the same images and classes"
        ) from None


def _check_lengths(value: object, n: int, names: Sequence[str], what: str) -> None:
    for name in names:
        if (got := len(getattr(value, name))) != n:
            raise InputError(f"{what}: expected {n} entries of {name}, one for each box, got {got}")


def _check_inside(boxes: Floats, sizes: Floats, images: Sequence[Any], name: str) -> None:
    """Refuse boxes that are outside their image; those that stick out a little are usual."""
    left, top, width, height = boxes.T
    out = (left >= sizes[:, 0]) | (top >= sizes[:, 1]) | (left + width < 0) | (top + height < 0)
    if (bad := np.flatnonzero(out)).size:
        wide, high = sizes[bad[0]]
        raise InputError(
            f"{name}: expected boxes inside their images, got {boxes[bad[0]].tolist()} (left, top, width, "
            f"height) outside image {images[bad[0]]!r} of {wide:g} x {high:g} pixels; boxes are in pixels"
        )


def _twice(values: Sequence[Any]) -> Any:  # noqa: ANN401  # a name or a number
    return next(each for place, each in enumerate(values) if each in values[:place])


def _classes(names: Sequence[str]) -> str:
    return f"{len(names)} class{'es' if len(names) != 1 else ''}"
