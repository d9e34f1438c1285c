"""Random detections with crowds, ties and several classes, and what pycocotools says about them."""

import contextlib
import io

import numpy as np

from calibrant.boxes import Detections, GroundTruth


def random_case(rng, *, images=3, classes=2, most=6, size=100):
    """Return random detections; some overlap objects well, scores and overlaps often tie."""
    n_objects = rng.integers(0, most + 1, (images, classes))
    parts, image, label = [], [], []
    for i in range(images):
        for c in range(classes):
            corner = rng.integers(0, size - 50, (n_objects[i, c], 2))
            parts.append(np.concatenate([corner, rng.integers(2, 50, (n_objects[i, c], 2))], axis=1))
            image += [i] * n_objects[i, c]
            label += [c] * n_objects[i, c]
    boxes = np.concatenate(parts).astype(float)
    truth = GroundTruth.of(
        images=range(images),
        sizes=(size, size),
        class_names=[f"c{c}" for c in range(classes)],
        boxes=boxes,
        image=image,
        label=label,
        crowd=rng.random(len(boxes)) < 0.15,
        area=boxes[:, 2] * boxes[:, 3] * rng.choice([1.0, 0.7], len(boxes)),
    )
    near = rng.permutation(len(boxes))[: int(0.8 * len(boxes))]
    near = np.concatenate([near, near[: len(near) // 2]]).astype(int)
    moved = boxes[near] + rng.integers(-6, 7, (len(near), 4)) * rng.choice([0, 1], (len(near), 1))
    moved[:, 2:] = moved[:, 2:].clip(1)
    n_wild = int(rng.integers(0, 6))
    wild = np.concatenate([rng.integers(0, size - 1, (n_wild, 2)), rng.integers(1, 60, (n_wild, 2))], axis=1)
    found = np.concatenate([moved, wild]).astype(float)
    found[:, :2] = found[:, :2].clip(0, size - 1)
    return Detections.of(
        truth,
        boxes=found,
        score=rng.integers(1, 11, len(found)) / 10,
        image=np.concatenate([truth.image[near], rng.integers(0, images, n_wild)]).tolist(),
        label=np.concatenate([truth.label[near], rng.integers(0, classes, n_wild)]).tolist(),
    )


def with_pycocotools(detections, iou=(0.5, 0.75), most=100, *, summary=False):
    """Return the evaluation of pycocotools."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    truth = detections.truth
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        known.dataset = {
            "images": [{"id": int(i), "width": 100, "height": 100} for i in truth.images],
            "categories": [{"id": int(c)} for c in truth.class_ids],
            "annotations": [
                {
                    "id": place + 1,
                    "image_id": int(truth.images[truth.image[place]]),
                    "category_id": int(truth.class_ids[truth.label[place]]),
                    "bbox": truth.boxes[place].tolist(),
                    "area": float(truth.area[place]),
                    "iscrowd": int(truth.crowd[place]),
                }
                for place in range(truth.n)
            ],
        }
        known.createIndex()
        rows = [
            {
                "image_id": int(truth.images[detections.image[place]]),
                "category_id": int(truth.class_ids[detections.label[place]]),
                "bbox": detections.boxes[place].tolist(),
                "score": float(detections.score[place]),
            }
            for place in range(detections.n)
        ]
        found = known.loadRes(rows) if rows else None
        if found is None:
            return None
        evaluation = COCOeval(known, found, "bbox")
        evaluation.params.iouThrs = np.array(iou)
        evaluation.params.maxDets = [most]
        evaluation.evaluate()
        if summary:
            evaluation.accumulate()
    return evaluation


def same_matches(matching, evaluation, area="all"):
    """Return whether every box was matched with the object that pycocotools matched it with."""
    place = [name for name, _ in zip(evaluation.params.areaRngLbl, range(4), strict=True)].index(area)
    n_images = len(evaluation.params.imgIds)
    mine = {int(row): column for column, row in enumerate(matching.rows)}
    seen = 0
    for each in evaluation.evalImgs:
        if each is None or each["aRng"] != evaluation.params.areaRng[place]:
            continue
        for column, identity in enumerate(each["dtIds"]):
            own = mine[identity - 1]
            theirs = each["dtMatches"][:, column].astype(int) - 1
            if not (theirs == matching.matched[:, own]).all():
                return False
            if not (each["dtIgnore"][:, column].astype(bool) == matching.ignored[:, own]).all():
                return False
            seen += 1
    return seen == len(matching.rows) and n_images > 0


CLASSES = ["cat", "dog", "hen"]


def detector(seed, *, images=150, overconfident=2.0):
    """Boxes whose precision is a power of the score, more so for dogs; many scores tie."""
    rng = np.random.default_rng(seed)
    corners, scores, labels, image, right = [], [], [], [], []
    for i in range(images):
        for place in range(6):
            c = int(rng.integers(3))
            score = round(float(rng.beta(3, 1.5)), 2)
            corners.append([70 * (place % 3), 100 * (place // 3), 60, 20 if c == 2 else 90])
            scores.append(score)
            labels.append(c)
            image.append(i)
            right.append(rng.random() < score ** (overconfident if c != 1 else 1.5 * overconfident))
    boxes, hits = np.array(corners, dtype=float), np.array(right)
    truth = GroundTruth.of(
        images=range(images),
        sizes=(220, 200),
        class_names=CLASSES,
        boxes=boxes[hits],
        image=np.array(image)[hits].tolist(),
        label=np.array(labels)[hits].tolist(),
    )
    return Detections.of(truth, boxes=boxes, score=scores, image=image, label=labels)
