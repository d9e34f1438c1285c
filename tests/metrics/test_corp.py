"""CORP reliability is isotonic regression, with scikit-learn as the second opinion."""

import numpy as np
import pytest
import torch
from sklearn.isotonic import IsotonicRegression

from calibrant.metrics import corp_reliability, decompose_brier


def test_it_is_isotonic_regression_of_hits_on_confidence(sample):
    probs, labels = sample
    found = corp_reliability(probs, labels)
    confidence, correct = probs.max(axis=1), probs.argmax(axis=1) == labels
    reference = IsotonicRegression().fit(confidence, correct)
    at = np.unique(confidence)
    np.testing.assert_allclose(found.at(torch.from_numpy(at)), reference.predict(at), atol=1e-12)
    assert int(found.count.sum()) == len(labels)


def test_groups_rise_and_do_not_overlap(sample):
    found = corp_reliability(*sample)
    assert (found.accuracy.diff() > 0).all()
    assert (found.low <= found.high).all()
    assert (found.low[1:] > found.high[:-1]).all()


def test_the_parts_are_those_of_the_brier_score(sample):
    probs, labels = sample
    said = {"confidence": probs.max(axis=1), "correct": probs.argmax(axis=1) == labels}
    parts = corp_reliability(**said).parts
    assert parts == decompose_brier(**said, method="corp")
    assert parts.score == pytest.approx(parts.calibration - parts.resolution + parts.uncertainty)


def test_beyond_the_ends_the_curve_is_level():
    found = corp_reliability(confidence=[0.4, 0.6], correct=[False, True])
    assert found.at(torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)).tolist() == pytest.approx([0, 0.5, 1])


def test_one_confidence_is_one_group():
    found = corp_reliability(confidence=[0.5] * 4, correct=[1, 1, 1, 0])
    assert (found.low.tolist(), found.accuracy.tolist(), found.count.tolist()) == ([0.5], [0.75], [4])
