"""Quality where there are no labels: estimates that hold, intervals that cover, changes that are noticed."""

import json

import numpy as np
import pytest
from scipy.special import ndtr

from calibrant import InputError, Predictions
from calibrant.data import LabelPredictions, load_bundled
from calibrant.decisions import estimate_quality
from calibrant.decisions.expected import _chi_square, _largest_step, _terms
from calibrant.evaluation import calibrated, evaluate
from calibrant.evaluation.calibrated import fit_named
from calibrant.metrics import brier_score, risk_at_coverage
from calibrant.posthoc import Identity, TemperatureScaling
from tests.conftest import draw, softmax


def predictions(n, seed, *, sharpen=1.0, k=4):
    logits, labels = draw(n, k, seed=seed, sharpen=sharpen)
    return Predictions(logits=logits, labels=labels)


def as_pairs(given):
    outcomes = given.outcomes()
    return Predictions(confidence=outcomes.confidence, correct=outcomes.correct)


@pytest.fixture(scope="module")
def bundled():
    return {name: load_bundled(f"cifar10_{name}") for name in ("val", "test", "test_noise")}


@pytest.mark.parametrize("form", [lambda each: each, as_pairs], ids=["classes", "pairs"])
def test_on_the_bundled_test_set_it_is_right_and_under_noise_it_warns(bundled, form):
    method = ["temperature"] if form(bundled["val"]).k else ["platt"]
    good = estimate_quality(form(bundled["val"]), form(bundled["test"]), methods=method)
    truth = evaluate(bundled["test"], measures=["accuracy"]).metrics["accuracy"]
    assert good.accuracy.low < truth < good.accuracy.high
    assert good.accuracy.high - good.accuracy.low < 0.03
    assert good.trusted
    noisy = estimate_quality(form(bundled["val"]), form(bundled["test_noise"]), methods=method)
    assert not noisy.trusted
    assert noisy.change.p_value <= 0.002
    assert (
        noisy.accuracy.value - evaluate(bundled["test_noise"], measures=["accuracy"]).metrics["accuracy"]
        > 0.1
    )


def test_terms_are_expectations_over_labels_drawn_from_the_probabilities():
    p = softmax(np.random.default_rng(0).normal(size=(6, 3)))
    terms = _terms(Predictions(probs=p))
    for row, (given, c, variance) in enumerate(zip(p, terms.confidence, terms.hit_variance, strict=True)):
        scores = [sum((given[j] - (j == y)) ** 2 for j in range(3)) for y in range(3)]
        mean = sum(given[y] * scores[y] for y in range(3))
        assert c == pytest.approx(given.max())
        assert variance == pytest.approx(c * (1 - c))
        assert terms.expected_brier[row] == pytest.approx(mean)
        assert terms.brier_variance[row] == pytest.approx(
            sum(given[y] * (scores[y] - mean) ** 2 for y in range(3))
        )
    c = np.array([0.9, 0.3])
    pairs = _terms(Predictions(confidence=c, correct=[True, False]))
    np.testing.assert_allclose(pairs.expected_brier, c * (1 - c) ** 2 + (1 - c) * c**2)
    means = c * (1 - c)
    np.testing.assert_allclose(
        pairs.brier_variance, c * ((1 - c) ** 2 - means) ** 2 + (1 - c) * (c**2 - means) ** 2
    )
    np.testing.assert_allclose(pairs.brier, [0.01, 0.09])


def test_a_given_calibrator_is_used_and_what_it_leaves_is_corrected():
    labelled, rows = predictions(4000, 0, sharpen=3.0), predictions(4000, 1, sharpen=3.0)
    raw = estimate_quality(labelled, rows, calibrator=Identity())
    truth = evaluate(rows, measures=["accuracy", "brier"]).metrics
    # The model's own confidence is far too high; the labelled samples show by how much.
    assert float(rows.outcomes().confidence.mean()) > truth["accuracy"] + 0.1
    assert raw.accuracy.low < truth["accuracy"] < raw.accuracy.high
    assert raw.brier.low < truth["brier"] < raw.brier.high
    assert raw.method == "Identity"
    fitted = TemperatureScaling(3.0)
    good = estimate_quality(labelled, rows, calibrator=fitted)
    assert good.brier.value == pytest.approx(
        brier_score(calibrated(fitted, rows).to_probs(), rows.labels), abs=0.03
    )
    # Calibrated confidences explain more of the hits.
    assert good.accuracy.high - good.accuracy.low < raw.accuracy.high - raw.accuracy.low


