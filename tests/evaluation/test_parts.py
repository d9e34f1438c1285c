"""Parts of an evaluation: classes, margins, pairs of models, out-of-distribution samples."""

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.errors import InputError
from calibrant.evaluation import by_class, by_margin, detect_ood, paired_comparison
from calibrant.metrics import classwise_calibration_error
from tests.conftest import softmax


def test_rows_of_classes_are_frequencies_and_means(sample):
    probs, labels = sample
    rows = by_class(Predictions(probs=probs, labels=labels, class_names=list("abcd")))
    assert [row.name for row in rows] == list("abcd")
    for c, row in enumerate(rows):
        assert row.n == (labels == c).sum()
        assert row.mean_probability == pytest.approx(probs[:, c].mean())
        assert row.recall == pytest.approx((probs.argmax(axis=1)[labels == c] == c).mean())
    assert np.mean([row.ece for row in rows]) == pytest.approx(classwise_calibration_error(probs, labels))


def test_a_class_without_samples_has_no_recall():
    rows = by_class(Predictions(probs=[[0.5, 0.3, 0.2], [0.6, 0.3, 0.1]], labels=[0, 1]))
    assert np.isnan(rows[2].recall)
    assert rows[2].n == 0


def test_pairs_have_neither_classes_nor_margins():
    pairs = Predictions(confidence=[0.5, 0.6], correct=[True, False])
    with pytest.raises(InputError, match="^predictions: expected class probabilities with labels"):
        by_class(pairs)
    with pytest.raises(InputError, match="^predictions: expected logits with labels"):
        by_margin(pairs)


def test_weights_are_not_dropped_where_they_cannot_count():
    weighted = Predictions(logits=[[4.0, 0.0], [0.0, 3.0]], weights=[1, 2])
    with pytest.raises(InputError, match="^weights: expected none for out-of-distribution detection"):
        detect_ood(weighted, Predictions(logits=[[0.1, 0.0]]))


def test_a_model_does_not_differ_from_itself(overconfident):
    model = Predictions(logits=overconfident[0], labels=overconfident[1])
    result = paired_comparison(model, model, n_resamples=50, measures=["nll", "brier", "ece", "aurc"])
    assert all(found.difference == 0 for found in result.differences.values())
    assert all(found.p_value == 1 for found in result.differences.values())


def test_pairs_are_compared_by_measures_of_pairs():
    rng = np.random.default_rng(0)
    confidence = rng.random(300)
    correct = rng.random(300) < confidence
    a, b = (Predictions(confidence=c, correct=correct) for c in (confidence, confidence**0.3))
    result = paired_comparison(a, b, n_resamples=100)
    assert result.differences["ece"].difference < 0
    assert result.differences["brier"].value_a == pytest.approx(np.mean((confidence - correct) ** 2))
    assert result.differences["nll"].difference < 0
    assert result.skipped["classwise_ece"] == "needs class probabilities"


def test_logits_and_probabilities_can_be_compared(overconfident):
    logits, labels = overconfident
    a, b = Predictions(logits=logits, labels=labels), Predictions(probs=softmax(logits), labels=labels)
    found = paired_comparison(a, b, n_resamples=20, measures=["nll"]).differences["nll"]
    assert found.difference == pytest.approx(0, abs=1e-9)


def test_confidences_alone_detect_out_of_distribution_samples_by_confidence():
    known = Predictions(confidence=[0.9, 0.8], correct=[True, True])
    foreign = Predictions(confidence=[0.1, 0.85], correct=[False, False])
    assert detect_ood(known, foreign)["confidence"].auroc == 0.75
    with pytest.raises(InputError, match="expected the same form twice"):
        detect_ood(known, Predictions(logits=[[1.0, 0.0]]))


def test_probabilities_have_no_scores_of_logits():
    known, foreign = Predictions(probs=[[0.9, 0.1]]), Predictions(logits=[[0.1, 0.0]])
    assert set(detect_ood(known, foreign)) == {"msp", "softmax_margin", "negative_entropy"}
