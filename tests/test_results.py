"""Results cannot be changed, survive pickling, and become JSON without NaN."""

import copy
import json
import pickle

import numpy as np
import pytest

from calibrant import InputError, Predictions, evaluate
from calibrant.evaluation import (
    by_class,
    by_group,
    by_margin,
    compare,
    detect_ood,
    effect_of,
    make_choice,
    paired_comparison,
)
from calibrant.results import FrozenDict
from calibrant.streams.measures import StreamMeasures
from tests.conftest import draw


@pytest.fixture(scope="module")
def predictions():
    logits, labels = draw(200, 3, seed=0, sharpen=2.0)
    return Predictions(
        logits=logits, labels=labels, groups=np.where(labels == 0, "a", "b"), metadata={"model": "small"}
    )


@pytest.fixture(scope="module")
def comparison(predictions):
    return compare(predictions, methods=["uncalibrated", "temperature", "vector", "pool"], n_resamples=5)


@pytest.fixture(scope="module")
def results(predictions, comparison):
    choice, streamed = make_choice(comparison), StreamMeasures()
    streamed.update(predictions)
    return [
        evaluate(predictions, intervals=True, n_resamples=5),
        comparison,
        comparison["pool"],
        choice,
        effect_of(comparison, choice, predictions),
        paired_comparison(predictions, predictions, measures="core", n_resamples=5),
        by_group(predictions, measures="ece"),
        streamed.compute(),
    ]


def test_every_result_survives_pickling_and_becomes_json(results):
    for result in results:
        told = json.loads(result.to_json(), parse_constant=pytest.fail)
        assert told == result.to_dict()
        assert pickle.loads(pickle.dumps(result)).to_dict() == told
        assert copy.deepcopy(result).to_dict() == told


def test_parts_of_results_survive_pickling(predictions):
    for part in (
        predictions,
        by_class(predictions),
        by_margin(predictions),
        detect_ood(predictions, predictions),
    ):
        assert repr(pickle.loads(pickle.dumps(part))) == repr(part)


def test_json_has_the_numbers_of_the_result_and_null_for_what_is_undefined(results):
    evaluation, comparison = results[0].to_dict(), results[1].to_dict()
    assert evaluation["metrics"] == pytest.approx(dict(results[0].metrics))
    assert evaluation["intervals"]["ece"][0] == results[0].intervals["ece"].low
    assert list(comparison["methods"]) == ["uncalibrated", "temperature", "vector", "pool", "by_group"]
    assert comparison["methods"]["pool"]["weights"] == dict(results[1].pool.weights)
    assert comparison["methods"]["temperature"]["test"] is None
    all_right = evaluate(Predictions(confidence=[0.9, 0.8, 0.7], correct=[True] * 3))
    assert np.isnan(all_right.metrics["auroc_correct"])
    assert all_right.to_dict()["metrics"]["auroc_correct"] is None


def test_a_result_cannot_be_changed_but_its_copy_can(results):
    metrics = results[0].metrics
    assert json.loads(json.dumps(metrics)) == metrics
    for change in (
        lambda: metrics.update(ece=0),
        lambda: metrics.pop("ece"),
        lambda: metrics.__setitem__("ece", 0),
        lambda: metrics.clear(),
    ):
        with pytest.raises(TypeError, match="cannot be changed; make a copy"):
            change()
    assert (metrics | {"ece": 0.0})["ece"] == 0.0
    assert type(copy.copy(metrics)) is FrozenDict


def test_an_unknown_method_of_a_comparison_is_answered_with_those_that_are_there(predictions, comparison):
    with pytest.raises(
        InputError,
        match="^comparison: expected one of uncalibrated, temperature, vector, pool, by_group, got 'nope'$",
    ):
        comparison["nope"]
    with pytest.raises(InputError, match="got 'vecotr'; did you mean 'vector'\\?"):
        comparison["vecotr"]
    skipping = compare(predictions, methods=["uncalibrated", "proximity"], n_resamples=5)
    with pytest.raises(InputError, match="expected a fitted method, got 'proximity': features: expected"):
        skipping["proximity"]
