"""Calibration within groups of the logit margin."""

import numpy as np
import pytest

from calibrant import metrics
from calibrant.errors import InputError
from tests.conftest import softmax


def test_groups_hold_equal_counts_and_the_measures_of_their_samples(overconfident):
    logits, labels = overconfident
    slices = metrics.margin_slices(logits, labels, n_groups=4, measures={"brier": metrics.brier_score})
    assert [part.n for part in slices] == [1000] * 4
    top = np.sort(logits, axis=1)
    margin = top[:, -1] - top[:, -2]
    for part in slices[1:]:
        inside = (margin > part.low) & (margin <= part.high)
        assert inside.sum() == part.n
        expected = metrics.brier_score(softmax(logits[inside]), labels[inside])
        assert part.metrics["brier"] == pytest.approx(expected, abs=1e-12)


def test_weighted_accuracies_add_up_to_the_whole(overconfident):
    logits, labels = overconfident
    slices = metrics.margin_slices(logits, labels, n_groups=7)
    total = sum(part.n * part.metrics["accuracy"] for part in slices) / len(labels)
    assert total == pytest.approx((logits.argmax(axis=1) == labels).mean())


def test_equal_margins_share_a_group():
    slices = metrics.margin_slices([[1.0, 0.0]] * 5 + [[2.0, 0.0]], [0] * 6, n_groups=3)
    assert [(part.n, part.high) for part in slices] == [(5, 1.0), (1, 2.0)]


def test_zero_groups_are_refused():
    with pytest.raises(InputError, match="^n_groups: expected a whole number of at least 1, got 0"):
        metrics.margin_slices([[1.0, 0.0]], [0], n_groups=0)
