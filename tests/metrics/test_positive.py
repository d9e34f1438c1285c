"""The positive one of two classes, and classes in an order."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, precision_score, recall_score

from calibrant import Predictions, evaluate
from calibrant.decisions.sets import PredictionSets
from calibrant.errors import InputError
from calibrant.metrics import (
    average_precision,
    base_rate,
    calibration_intercept,
    calibration_slope,
    integrated_calibration_index,
    net_benefit,
    precision,
    ranked_probability_score,
    recall,
)


@pytest.fixture(scope="module")
def rare():
    """Probabilities of a rare class, with ties, whose log-odds are too extreme and too low."""
    rng = np.random.default_rng(0)
    p = rng.beta(0.5, 5, 3000).round(3).clip(0.001, 0.999)
    log_odds = np.log(p / (1 - p))
    return np.stack([1 - p, p], axis=1), (rng.random(3000) < 1 / (1 + np.exp(-0.7 * log_odds - 0.3))).astype(
        int
    )


def test_shares_are_those_of_scikit_learn(rare):
    probs, labels = rare
    p = probs[:, 1]
    assert base_rate(probs, labels) == pytest.approx(labels.mean())
    assert recall(probs, labels) == pytest.approx(recall_score(labels, p > 0.5))
    assert precision(probs, labels) == pytest.approx(precision_score(labels, p > 0.5))
    assert average_precision(probs, labels) == pytest.approx(average_precision_score(labels, p), abs=1e-12)


def test_the_slope_is_that_of_a_logistic_regression(rare):
    probs, labels = rare
    log_odds = np.log(probs[:, 1] / probs[:, 0])
    fitted = LogisticRegression(C=1e12, tol=1e-10).fit(log_odds[:, None], labels)
    assert calibration_slope(probs, labels) == pytest.approx(fitted.coef_[0, 0], abs=1e-3)


def test_the_intercept_makes_the_mean_probability_the_base_rate(rare):
    probs, labels = rare
    shift = calibration_intercept(probs, labels)
    shifted = 1 / (1 + np.exp(-np.log(probs[:, 1] / probs[:, 0]) - shift))
    assert shifted.mean() == pytest.approx(labels.mean(), abs=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_slope_is_undefined_exactly_where_probabilities_separate_the_outcomes(dtype):
    rng = np.random.default_rng(5)
    separated = 0
    for _ in range(200):
        p = (1 - 10.0 ** -rng.uniform(0, 9, rng.integers(3, 12))).astype(dtype)
        y = rng.random(len(p)) < 0.6
        s = np.log(q := p.astype(float).round(6).clip(1e-6, 1 - 1e-6)) - np.log1p(-q)
        slope = calibration_slope(confidence=p, correct=y)
        if y.all() or not y.any() or s[y].min() >= s[~y].max() or s[~y].min() >= s[y].max():
            separated += 1
            assert np.isnan(slope), (p, y)
        else:
            fitted = LogisticRegression(C=1e12, tol=1e-12, solver="newton-cholesky").fit(s[:, None], y)
            assert slope == pytest.approx(fitted.coef_[0, 0], rel=1e-4, abs=1e-6), (p, y)
    assert 0 < separated < 200


def test_the_intercept_is_that_of_the_definition_where_probabilities_are_0_and_1():
    rng = np.random.default_rng(6)
    for n in (5, 40, 300):
        p = np.append(rng.random(), rng.random(n - 1) < 0.5)
        y = np.arange(n) > 0 if n == 5 else np.arange(n) == 0
        s = np.log(q := p.round(6).clip(1e-6, 1 - 1e-6)) - np.log1p(-q)
        shift = calibration_intercept(confidence=p, correct=y)
        assert (1 / (1 + np.exp(-s - shift))).mean() == pytest.approx(y.mean(), abs=1e-9)


def test_net_benefit_counts_false_alarms_at_the_odds_of_the_threshold(rare):
    probs, labels = rare
    acts = probs[:, 1] >= 0.2
    by_hand = (acts & (labels == 1)).mean() - (acts & (labels == 0)).mean() * 0.2 / 0.8
    assert net_benefit(probs, labels, threshold=0.2) == pytest.approx(by_hand)
    with pytest.raises(InputError, match="threshold: expected a number between 0 and 1, got 1"):
        net_benefit(probs, labels, threshold=1)
    with pytest.raises(InputError, match="threshold: expected a positive number, got canonical"):
        net_benefit(probs, labels, threshold="canonical")


def test_the_calibration_index_is_the_distance_between_two_smooth_curves():
    rng = np.random.default_rng(1)
    p = rng.random(20_000)
    truth = 0.1 + 0.6 * p
    found = integrated_calibration_index(
        np.stack([1 - p, p], axis=1), (rng.random(20_000) < truth).astype(int)
    )
    assert found == pytest.approx(np.abs(truth - p).mean(), abs=0.01)


@pytest.mark.parametrize(
    "measure",
    [average_precision, calibration_slope, calibration_intercept, recall, integrated_calibration_index],
)
def test_a_weight_of_two_is_like_two_equal_samples(measure, rare):
    probs, labels = rare
    weights = np.where(np.arange(len(labels)) % 3 == 0, 2.0, 1.0)
    twice = np.repeat(np.arange(len(labels)), weights.astype(int))
    assert measure(probs, labels, weights=weights) == pytest.approx(
        measure(probs[twice], labels[twice]), abs=1e-9
    )


def test_the_smooth_curve_is_that_of_a_plain_loop(rare):
    probs, labels = rare[0][:200], rare[1][:200]
    p = probs[:, 1]
    points = np.unique(np.quantile(p, np.linspace(0, 1, 50), method="inverted_cdf"))
    curve = []
    for point in points:
        distance = np.abs(p - point)
        reach = 1.0001 * np.sort(distance)[int(np.ceil(0.75 * 200)) - 1]
        kernel = np.sqrt((1 - np.minimum(distance / reach, 1) ** 3) ** 3)
        a = np.stack([kernel, kernel * (p - point)], axis=1)
        curve.append(np.clip(np.linalg.lstsq(a, kernel * labels, rcond=None)[0][0], 0, 1))
    expected = np.abs(np.interp(p, points, curve) - p).mean()
    assert integrated_calibration_index(probs, labels) == pytest.approx(expected, abs=1e-9)


def test_two_classes_show_the_positive_one_and_others_do_not(rare):
    two = evaluate(Predictions(probs=rare[0], labels=rare[1]))
    assert two.metrics["recall"] == pytest.approx(recall(*rare))
    three = evaluate(Predictions(probs=[[0.2, 0.3, 0.5]] * 4, labels=[0, 1, 2, 2]))
    assert "recall" not in three.metrics
    assert "recall" not in three.skipped
    with pytest.raises(InputError, match="probs: expected two classes, got 3"):
        recall([[0.2, 0.3, 0.5]], [0])


def test_measures_of_one_outcome_are_undefined_or_zero():
    probs, labels = [[0.8, 0.2], [0.4, 0.6]], [0, 0]
    assert np.isnan(recall(probs, labels))
    assert np.isnan(average_precision(probs, labels))
    assert np.isnan(calibration_slope(probs, labels))
    assert np.isnan(calibration_intercept(probs, labels))
    assert np.isnan(precision([[0.5, 0.5]] * 3, [0, 1, 1]))


def test_the_ranked_score_is_that_of_the_definition():
    rng = np.random.default_rng(2)
    probs, labels = rng.dirichlet(np.ones(5), 50), rng.integers(5, size=50)
    by_hand = 0.0
    for row, label in zip(probs, labels, strict=True):
        for place in range(4):
            by_hand += (row[: place + 1].sum() - (label <= place)) ** 2 / 4 / 50
    assert ranked_probability_score(probs, labels) == pytest.approx(by_hand, abs=1e-12)


def test_sets_of_ordered_classes_cover_and_have_no_holes():
    rng = np.random.default_rng(3)
    probs = rng.dirichlet(np.full(6, 0.7), 4000)
    labels = (probs.cumsum(axis=1) < rng.random(4000)[:, None]).sum(axis=1)
    given = Predictions(probs=probs, labels=labels)
    rule = PredictionSets.fit(given.take(range(2000)), method="ordered", alpha=0.1)
    new = given.take(range(2000, 4000))
    sets, _ = rule(new.to_logits().double().log_softmax(dim=1))
    edges = (sets.int().diff(dim=1, prepend=torch.zeros(2000, 1, dtype=torch.int))).abs().sum(dim=1)
    assert int(edges.max()) <= 2  # in once, and out at most once
    assert rule.measure(new).coverage == pytest.approx(0.9, abs=0.03)
    plain = PredictionSets.fit(given.take(range(2000)), method="lac", alpha=0.1)
    holes, _ = plain(new.to_logits().double().log_softmax(dim=1))
    assert int(holes.int().diff(dim=1).abs().sum(dim=1).max()) > 2


def test_the_reliability_of_the_positive_class_is_shown_for_two_classes(rare):
    probs, labels = rare
    found = evaluate(Predictions(probs=probs, labels=labels), n_bins=10).positive
    inside = (probs[:, 1] > 0.1) & (probs[:, 1] <= 0.2)
    assert float(found.count[1]) == inside.sum()
    assert float(found.accuracy[1]) == pytest.approx(labels[inside].mean())
    assert float(found.confidence[1]) == pytest.approx(probs[inside, 1].mean())
    assert evaluate(Predictions(probs=[[0.2, 0.3, 0.5]] * 4, labels=[0, 1, 2, 2])).positive is None


@pytest.mark.parametrize(
    ("names", "ordered"), [(("1", "2", "10"), True), (("1", "10", "2"), False), (("a", "b", "c"), False)]
)
def test_numbers_as_class_names_point_to_measures_of_an_order(names, ordered):
    given = Predictions(probs=[[0.2, 0.3, 0.5]] * 4, labels=[0, 1, 2, 2], class_names=names)
    assert ("class names" in evaluate(given).remarks) is ordered
    assert "class names" not in evaluate(given, measures=["rps"]).remarks