def test_the_curve_is_the_mean_doubt_of_the_surest_corrected_by_the_labelled_ones():
    labelled, rows = predictions(300, 0), predictions(200, 1)
    found = estimate_quality(labelled, rows, calibrator=Identity())
    ours, theirs = labelled.outcomes(), rows.outcomes()
    assert found.risk.coverage[-1] == 1
    for place in (9, 49, 90):
        threshold = found.risk.threshold[place]
        accepted, known = theirs.confidence >= threshold, ours.confidence >= threshold
        doubt = float((1 - theirs.confidence[accepted]).mean())
        gap = float((ours.confidence - ours.correct.double())[known].mean())
        assert found.risk.coverage[place] == pytest.approx(float(accepted.double().mean()))
        assert found.risk.risk[place] == pytest.approx(np.clip(doubt + gap, 0, 1))
    assert found.risk.risk[-1] == pytest.approx(1 - found.accuracy.value)
    assert found.risk.at(1.0).low == pytest.approx(1 - found.accuracy.high, abs=2e-3)
    known = np.isfinite(found.risk.low)
    assert known.mean() > 0.95
    assert (found.risk.low <= found.risk.risk)[known].all()
    assert (found.risk.risk <= found.risk.high)[known].all()


def test_the_curve_covers_the_true_one():
    labelled, rows = predictions(3000, 0, sharpen=2.0), predictions(3000, 1, sharpen=2.0)
    found = estimate_quality(labelled, rows, methods=["temperature"])
    repaired = calibrated(TemperatureScaling.fit(labelled.logits, labelled.labels), rows)
    for coverage in (0.2, 0.5, 0.8, 1.0):
        truth = risk_at_coverage(repaired.to_probs(), rows.labels, coverage=coverage)
        each = found.risk.at(coverage)
        assert each.low - 0.01 <= truth <= each.high + 0.01


def test_more_confident_rows_than_any_labelled_one_have_no_band():
    labelled = Predictions(probs=[[0.6, 0.4]] * 50, labels=[0, 1] * 25)
    rows = Predictions(probs=[[0.9, 0.1]] * 50 + [[0.6, 0.4]] * 50)
    found = estimate_quality(labelled, rows, calibrator=Identity())
    assert np.isnan(found.risk.low[0])
    assert np.isfinite(found.risk.risk).all()
    assert json.loads(found.to_json())["risk"]["low"][0] is None
    assert list(found.risk.coverage) == [0.5, 1.0]


@pytest.mark.slow
def test_intervals_cover_and_the_tests_seldom_warn_without_a_change():
    covered, warned = [], []
    for seed in range(60):
        labelled, rows = predictions(300, 2 * seed, sharpen=2.0), predictions(200, 2 * seed + 1, sharpen=2.0)
        found = estimate_quality(labelled, rows, calibrator=TemperatureScaling(2.0), seed=seed)
        truth = float(rows.outcomes().correct.double().mean())
        covered.append(found.accuracy.low <= truth <= found.accuracy.high)
        warned.append(not found.trusted)
    assert np.mean(covered) >= 0.9
    assert np.mean(warned) <= 0.13


def test_a_change_of_predicted_classes_alone_is_noticed():
    rows = predictions(4000, 0)
    guessed = rows.logits.argmax(dim=1)
    fewer = rows.take((guessed.numpy() != 2) | (np.arange(4000) % 4 == 0))
    found = estimate_quality(predictions(3000, 1), fewer, calibrator=Identity())
    assert found.change.class_p_value == 0.001
    assert found.change.grown in {"0", "1", "3"}
    assert not found.trusted


def test_statistics_are_their_definitions():
    one, two = np.array([3, 0, 5, 2]), np.array([1, 4, 5, 0])
    steps = np.abs(np.cumsum(one) / 10 - np.cumsum(two) / 10)
    assert _largest_step(one, one + two) == pytest.approx(steps.max())
    from scipy.stats import chi2_contingency

    expected = chi2_contingency(np.stack([one, two]), correction=False).statistic
    # Equal sets: the statistic of both parts is twice that of one, whose expected counts are half of all.
    assert 4 * _chi_square(one, one + two) == pytest.approx(expected)


