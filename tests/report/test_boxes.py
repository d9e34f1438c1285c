"""The part of the report about a detector."""

import re

import numpy as np
import pytest
from PIL import Image

from calibrant.boxes import average_precision, match_pairs
from calibrant.errors import InputError
from calibrant.report.boxes import with_boxes
from calibrant.report.describe import compare_files
from calibrant.report.page import page_from_json, page_to_json
from calibrant.report.sources import Sources
from calibrant.report.write import render
from tests.boxes.random_boxes import random_case

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pairs():
    return match_pairs(random_case(np.random.default_rng(2), images=30, most=5))


@pytest.fixture(scope="module")
def page(pairs):
    return compare_files({"found.json": pairs.predictions}, Sources("found.json"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    for place in range(30):
        Image.new("RGB", (200, 200), (place, 90, 120)).save(folder / f"{place}.png")
    return folder


def test_the_panel_has_measures_classes_maps_and_thresholds_before_and_after(page, pairs):
    panel = with_boxes(page, pairs, after=pairs.score / 2).boxes
    assert [line.missed for line in panel.classes] == [pairs.missed[line.name] for line in panel.classes]
    ap = next(line for line in panel.measures if line.title == "AP, overlap from 0.5")
    assert ap.value == pytest.approx(average_precision(pairs.detections, iou=0.5).value)
    assert ap.low <= ap.value <= ap.high
    for found, score in zip(panel.maps, (pairs.score, pairs.score / 2), strict=True):
        gap = sum(cell.n * cell.gap for cell in found.cells) / len(pairs.rows)
        assert gap == pytest.approx((score - pairs.correct).mean())
    for curve, score in zip(panel.curves, (pairs.score, pairs.score / 2), strict=True):
        threshold = curve.threshold[10]
        kept = score >= threshold
        assert curve.precision[10] == pytest.approx(pairs.correct[kept].mean())
        assert curve.found[10] == pytest.approx(pairs.correct[kept].sum() / sum(pairs.objects.values()))
    for group in panel.groups:
        assert sum(n for _, _, n in group.bins[0]) == group.n


def test_the_worst_boxes_are_wrong_ones_of_the_highest_scores_drawn_from_pictures(page, pairs, pictures):
    drawn = with_boxes(page, pairs, pictures=pictures)
    wrong = np.sort(pairs.score[~pairs.correct])[::-1]
    scores = [float(re.search(r"score (0\.\d+|1\.00)", each.caption)[1]) for each in drawn.boxes.worst]
    assert scores == pytest.approx(wrong[:20].round(2))
    html = render(drawn)
    assert html.count("data:image/jpeg;base64,") == len(scores)
    assert "Where in the image" in html


def test_the_page_is_the_same_after_it_was_saved(page, pairs):
    whole = with_boxes(page, pairs, after=pairs.score / 2)
    assert render(page_from_json(page_to_json(whole))) == render(whole)


def test_missing_pictures_are_one_sentence(page, pairs, tmp_path):
    with pytest.raises(InputError, match=r"^images: expected a folder of pictures, got "):
        with_boxes(page, pairs, pictures=tmp_path / "none")
    with pytest.raises(InputError, match=r"^images: expected a picture of each image, got none named "):
        with_boxes(page, pairs, pictures=tmp_path)
