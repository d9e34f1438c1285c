"""Best, and not significantly worse: marks that follow from a paired test."""

import numpy as np
import pytest
import torch

from calibrant import Predictions, evaluate
from calibrant.evaluation.paired import paired_comparison
from calibrant.metrics.names import MEASURES
from calibrant.report.columns import can_test, compared_measures, to_test
from tests.conftest import at_length, draw

pytestmark = pytest.mark.slow


TESTED = [name for name, measure in MEASURES.items() if can_test(measure) and measure.min_classes <= 4]


@pytest.fixture(scope="module")
def models():
    logits, labels = draw(1500, 4, sharpen=1.0)
    rng = np.random.default_rng(0)
    noise = 1e-4 * rng.normal(size=logits.shape)
    scores = {"honest": logits, "nearly": logits + noise, "sharp": 4 * logits}
    return {name: Predictions(logits=each, labels=labels) for name, each in scores.items()}


def samples(models):
    found = {name: evaluate(each, measures=TESTED).metrics for name, each in models.items()}
    return {name: to_test(each, each.outcomes(), found[name]) for name, each in models.items()}


def test_the_best_is_marked_and_so_is_what_chance_explains(models):
    metrics = {name: dict(evaluate(each).metrics) for name, each in models.items()}
    for column in compared_measures(["nll", "brier", "ece"], metrics, samples(models)):
        assert column.tested
        assert set(column.best) | set(column.near) == {"honest", "nearly"}, column.name
        top = min(metrics, key=lambda name: metrics[name][column.name])
        assert column.best == (top,)


def test_higher_is_better_for_accuracy_and_equals_share_the_mark(models):
    metrics = {name: dict(evaluate(each).metrics) for name, each in models.items()}
    (column,) = compared_measures(["accuracy"], metrics, samples(models))
    assert {"honest", "sharp"} <= set(column.best) | set(column.near)
    assert metrics[column.best[0]]["accuracy"] == max(each["accuracy"] for each in metrics.values())


def test_without_predictions_of_all_nothing_is_tested(models):
    metrics = {name: dict(evaluate(each).metrics) for name, each in models.items()}
    (column,) = compared_measures(["nll"], metrics, samples({"honest": models["honest"]}))
    assert (column.tested, column.near) == (False, ())
    assert column.best


def test_what_has_no_better_direction_is_not_marked(models):
    metrics = {name: dict(evaluate(each).metrics) for name, each in models.items()}
    (column,) = compared_measures(["mean_confidence"], metrics, samples(models))
    assert column.best == column.near == ()


# From ten thousand samples on, counts of bins are drawn instead of rows.
@pytest.mark.parametrize(
    ("n", "form"),
    at_length([(300, "logits"), (300, "probs"), (300, "mixed"), (10_100, "mixed")], [(300, "mixed")]),
)
def test_the_tests_of_all_candidates_at_once_are_those_of_each_pair(n, form):
    logits, labels = (torch.from_numpy(each) for each in draw(n, 4, seed=3))
    noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0))
    scores = {"a": logits, "b": 1.02 * logits, "c": logits + 0.05 * noise, "d": 0.7 * logits}
    models = {
        name: Predictions(probs=each.softmax(1), labels=labels)
        if form == "probs" or (form == "mixed" and name == "b")
        else Predictions(logits=each, labels=labels)
        for name, each in scores.items()
    }
    metrics = {name: dict(evaluate(each, measures=TESTED).metrics) for name, each in models.items()}
    found = compared_measures(TESTED, metrics, samples(models), seed=5)
    n_near = 0
    for column in found:
        for other, p_value in column.p_values.items():
            pair = paired_comparison(models[other], models[column.best[0]], measures=[column.name], seed=5)
            assert p_value == pytest.approx(pair.differences[column.name].p_value, abs=1e-12)
            assert (other in column.near) == (p_value >= 0.05)
            n_near += other in column.near
    assert 0 < n_near < sum(len(column.p_values) for column in found)


def test_confidences_without_classes_are_tested_too():
    hits = np.arange(600) % 4 > 0
    models = {
        name: Predictions(confidence=np.full(600, value), correct=hits)
        for name, value in (("right", 0.75), ("sure", 0.99))
    }
    metrics = {name: dict(evaluate(each, measures=["ece"]).metrics) for name, each in models.items()}
    (column,) = compared_measures(["ece"], metrics, samples(models))
    assert (column.best, column.near, column.tested) == (("right",), (), True)
