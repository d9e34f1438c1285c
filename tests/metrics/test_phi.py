"""Post-hoc improvement: its sign, its scale, and the cases without a denominator."""

import math

import numpy as np
import pytest
from sklearn.metrics import log_loss

from calibrant.errors import InputError
from calibrant.metrics.proper import post_hoc_improvement
from tests.conftest import softmax

CERTAIN = [[1.0, 0.0], [0.0, 1.0]]


@pytest.fixture
def tables(overconfident):
    logits, labels = overconfident
    return softmax(logits), softmax(logits / 3), labels


def test_is_the_share_of_the_score_that_calibration_removed(tables):
    before, after, labels = tables
    losses = [log_loss(labels, p) for p in (before, after)]
    assert post_hoc_improvement(before, after, labels) == pytest.approx(1 - losses[1] / losses[0], abs=1e-12)
    assert post_hoc_improvement(before, after, labels, relative=False) == pytest.approx(
        losses[0] - losses[1], abs=1e-12
    )
    one_hot = np.eye(5)[labels]
    brier = [((p - one_hot) ** 2).sum(axis=1).mean() for p in (before, after)]
    assert post_hoc_improvement(before, after, labels, score="brier") == pytest.approx(
        1 - brier[1] / brier[0], abs=1e-12
    )


@pytest.mark.parametrize("score", ["nll", "brier"])
def test_improvement_is_positive_damage_negative_and_no_change_zero(tables, score):
    before, after, labels = tables
    assert 0 < post_hoc_improvement(before, after, labels, score=score) < 1
    assert post_hoc_improvement(after, before, labels, score=score) < 0
    assert post_hoc_improvement(before, before, labels, score=score) == 0


def test_giving_up_discrimination_is_no_improvement(tables):
    _, calibrated, labels = tables
    constant = np.tile(np.bincount(labels) / len(labels), (len(labels), 1))
    assert post_hoc_improvement(calibrated, constant, labels) < 0


@pytest.mark.parametrize("score", ["nll", "brier"])
def test_a_perfect_score_cannot_be_improved(score):
    assert post_hoc_improvement(CERTAIN, CERTAIN, [0, 1], score=score) == 0
    assert post_hoc_improvement(CERTAIN, [0.25, 0.75], [0, 1], score=score) == -math.inf
    assert post_hoc_improvement([0.25, 0.75], CERTAIN, [0, 1], score=score) == 1


def test_a_true_class_of_probability_zero_can_be_mended_and_spoiled():
    soft = [0.25, 0.75]
    before, after = math.log(1e12), math.log(4 / 3)
    assert post_hoc_improvement(CERTAIN, [0.75, 0.25], [1, 0]) == pytest.approx((before - after) / before)
    assert post_hoc_improvement(soft, CERTAIN, [1, 1]) < 0
    assert post_hoc_improvement(CERTAIN, CERTAIN, [1, 1]) == 0


def test_refuses_other_scores_and_tables_of_another_length():
    with pytest.raises(InputError, match="^score: expected 'nll' or 'brier', got 'ece'"):
        post_hoc_improvement([0.5], [0.5], [1], score="ece")
    with pytest.raises(InputError, match="^labels: expected 2 entries, one per prediction, got 1"):
        post_hoc_improvement([0.5], [0.5, 0.5], [1])
