"""Scores on any scale and outcomes between 0 and 1: from what ranks to an honest probability."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.metrics import roc_auc_score

from calibrant import Predictions, compare, evaluate
from calibrant.decisions.thresholds import find_threshold
from calibrant.errors import InputError
from calibrant.evaluation.calibrated import calibrated, fit_named
from calibrant.evaluation.groups import by_group
from calibrant.posthoc import Calibrator, ScoreCalibrator


@pytest.fixture(scope="module")
def ranked():
    """Scores of a reranker, around 300, and outcomes whose log-odds rise with them."""
    rng = np.random.default_rng(0)
    score = rng.normal(300, 50, 1200)
    return score, rng.random(1200) < 1 / (1 + np.exp(-(score - 320) / 30))


@pytest.fixture(scope="module")
def graded():
    """Confidences, and outcomes of which a third are ties or means of raters."""
    rng = np.random.default_rng(1)
    confidence = rng.random(600).round(3) * 0.9 + 0.05
    outcome = (rng.random(600) < confidence).astype(float)
    outcome[::3] = rng.choice([0.25, 0.5, 0.75], 200)
    return confidence, outcome


def test_a_score_is_measured_by_its_order_alone(ranked):
    score, outcome = ranked
    found = evaluate(Predictions(score=score, outcome=outcome), measures="all")
    assert found.metrics["auroc_correct"] == pytest.approx(roc_auc_score(outcome, score), abs=1e-12)
    assert "ece" not in found.metrics
    assert "every other measure" in found.skipped
    order = np.argsort(-score)
    risks = np.cumsum(~outcome[order]) / np.arange(1, len(score) + 1)
    assert found.metrics["aurc"] == pytest.approx(risks.mean(), abs=1e-12)


def test_what_needs_a_probability_refuses_a_score_and_says_what_to_do(ranked):
    raw = Predictions(score=ranked[0], outcome=ranked[1])
    for ask in (raw.outcomes, lambda: find_threshold(raw, risk=0.1), lambda: by_group(raw)):
        with pytest.raises(InputError, match=r"score: expected confidences between 0 and 1|expected groups"):
            ask()
    with pytest.raises(InputError, match="find the middle of a score, got temperature"):
        compare(raw, methods=["temperature"])


def test_a_repaired_score_has_the_odds_that_made_the_outcomes(ranked):
    score, outcome = ranked
    raw = Predictions(score=score, outcome=outcome)
    found = compare(raw, methods=["platt", "isotonic"], n_resamples=100)
    assert [each.name for each in found.results] == ["platt", "isotonic"]
    platt = found.results[0]
    assert isinstance(platt.calibrator, ScoreCalibrator)
    honest = platt.calibrator.predict_confidence(np.array([290.0, 320.0, 350.0]))
    assert honest == pytest.approx(1 / (1 + np.exp([1.0, 0.0, -1.0])), abs=0.04)
    # The improvement is that over the mean outcome, which needs no score.
    rate = outcome.mean()
    entropy = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
    assert platt.improvement.difference == pytest.approx(platt.metrics["nll"] - entropy, abs=1e-9)


@pytest.mark.parametrize("method", ["platt", "beta", "isotonic_centred"])
def test_the_unit_of_a_score_does_not_matter(method, ranked):
    score, outcome = ranked
    one, other = (
        ScoreCalibrator.fit_scores(scaled, outcome[:400], method=method).predict_confidence(scaled)
        for scaled in (score[:400], 1000 * score[:400] - 7)
    )
    assert one == pytest.approx(other, abs=1e-6)


def test_a_saved_score_calibrator_answers_as_before(ranked, tmp_path):
    fitted = fit_named("platt", Predictions(score=ranked[0], outcome=ranked[1]))
    fitted.save(tmp_path / "honest.safetensors")
    loaded = Calibrator.load(tmp_path / "honest.safetensors")
    assert loaded.predict_confidence(ranked[0]) == pytest.approx(fitted.predict_confidence(ranked[0]))
    assert loaded(310.0) == pytest.approx(float(fitted.predict_confidence(np.array([310.0]))[0]))


def test_a_confidence_is_no_score_and_a_falling_score_no_rising_one(ranked):
    fitted = fit_named("platt", Predictions(score=ranked[0], outcome=ranked[1]))
    with pytest.raises(InputError, match="expected a score, which the calibrator was fitted on"):
        calibrated(fitted, Predictions(confidence=[0.5, 0.6]))
    with pytest.raises(InputError, match="rises with the outcome, as in the fit, got the reverse"):
        calibrated(fitted, Predictions(score=[-300.0, -310.0], metadata={"falling": "true"}))


def test_measures_of_graded_outcomes_are_those_of_the_definition(graded):
    confidence, outcome = graded
    found = evaluate(Predictions(confidence=confidence, outcome=outcome), n_bins=10)
    own = (outcome * (1 - outcome)).mean()
    assert found.metrics["brier"] == pytest.approx(((confidence - outcome) ** 2).mean() + own, abs=1e-12)
    likelihood = outcome * np.log(confidence) + (1 - outcome) * np.log(1 - confidence)
    assert found.metrics["nll"] == pytest.approx(-likelihood.mean(), abs=1e-6)
    ece = 0.0
    for place in range(10):
        inside = (confidence > place / 10) & (confidence <= (place + 1) / 10)
        ece += abs((confidence[inside] - outcome[inside]).sum()) / len(outcome)
    assert found.metrics["ece"] == pytest.approx(ece, abs=1e-12)
    assert found.metrics["accuracy"] == pytest.approx(outcome.mean(), abs=1e-12)
    assert (found.n, found.n_units, found.is_weighted) == (600, None, False)
    assert f"{own:.4f} of it is due to outcomes" in found.remarks["brier"]


def test_a_graded_sample_is_drawn_as_a_whole(graded):
    """The interval of the mean outcome is that of a mean of graded numbers."""
    confidence, outcome = graded
    tie = np.where(np.arange(600) % 2 == 0, 0.5, outcome.round())
    found = evaluate(
        Predictions(confidence=confidence, outcome=tie), measures=["accuracy"], intervals=True
    ).intervals["accuracy"]
    assert found.high - found.low == pytest.approx(2 * 1.96 * tie.std() / math.sqrt(600), rel=0.15)


def test_fits_maximise_the_fractional_likelihood(graded):
    confidence, outcome = graded
    fitted = fit_named("platt", Predictions(confidence=confidence, outcome=outcome))
    s = np.log(confidence / (1 - confidence))

    def loss(parameters):
        z = parameters[0] * s + parameters[1]
        return (np.logaddexp(0, z) - outcome * z).mean()

    slope, intercept = minimize(loss, [1.0, 0.0], tol=1e-12).x
    expected = 1 / (1 + np.exp(-(slope * s + intercept)))
    assert np.asarray(fitted.predict_confidence(confidence)) == pytest.approx(expected, abs=2e-3)


def test_a_comparison_keeps_samples_with_graded_outcomes_together(graded):
    confidence, outcome = graded
    rows = Predictions(confidence=confidence, outcome=outcome)
    found = compare(rows, methods=["platt", "isotonic"], n_resamples=100)
    assert (found.n_validation, found.n_units) == (600, None)
    held_out = found.results[0].held_out
    places, last = rows.first_parts(), held_out.n - 1
    both = torch.tensor([place for place in places.tolist() if place < last])
    same = held_out.units[both] == held_out.units[both + 1]
    assert bool(same.any())
    torch.testing.assert_close(held_out.confidence[both][same], held_out.confidence[both + 1][same])


def test_soft_labels_are_distributions_over_classes():
    rng = np.random.default_rng(2)
    shares = rng.dirichlet([0.5] * 4, 300)
    logits = 2 * np.log(shares + 0.1) + rng.normal(size=(300, 4))
    soft = Predictions(logits=logits, labels=shares)
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    found = evaluate(soft)
    assert found.n == 300
    assert found.metrics["nll"] == pytest.approx(-(shares * log_probs).sum(axis=1).mean(), abs=1e-9)
    top = log_probs.argmax(axis=1)
    assert found.metrics["accuracy"] == pytest.approx(shares[np.arange(300), top].mean(), abs=1e-9)
    scaled = fit_named("temperature", soft)
    inverse = minimize(lambda b: _soft_loss(b[0] * logits, shares), [1.0], tol=1e-12).x[0]
    assert 1 / float(scaled.temperature) == pytest.approx(inverse, rel=1e-4, abs=1e-4)


def _soft_loss(logits, shares):
    log_probs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    return -(shares * log_probs).sum(axis=1).mean()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"score": [1.0, math.inf], "outcome": [0, 1]}, "score: expected finite numbers, got inf in row 1"),
        ({"score": [1.0, 2.0], "outcome": [0, 1.2]}, "outcome: expected numbers between 0 and 1, got 1.2"),
        ({"score": [1.0, 2.0], "outcome": [0]}, "outcome: expected"),
        ({"score": [1.0], "confidence": [0.5]}, "expected exactly one of logits, probs, confidence"),
        ({"score": [1.0], "labels": [0]}, "labels: expected none next to score"),
        ({"score": [1.0], "signals": {"x": [1.0]}}, "signals: expected none beside a score"),
        ({"confidence": [0.5], "correct": [1], "outcome": [1]}, "expected exactly one of"),
        ({"logits": [[0.0, 1.0]], "labels": [[0.7, 0.2]]}, "labels: expected"),
    ],
)
def test_bad_scores_and_outcomes_get_one_sentence(given, sentence):
    with pytest.raises(InputError, match=sentence.replace("(", r"\(")):
        Predictions(**given)


def test_equal_scores_cannot_be_repaired():
    with pytest.raises(InputError, match="at least two different scores, got 3 in all 40 rows"):
        compare(Predictions(score=[3.0] * 40, outcome=[0, 1] * 20))


def test_a_guarantee_on_wrong_answers_needs_yes_or_no(graded):
    with pytest.raises(InputError, match="outcome: expected yes or no for a guarantee"):
        find_threshold(Predictions(confidence=graded[0], outcome=graded[1]), risk=0.2)


def test_the_table_of_a_score_speaks_of_outcomes_not_of_accuracy():
    shown = str(evaluate(Predictions(score=[1.0, 2.0, 3.0, 4.0], outcome=[0, 1, 0, 1])))
    assert "mean outcome" in shown
    assert "accuracy" not in shown
    assert "correctness" not in shown


def test_outcomes_that_are_all_the_same_say_nothing_about_a_score():
    with pytest.raises(InputError, match="outcome: expected some that came true .* got 1 in all 30 rows"):
        compare(Predictions(score=np.arange(30.0), outcome=np.ones(30)), methods=["platt"])
