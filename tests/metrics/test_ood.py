"""Out-of-distribution measures against scikit-learn, with and without ties."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from calibrant.errors import InputError
from calibrant.metrics.ood import OODScores, ood_scores

SCORES = st.lists(st.floats(-100, 100, width=16) | st.sampled_from([-1.0, 0.0, 1.0]), min_size=1, max_size=40)


def by_scikit_learn(known, foreign):
    truth = np.append(np.ones(len(known)), np.zeros(len(foreign)))
    score = np.append(known, foreign)
    fpr, tpr, _ = roc_curve(truth, score, drop_intermediate=False)
    return OODScores(
        auroc=roc_auc_score(truth, score),
        aupr_in=average_precision_score(truth, score),
        aupr_out=average_precision_score(1 - truth, -score),
        fpr95=fpr[tpr >= 0.95].min(),
    )


def assert_same(ours, theirs):
    for name in ("auroc", "aupr_in", "aupr_out", "fpr95"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), abs=1e-12), name


@pytest.mark.parametrize("digits", [None, 1, 0])
@pytest.mark.parametrize(("n", "m"), [(500, 300), (20, 1000), (1000, 7)])
def test_equals_scikit_learn(n, m, digits):
    rng = np.random.default_rng(n)
    known, foreign = rng.normal(1, 1, n), rng.normal(0, 1.5, m)
    if digits is not None:
        known, foreign = known.round(digits), foreign.round(digits)
    assert_same(ood_scores(known, foreign), by_scikit_learn(known, foreign))


@settings(max_examples=100)
@given(SCORES, SCORES)
def test_equals_scikit_learn_on_small_samples_and_stays_a_fraction(known, foreign):
    ours = ood_scores(known, foreign)
    assert_same(ours, by_scikit_learn(known, foreign))
    assert all(0 <= value <= 1 for value in (ours.auroc, ours.aupr_in, ours.aupr_out, ours.fpr95))
    assert ood_scores(known[::-1], sorted(foreign)) == ours


def test_complete_separation_is_perfect_and_reversed_separation_useless():
    assert ood_scores([3.0, 2.0], [1.0, 0.0]) == OODScores(1.0, 1.0, 1.0, 0.0)
    reversed_ = ood_scores([1.0, 0.0], [3.0, 2.0])
    assert (reversed_.auroc, reversed_.fpr95) == (0, 1)


def test_equal_scores_pass_together():
    assert ood_scores([0.5] * 3, [0.5]) == OODScores(0.5, 0.75, 0.25, 1.0)
    assert ood_scores([1.0], [1.0]) == OODScores(0.5, 0.5, 0.5, 1.0)


def test_exactly_ninety_five_percent_are_enough():
    known = [1.0] * 19 + [-1.0]
    assert ood_scores(known, [0.0]).fpr95 == 0
    assert ood_scores(known[1:], [0.0]).fpr95 == 1  # 18 of 19 are fewer


def test_the_two_sides_may_have_different_types():
    assert ood_scores(torch.tensor([0.1]), np.array([0.1])).auroc == 1  # float32 rounds 0.1 up
    assert ood_scores([2, 3], torch.tensor([1.0])).auroc == 1


@pytest.mark.parametrize(
    ("known", "foreign", "message"),
    [
        ([], [1.0], "^in_scores: expected at least one sample"),
        ([1.0], [], "^out_scores: expected at least one sample"),
        ([1.0, math.nan], [1.0], "^in_scores: expected finite numbers, got nan in row 1"),
        ([1.0], [-math.inf], "^out_scores: expected finite numbers, got -inf in row 0"),
        ([[1.0]], [1.0], r"^in_scores: expected shape \(n,\), got shape \(1, 1\)"),
        (["a"], [1.0], "^in_scores: expected numbers, got strings"),
    ],
)
def test_invalid_scores_are_refused_in_one_sentence(known, foreign, message):
    with pytest.raises(InputError, match=message) as caught:
        ood_scores(known, foreign)
    assert "\n" not in str(caught.value)
