"""Detections and ground truth from files and dictionaries, and what is said about bad ones."""

import json
import re

import numpy as np
import pytest

from calibrant.boxes import (
    Detections,
    GroundTruth,
    detections_from_dicts,
    match_pairs,
    read_detections,
    read_ground_truth,
)
from calibrant.errors import CalibrantError, FormatError, InputError

TRUTH = {
    "images": [
        {"id": 7, "width": 200, "height": 100, "file_name": "a.jpg"},
        {"id": 9, "width": 100, "height": 100, "file_name": "b.jpg"},
    ],
    "categories": [{"id": 3, "name": "dog"}, {"id": 1, "name": "cat"}],
    "annotations": [
        {"id": 1, "image_id": 7, "category_id": 1, "bbox": [10, 10, 40, 40], "area": 1600, "iscrowd": 0},
        {"id": 2, "image_id": 7, "category_id": 3, "bbox": [100, 20, 60, 60], "area": 3600, "iscrowd": 0},
        {"id": 3, "image_id": 9, "category_id": 3, "bbox": [0, 0, 50, 50], "area": 2500, "iscrowd": 1},
    ],
}
FOUND = [
    {"image_id": 7, "category_id": 1, "bbox": [12, 10, 40, 40], "score": 0.9, "track": 4},
    {"image_id": 7, "category_id": 3, "bbox": [150, 20, 40, 60], "score": 0.7},
]


@pytest.fixture
def written(tmp_path):
    def write(found=FOUND, truth=TRUTH):
        (tmp_path / "found.json").write_text(json.dumps(found))
        (tmp_path / "truth.json").write_text(json.dumps(truth))
        return tmp_path / "found.json", tmp_path / "truth.json"

    return write


def check_same(detections):
    assert detections.truth.class_names == ("cat", "dog")
    pairs = match_pairs(detections)
    assert pairs.correct.tolist() == [True, False]
    assert pairs.score.tolist() == [0.9, 0.7]
    assert pairs.missed == {"cat": 0, "dog": 1}
    assert detections.classes == ["cat", "dog"]


def test_coco(written):
    found, truth = written()
    detections = read_detections(found, read_ground_truth(truth))
    check_same(detections)
    assert detections.truth.crowd.tolist() == [False, False, True]
    assert detections.truth.class_ids == (1, 3)


def test_yolo_with_pictures_and_an_image_without_objects(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for folder in ("labels", "found", "images"):
        (tmp_path / folder).mkdir()
    for name, size in (("a", (200, 100)), ("b", (100, 100)), ("empty", (64, 64))):
        image.new("RGB", size).save(tmp_path / "images" / f"{name}.png")
    (tmp_path / "labels" / "a.txt").write_text("0 0.15 0.3 0.2 0.4\n1 0.65 0.5 0.3 0.6\n")
    (tmp_path / "labels" / "b.txt").write_text("")
    (tmp_path / "found" / "a.txt").write_text("0 0.16 0.3 0.2 0.4 0.9\n1 0.85 0.5 0.2 0.6 0.7\n")
    truth = read_ground_truth(tmp_path / "labels", class_names=["cat", "dog"])
    check_same(read_detections(tmp_path / "found", truth))
    assert truth.images == ("a", "b", "empty")
    assert truth.boxes[0].tolist() == pytest.approx([10, 10, 40, 40])


def test_yolo_without_pictures_has_no_sizes(tmp_path):
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "a.txt").write_text("0 0.15 0.3 0.2 0.4\n")
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "a.txt").write_text("0 0.15 0.3 0.2 0.4 0.8\n")
    detections = read_detections(
        tmp_path / "found", read_ground_truth(tmp_path / "labels", class_names=["cat"])
    )
    assert match_pairs(detections, by=("class",)).correct.tolist() == [True]
    with pytest.raises(InputError, match="^by: expected the sizes of the images for groups by size"):
        match_pairs(detections, by=("size",))


VOC = """<annotation><size><width>200</width><height>100</height></size>
<object><name>cat</name>{first}<bndbox><xmin>{x}</xmin><ymin>10</ymin><xmax>{right}</xmax><ymax>50</ymax></bndbox></object>
<object><name>dog</name>{second}<bndbox><xmin>{left}</xmin><ymin>20</ymin><xmax>{end}</xmax><ymax>80</ymax></bndbox></object>
</annotation>"""


def test_pascal_voc(tmp_path):
    for folder in ("truth", "found"):
        (tmp_path / folder).mkdir()
    numbers = {
        "x": 10,
        "right": 50,
        "left": 100,
        "end": 160,
        "first": "",
        "second": "<difficult>0</difficult>",
    }
    (tmp_path / "truth" / "a.xml").write_text(VOC.format(**numbers))
    numbers = {"x": 12, "right": 52, "left": 150, "end": 190}
    scores = {"first": "<score>0.9</score>", "second": "<confidence>0.7</confidence>"}
    (tmp_path / "found" / "a.xml").write_text(VOC.format(**numbers, **scores))
    check_same(read_detections(tmp_path / "found", read_ground_truth(tmp_path / "truth")))


