"""The ROC curve of detection, with scikit-learn as the second opinion."""

import numpy as np
import pytest
from sklearn.metrics import roc_curve

from calibrant import InputError
from calibrant.metrics import ood_curve, ood_scores


@pytest.fixture
def scores():
    rng = np.random.default_rng(0)
    return rng.normal(1, 1, 300).round(1), rng.normal(0, 1, 200).round(1)  # rounded, so that there are ties


def test_every_threshold_is_a_point(scores):
    known, foreign = scores
    curve = ood_curve(known, foreign)
    is_known = np.r_[np.ones(len(known)), np.zeros(len(foreign))]
    passed, kept, _ = roc_curve(is_known, np.r_[known, foreign], drop_intermediate=False)
    np.testing.assert_allclose(curve.passed, passed)
    np.testing.assert_allclose(curve.kept, kept)


def test_the_area_below_is_the_auroc(scores):
    curve = ood_curve(*scores)
    assert np.trapezoid(curve.kept, curve.passed) == pytest.approx(curve.scores.auroc)
    assert curve.scores == ood_scores(*scores)


def test_fewer_points_keep_both_ends_and_lie_on_the_curve(scores):
    every, few = ood_curve(*scores), ood_curve(*scores, max_points=10)
    assert len(few.kept) <= 10
    assert (float(few.kept[0]), float(few.passed[0])) == (0, 0)
    assert (float(few.kept[-1]), float(few.passed[-1])) == (1, 1)
    points = set(zip(every.passed.tolist(), every.kept.tolist(), strict=True))
    assert set(zip(few.passed.tolist(), few.kept.tolist(), strict=True)) <= points


def test_scores_must_be_numbers():
    with pytest.raises(InputError, match="out_scores"):
        ood_curve([1.0, 2.0], [float("nan")])
    with pytest.raises(InputError, match="max_points"):
        ood_curve([1.0, 2.0, 3.0], [1.0], max_points=1)