def test_what_makes_no_sense_is_refused_in_one_sentence():
    labelled, rows = predictions(100, 0), predictions(100, 1)
    several = LabelPredictions(probs=[[0.5, 0.5]] * 50, labels=[[1, 0]] * 50)
    cases = {
        "labelled: expected the class of each sample, or": (Predictions(logits=rows.logits), rows),
        "labelled: expected the class of each sample, or whether": (
            Predictions(confidence=[0.5] * 50),
            Predictions(confidence=[0.5] * 50),
        ),
        "unlabelled: expected scores of 4 classes, as in labelled, got scores of 3 classes": (
            labelled,
            predictions(100, 0, k=3),
        ),
        "unlabelled: expected scores of 4 classes, as in labelled, got confidences": (
            labelled,
            as_pairs(rows),
        ),
        "labelled: expected at least 20 samples, got 10": (labelled.take(np.arange(10)), rows),
        "unlabelled: expected at least 20 samples, got 10": (labelled, rows.take(np.arange(10))),
        "labelled: expected one label for each sample": (several, several),
        "weights: expected none for an estimate": (
            Predictions(logits=rows.logits, labels=rows.labels, weights=np.arange(100)),
            rows,
        ),
    }
    for sentence, (one, two) in cases.items():
        with pytest.raises(InputError, match=f"^{sentence}"):
            estimate_quality(one, two)
    for options, sentence in (
        ({"level": 0}, "level: expected a number between 0 and 1, got 0"),
        ({"alpha": 1.0}, "alpha: expected a number between 0 and 1, got 1.0"),
        ({"seed": -1}, "seed: expected a whole number"),
        ({"methods": ["temprature"]}, ".*did you mean 'temperature'"),
    ):
        with pytest.raises(InputError, match=f"^{sentence}"):
            estimate_quality(labelled, rows, **options)


def correlated_pairs(n_units, size, seed):
    """Calibrated confidences; those of a unit, and whether its answers are right, agree most of the time."""
    rng = np.random.default_rng(seed)
    units = np.repeat(np.arange(n_units), size)

    def uniform():
        common, own = rng.normal(size=n_units)[units], rng.normal(size=n_units * size)
        return ndtr(np.sqrt(0.9) * common + np.sqrt(0.1) * own)

    confidence = 0.5 + uniform() / 2
    return Predictions(confidence=confidence, correct=uniform() < confidence, units=units)


def test_units_of_one_row_change_no_estimate():
    labelled, unlabelled = as_pairs(predictions(200, 0)), as_pairs(predictions(150, 1))
    calibrator = fit_named("platt", labelled)
    plain = estimate_quality(labelled, unlabelled, calibrator=calibrator)
    alone = (each.replaced(units=np.arange(each.n)[::-1].copy()) for each in (labelled, unlabelled))
    assert estimate_quality(*alone, calibrator=calibrator).to_dict() == plain.to_dict()


@pytest.mark.slow
def test_estimates_by_unit_cover_and_the_tests_seldom_warn_where_rows_are_too_sure():
    calibrator = fit_named("platt", as_pairs(predictions(2000, 0)))
    covered, warned = np.zeros(4), np.zeros(2)
    for seed in range(30):
        labelled, unlabelled = correlated_pairs(60, 5, seed), correlated_pairs(100, 3, 1000 + seed)
        truth = float(unlabelled.correct.double().mean())
        surest = unlabelled.confidence.argsort(descending=True)[:150]
        wrong = 1 - float(unlabelled.correct[surest].double().mean())
        for place, units in enumerate((True, False)):
            given = (each if units else each.replaced(units=None) for each in (labelled, unlabelled))
            found = estimate_quality(*given, calibrator=calibrator)
            covered[place] += found.accuracy.low <= truth <= found.accuracy.high
            risk = found.risk.at(0.5)
            covered[2 + place] += risk.low <= wrong <= risk.high
            warned[place] += not found.trusted
    # Of 30 intervals of 95 %, fewer than 26 cover with a probability of 1 in 60.
    assert covered[[0, 2]].min() >= 26
    assert covered[1] <= 22
    assert covered[3] < covered[2]
    assert warned[0] <= 5 < warned[1]


def test_an_estimate_names_the_units_of_both_sets():
    calibrator = fit_named("platt", as_pairs(predictions(500, 0)))
    table = estimate_quality(
        correlated_pairs(60, 5, 0), correlated_pairs(100, 3, 1), calibrator=calibrator
    ).to_table()
    assert "300 predictions of 100 units without labels" in str(table.title)
    assert "on 300 labelled of 60 units" in str(table)
    with pytest.raises(InputError, match="labelled: expected at least 20 units, got 19"):
        estimate_quality(correlated_pairs(19, 5, 0), correlated_pairs(100, 3, 1), calibrator=calibrator)