@pytest.mark.parametrize("names", [("boxes", "scores", "labels"), ("xyxy", "conf", "cls")])
def test_dictionaries_of_torchvision_and_ultralytics(names):
    torch = pytest.importorskip("torch")
    boxes, scores, labels = names
    found = [
        {
            boxes: torch.tensor([[12.0, 10, 52, 50], [150, 20, 190, 80]]),
            scores: torch.tensor([0.9, 0.7], dtype=torch.float64),
            labels: torch.tensor([0, 1]),
        },
        {boxes: torch.zeros(0, 4), scores: torch.zeros(0), labels: torch.zeros(0)},
    ]
    real = [
        {"boxes": [[10, 10, 50, 50], [100, 20, 160, 80]], "labels": [0, 1]},
        {"boxes": [[0, 0, 50, 50]], "labels": [1], "iscrowd": [1]},
    ]
    sizes = [[200, 100], [100, 100]]
    check_same(detections_from_dicts(found, real, class_names=["cat", "dog"], sizes=sizes))


def changed(place=0, **values):
    return [{**row, **values} if row is FOUND[place] else row for row in FOUND]


@pytest.mark.parametrize(
    ("found", "truth", "message"),
    [
        (changed(bbox=[300, 10, 5, 5]), TRUTH, "found.json: detections: expected boxes inside their images"),
        (changed(bbox=[0, 0, -1, 5]), TRUTH, "found.json: detections: expected a width and a height"),
        (changed(bbox=[0, 0, 5]), TRUTH, "found.json: result 0: expected bbox to be four numbers"),
        (changed(bbox=[0, 0, "a", 5]), TRUTH, "found.json: result 0: expected bbox to be four numbers"),
        (changed(score=float("nan")), TRUTH, "score: expected numbers from 0 to 1, got nan in box 0"),
        (changed(score=37.5), TRUTH, "score: expected numbers from 0 to 1, got 37.5 in box 0"),
        (changed(score="high"), TRUTH, "found.json: result 0: expected score to be a number, got 'high'"),
        (changed(category_id=2), TRUTH, "class: expected one of the ground truth (1, 3), got 2"),
        (changed(image_id=8), TRUTH, "image: expected one of the ground truth (7, 9), got 8"),
        ({"a": 1}, TRUTH, "found.json: expected a list of objects with image_id"),
        ([{"image_id": 7}], TRUTH, "found.json: result 0: expected an object with image_id"),
        (changed(category_id=[1]), TRUTH, "found.json: result 0: expected category_id to be a whole"),
        (FOUND, {**TRUTH, "images": [7, 9]}, "truth.json: image 0: expected an object with id, got 7"),
        (FOUND, {**TRUTH, "annotations": None}, "truth.json: expected a list with each annotation, got None"),
        ([], TRUTH, "detections: expected at least one box, got none"),
        (FOUND, FOUND, "truth.json: expected an object with images, categories and annotations, got a list"),
        (FOUND, {**TRUTH, "images": TRUTH["images"] * 2}, "images: expected each image once, got 7 twice"),
        (
            FOUND,
            {**TRUTH, "images": [{"id": 7}, {"id": 9}]},
            "images: expected a width and a height, got none for image 7",
        ),
    ],
)  # fmt: skip
def test_bad_files_are_one_sentence(written, found, truth, message):
    paths = written(found, truth)
    with pytest.raises(CalibrantError) as error:
        match_pairs(read_detections(paths[0], read_ground_truth(paths[1])))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_files_and_empty_folders_are_one_sentence(tmp_path):
    with pytest.raises(FormatError, match="^no.json: no such file or folder"):
        read_ground_truth(tmp_path / "no.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match="^empty: expected a .txt or .xml file for each image, got none"):
        read_ground_truth(tmp_path / "empty")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "a.txt").write_text("0 0.1 0.2 0.3\n")
    with pytest.raises(FormatError, match="^labels: a.txt: expected class, x, y, width, height in line 1"):
        read_ground_truth(tmp_path / "labels", class_names=["cat"])
    (tmp_path / "labels" / "a.txt").write_text("0 0.1 0.2 0.3 0.4\n")
    with pytest.raises(InputError, match="^labels: classes: expected the names of the classes"):
        read_ground_truth(tmp_path / "labels")


def test_values_in_python_are_checked():
    truth = GroundTruth.of(images=[0], sizes=(10, 10), class_names=["a"], boxes=[], image=[], label=[])
    with pytest.raises(InputError, match="^detections: expected 1 entries of score"):
        Detections.of(truth, boxes=[[0, 0, 1, 1]], score=[0.1, 0.2], image=[0], label=[0])
    with pytest.raises(InputError, match=re.escape("expected boxes of shape (n, 4)")):
        Detections.of(truth, boxes=[[0, 0, 1]], score=[0.1], image=[0], label=[0])
    with pytest.raises(InputError, match="^detections: expected finite boxes"):
        Detections.of(truth, boxes=[[0, 0, np.nan, 1]], score=[0.1], image=[0], label=[0])
    with pytest.raises(InputError, match="^iou: expected overlaps above 0 and at most 1, got 1.5"):
        match_pairs(Detections.of(truth, boxes=[[0, 0, 1, 1]], score=[0.1], image=[0], label=[0]), iou=1.5)
