"""Matching of boxes with objects, against pycocotools in random cases."""

import numpy as np
import pytest

from calibrant.boxes import Detections, GroundTruth, match_boxes, match_pairs
from calibrant.boxes.matching import overlaps
from tests.boxes.random_boxes import random_case, same_matches, with_pycocotools

IOU = (0.3, 0.5, 0.75)


@pytest.mark.parametrize(
    ("most", "area", "name"),
    [
        (100, None, "all"),
        (2, None, "all"),
        (100, (0.0, 32.0**2), "small"),
        (100, (32.0**2, 96.0**2), "medium"),
    ],
)
def test_matches_are_those_of_pycocotools(most, area, name):
    compared = 0
    for seed in range(60):
        detections = random_case(np.random.default_rng(seed), most=seed % 7 + 1)
        theirs = with_pycocotools(detections, IOU, most)
        if theirs is not None:
            assert same_matches(match_boxes(detections, iou=IOU, most=most, area=area), theirs, name)
            compared += detections.n
    assert compared > 500


def test_overlap_is_intersection_over_union():
    boxes = np.array([[0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 4.0, 4.0]])
    things = np.array([[5.0, 0.0, 10.0, 10.0], [10.0, 0.0, 5.0, 5.0], [2.0, 2.0, 4.0, 4.0]])
    assert overlaps(boxes, things) == pytest.approx([50 / 150, 0.0, 4 / 28])
    assert overlaps(boxes, things, np.array([True, True, True])) == pytest.approx([0.5, 0.0, 0.25])


def small():
    """One image with two objects and a crowd, and boxes: right, a second one of the same, in the crowd."""
    truth = GroundTruth.of(
        images=["street"],
        sizes=(400, 400),
        class_names=["car", "dog"],
        boxes=[[0, 0, 100, 100], [200, 200, 20, 20], [300, 0, 100, 400]],
        image=["street"] * 3,
        label=[0, 1, 0],
        crowd=[False, False, True],
    )
    return Detections.of(
        truth,
        boxes=[[5, 0, 100, 100], [0, 0, 100, 100], [310, 50, 40, 40], [320, 90, 40, 40], [0, 200, 30, 30]],
        score=[0.8, 0.9, 0.7, 0.6, 0.5],
        image=["street"] * 5,
        label=[0, 0, 0, 0, 1],
    )


def test_a_box_in_a_crowd_is_left_out_and_missed_objects_are_counted():
    pairs = match_pairs(small())
    assert pairs.rows.tolist() == [0, 1, 4]
    assert pairs.correct.tolist() == [False, True, False]  # the higher score takes the object
    assert pairs.objects == {"car": 1, "dog": 1}
    assert pairs.missed == {"car": 0, "dog": 1}
    assert pairs.overlap.tolist() == [0.0, 1.0, 0.0]


def test_pairs_have_the_image_as_unit_and_groups_and_signals_of_boxes():
    predictions = match_pairs(small(), by=("class", "size", "position")).predictions
    assert predictions.units.tolist() == [0, 0, 0]
    assert predictions.groups.by_column == {
        "class": ["car", "car", "dog"],
        "size": ["large", "large", "small"],
        "position": ["top left", "top left", "middle left"],
    }
    assert predictions.signals["cx"].tolist() == pytest.approx([55 / 400, 50 / 400, 15 / 400])
    assert predictions.signals["h"].tolist() == pytest.approx([0.25, 0.25, 30 / 400])


def test_of_several_thresholds_each_is_matched_by_itself():
    matching = match_boxes(small(), iou=(0.5, 0.95))
    assert matching.correct.sum(axis=1).tolist() == [1, 1]
    assert match_boxes(small(), iou=0.5, most=1).rows.tolist() == [1, 4]
