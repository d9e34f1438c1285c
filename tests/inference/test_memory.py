"""Resamples of equal rows are drawn and measured once, and are those that would be drawn again."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from calibrant import Predictions, evaluate
from calibrant.evaluation import paired_comparison
from calibrant.inference import memory, with_interval
from calibrant.inference.memory import remembering
from calibrant.inference.rows import generator
from calibrant.inference.units import Units
from calibrant.metrics import aurc, expected_calibration_error


@pytest.fixture
def pairs():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, size=400)
    return {"confidence": confidence, "correct": rng.random(400) < confidence - 0.1}


@pytest.fixture
def draws(monkeypatch):
    """The number of times that units were drawn."""
    seen, draw = [], Units.draw_counts

    def counted(*given):
        seen.append(1)
        return draw(*given)

    monkeypatch.setattr(Units, "draw_counts", counted)
    return seen


@pytest.mark.parametrize("metric", [expected_calibration_error, aurc])
@pytest.mark.parametrize("units", [None, np.arange(400) // 3])
def test_a_remembered_interval_is_the_one_that_is_computed(metric, units, pairs):
    alone = with_interval(metric, **pairs, units=units, n_resamples=200)
    with remembering():
        first, second = (with_interval(metric, **pairs, units=units, n_resamples=200) for _ in range(2))
    assert first == second
    assert vars(first) == pytest.approx(vars(alone), rel=1e-12)


def test_equal_resamples_are_drawn_once(pairs, draws):
    with remembering():
        for metric in (expected_calibration_error, aurc):
            with_interval(metric, **pairs, n_resamples=100)
    assert len(draws) == 1


def test_other_rows_options_units_and_seeds_are_told_apart(pairs):
    others: list[dict] = [
        {},
        {"n_bins": 10},
        {"units": np.arange(400) // 3},
        {"seed": 1},
        {"n_resamples": 99},
    ]
    rows = [pairs, {**pairs, "confidence": pairs["confidence"] / 2}, {**pairs, "weights": np.arange(1, 401)}]

    def intervals():
        found = [
            with_interval(expected_calibration_error, **each, **({"n_resamples": 100} | other))
            for each in rows
            for other in others
        ]
        return [value for each in found for value in (each.low, each.high)]

    alone = intervals()
    with remembering():
        assert intervals() == pytest.approx(alone, rel=1e-12)
    assert len(set(alone[::2])) > len(others)


def test_the_random_numbers_go_on_as_after_drawing():
    drawn, after = [], []
    with remembering():
        for rng in (generator(3), generator(3), generator(4)):
            drawn.append(list(memory.continued("key", rng, partial(rng.random, size=5))))
            after.append(rng.random())
    expected = [generator(seed).random(6) for seed in (3, 3, 4)]
    assert [[*five, sixth] for five, sixth in zip(drawn, after, strict=True)] == [
        each.tolist() for each in expected
    ]


def test_nothing_is_remembered_outside(pairs, draws):
    for _ in range(2):
        evaluate(Predictions(**pairs), measures=["aurc"], intervals=True, n_resamples=50)
    assert len(draws) == 2


def test_a_comparison_of_models_measures_each_on_the_resamples_of_its_interval(pairs, draws):
    a = Predictions(**pairs)
    b = replace(a, confidence=a.confidence.sqrt())
    alone = paired_comparison(a, b, measures=["ece", "aurc"], n_resamples=100).differences
    draws.clear()
    with remembering():
        for each in (a, b):
            evaluate(each, measures=["ece", "aurc"], intervals=True, n_resamples=100)
        together = paired_comparison(a, b, measures=["ece", "aurc"], n_resamples=100).differences
    assert len(draws) == 1
    for name, found in together.items():
        assert vars(found) == pytest.approx(vars(alone[name]), rel=1e-12)
