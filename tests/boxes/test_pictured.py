"""What pictures of a detector show, beside a plain loop."""

import numpy as np
import pytest

from calibrant.boxes import match_pairs
from calibrant.boxes.pictured import by_threshold, gaps_by_place
from tests.boxes.random_boxes import detector


@pytest.fixture(scope="module")
def pairs():
    return match_pairs(detector(0, images=40))


def test_gaps_are_means_over_the_boxes_of_each_part(pairs):
    found = gaps_by_place(pairs, cells=3)
    errors = {}
    for row, score, right in zip(pairs.rows, pairs.score, pairs.correct, strict=True):
        left, top, width, height = pairs.detections.boxes[row]
        place = int((top + height / 2) / 200 * 3), int((left + width / 2) / 220 * 3)
        errors.setdefault(place, []).append(score - right)
    for place in np.ndindex(3, 3):
        assert found.n[place] == len(errors.get(place, []))
        assert found.gap[place] == pytest.approx(np.mean(errors.get(place, [np.nan])), nan_ok=True)


def test_thresholds_keep_boxes_and_find_objects(pairs):
    found = by_threshold(pairs, steps=10)
    for threshold, precision, share in zip(found.threshold, found.precision, found.found, strict=True):
        kept = [right for score, right in zip(pairs.score, pairs.correct, strict=True) if score >= threshold]
        assert precision == pytest.approx(np.mean(kept))
        assert share == pytest.approx(sum(kept) / sum(pairs.objects.values()))


def test_precision_from_a_threshold_has_an_interval_that_draws_images(pairs):
    found = by_threshold(pairs, steps=4, intervals=True)
    images, rng = pairs.detections.image[pairs.rows], np.random.default_rng(0)
    for threshold, precision, low, high in zip(
        found.threshold, found.precision, found.low, found.high, strict=True
    ):
        drawn = []
        for _ in range(1000):
            picked = rng.integers(40, size=40)
            rows = np.concatenate(
                [np.flatnonzero((images == i) & (pairs.score >= threshold)) for i in picked]
            )
            drawn.append(pairs.correct[rows].mean())
        assert low < precision < high
        # Of few images the bootstrap shows too little, which widens the interval.
        assert high - low == pytest.approx(np.diff(np.quantile(drawn, [0.025, 0.975]))[0], rel=0.15)
