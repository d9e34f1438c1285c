"""Measures of detectors, against pycocotools, netcal and their definitions as plain loops."""

import numpy as np
import pytest

from calibrant.boxes import match_pairs
from calibrant.boxes.evaluation import evaluate_boxes
from calibrant.boxes.matching import COCO_IOU
from calibrant.boxes.measures import (
    average_precision,
    detection_ece,
    localisation_ace,
    localisation_ece,
    with_misses,
)
from calibrant.evaluation import evaluate
from calibrant.metrics import aurc
from tests.boxes.random_boxes import random_case, with_pycocotools


@pytest.fixture(scope="module")
def pairs():
    return match_pairs(random_case(np.random.default_rng(5), images=40, most=6), by=("class", "size"))


@pytest.mark.parametrize("area", [None, (0.0, 32.0**2), (32.0**2, 96.0**2)])
def test_average_precision_is_that_of_pycocotools(area):
    place = {None: 0, (0.0, 32.0**2): 1, (32.0**2, 96.0**2): 2}[area]
    for seed in range(25):
        detections = random_case(np.random.default_rng(seed), images=6, most=5)
        theirs = with_pycocotools(detections, COCO_IOU, summary=True).eval["precision"][..., place, 0]
        expected = theirs[theirs > -1].mean() if (theirs > -1).any() else np.nan
        found = average_precision(detections, iou=COCO_IOU, area=area).value
        assert found == pytest.approx(expected, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize(("n_bins", "at_least"), [(5, 1), (3, 4), (10, 1)])
def test_d_ece_is_that_of_netcal(pairs, n_bins, at_least):
    netcal = pytest.importorskip("netcal.metrics")
    columns = [pairs.score, *(pairs.predictions.signals[name].numpy() for name in ("cx", "cy", "w", "h"))]
    columns = [np.clip(column, 0, 1) for column in columns]
    theirs = netcal.ECE(n_bins, detection=True, sample_threshold=at_least)
    expected = theirs.measure(np.stack(columns, axis=1), pairs.correct.astype(int))
    assert detection_ece(pairs, n_bins=n_bins, at_least=at_least).value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("loose", [False, True])
def test_laece_and_laace_are_their_definitions(pairs, loose):
    overlap = pairs.loose_overlap if loose else pairs.overlap
    label = pairs.detections.label[pairs.rows]
    binned, alone = [], []
    for c in np.unique(label):
        p, q = pairs.score[label == c], overlap[label == c]
        error = 0.0
        for low in np.arange(10) / 10:
            inside = (p >= low - 1e-9) & ((p < low + 0.1 - 1e-9) | (low > 0.85))
            if inside.any():
                error += inside.sum() / len(p) * abs(p[inside].mean() - q[inside].mean())
        binned.append(error)
        alone.append(np.mean([abs(a - b) for a, b in zip(p, q, strict=True)]))
    found = localisation_ece(pairs, n_bins=10, loose=loose).value
    assert found == pytest.approx(np.mean(binned), abs=1e-12)
    assert localisation_ace(pairs, loose=loose).value == pytest.approx(np.mean(alone), abs=1e-12)


def test_the_overlap_of_a_right_box_reaches_the_threshold_and_that_of_a_wrong_one_is_zero(pairs):
    assert (pairs.overlap[pairs.correct] >= 0.5).all()
    assert (pairs.overlap[~pairs.correct] == 0).all()
    assert (pairs.loose_overlap >= 0).all()


def test_missed_objects_are_wrong_answers_of_score_zero(pairs):
    extended = with_misses(pairs)
    missed = sum(pairs.missed.values())
    assert missed > 0
    assert extended.n == len(pairs.rows) + missed
    assert extended.units[len(pairs.rows) :].tolist() == pairs.missed_image.tolist()
    with_them = aurc(confidence=extended.confidence, correct=extended.correct)
    assert with_them > aurc(confidence=pairs.score, correct=pairs.correct)


@pytest.mark.parametrize(
    "measure",
    [
        detection_ece,
        localisation_ece,
        localisation_ace,
        lambda pairs: average_precision(pairs.detections, iou=0.5),
    ],
)
def test_a_measure_of_counts_is_that_of_images_that_are_there_so_often(measure):
    """An image that is counted twice is like two equal images; one that is counted never is not there."""
    rng = np.random.default_rng(3)
    case = random_case(rng, images=4, most=5)
    counts = np.array([2, 0, 1, 1])
    again = np.repeat(np.arange(4), counts)
    found = measure(match_pairs(case)).weighted.of(counts[None])[0]
    copies = []
    for place, image in enumerate(again):
        copies.append((place, np.flatnonzero(case.image == image), np.flatnonzero(case.truth.image == image)))
    truth = type(case.truth).of(
        images=range(len(again)),
        sizes=(100, 100),
        class_names=case.truth.class_names,
        boxes=np.concatenate([case.truth.boxes[things] for _, _, things in copies]),
        image=[place for place, _, things in copies for _ in things],
        label=np.concatenate([case.truth.label[things] for _, _, things in copies]).tolist(),
        crowd=np.concatenate([case.truth.crowd[things] for _, _, things in copies]),
    )
    rows = np.concatenate([each for _, each, _ in copies])
    of_row = [place for place, each, _ in copies for _ in each]
    repeated = type(case).of(
        truth, boxes=case.boxes[rows], score=case.score[rows], image=of_row, label=case.label[rows].tolist()
    )
    # Copies of a box tie, between which AP alone has steps that a count of two has not.
    expected = measure(match_pairs(repeated)).value
    assert found == pytest.approx(expected, abs=0.03 if measure.__name__ == "<lambda>" else 1e-12)


def test_intervals_contain_their_measure_and_shrink_with_more_images():
    wide, narrow = (
        detection_ece(match_pairs(random_case(np.random.default_rng(1), images=n, most=5))).interval()
        for n in (15, 240)
    )
    for each in (wide, narrow):
        assert each.low <= each.value <= each.high
    assert narrow.high - narrow.low < wide.high - wide.low


def test_an_evaluation_has_the_measures_of_pairs_of_boxes_and_of_classes(pairs):
    found = evaluate_boxes(pairs, intervals=True)
    assert found.full.evaluation.metrics == evaluate(pairs.predictions).metrics
    assert {"d_ece", "laece", "laece_0", "laace_0", "ap", "ap_50", "ap_small", "detection_aurc"} <= set(
        found.measures
    )
    assert all(each.interval is not None for name, each in found.measures.items() if name != "ap_large")
    assert [row.name for row in found.classes] == sorted(pairs.objects, key=lambda name: -pairs.objects[name])
    assert found.to_dict()["detector"]["classes"]["c0"]["missed"] == pairs.missed["c0"]
    assert f"{sum(pairs.missed.values()):,} of {sum(pairs.objects.values()):,} objects missed" in str(found)
    assert found.full.groups is not None
    assert {row.name for row in found.full.groups.rows} >= {"class=c0", "size=small"}
