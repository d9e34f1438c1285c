"""Best, and not significantly worse: marks that follow from a paired test."""

import numpy as np
import pytest

from calibrant import Predictions, evaluate
from calibrant.report.columns import columns
from tests.conftest import draw

pytestmark = pytest.mark.slow(traced=True)


@pytest.fixture(scope="module")
def models():
    logits, labels = draw(1500, 4, sharpen=1.0)
    rng = np.random.default_rng(0)
    noise = 1e-4 * rng.normal(size=logits.shape)
    scores = {"honest": logits, "nearly": logits + noise, "sharp": 4 * logits}
    return {name: Predictions(logits=each, labels=labels) for name, each in scores.items()}


def test_the_best_is_marked_and_so_is_what_chance_explains(models):
    metrics = {name: dict(evaluate(each).metrics) for name, each in models.items()}
    for column in columns(["nll", "brier", "ece"], metrics, models):
        assert column.tested
        assert set(column.best) | set(column.near) == {"honest", "nearly"}, column.name
        top = min(metrics, key=lambda name: metrics[name][column.name])
        assert column.best == (top,)


def test_higher_is_better_for_accuracy_and_equals_share_the_mark(models):
    metrics = {name: dict(evaluate(each).metrics) for name, each in models.items()}
    (column,) = columns(["accuracy"], metrics, models)
    assert {"honest", "sharp"} <= set(column.best) | set(column.near)
    assert metrics[column.best[0]]["accuracy"] == max(each["accuracy"] for each in metrics.values())


def test_without_predictions_of_all_nothing_is_tested(models):
    metrics = {name: dict(evaluate(each).metrics) for name, each in models.items()}
    (column,) = columns(["nll"], metrics, {"honest": models["honest"]})
    assert (column.tested, column.near) == (False, ())
    assert column.best


def test_what_has_no_better_direction_is_not_marked(models):
    metrics = {name: dict(evaluate(each).metrics) for name, each in models.items()}
    (column,) = columns(["mean_confidence"], metrics, models)
    assert column.best == column.near == ()
