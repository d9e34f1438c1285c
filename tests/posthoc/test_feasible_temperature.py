"""Temperatures that can give a wanted confidence: the bounds hold and are reached."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import softmax

from calibrant.errors import InputError
from calibrant.posthoc.feasible_temperature import feasible_temperatures


def needed_temperature(logits, confidence):
    return brentq(lambda t: softmax(logits / t).max() - confidence, 1e-3, 1e3)


@pytest.mark.parametrize("confidence", [0.3, 0.5, 0.8, 0.99])
def test_the_temperature_that_is_needed_lies_within_the_bounds(confidence):
    rng = np.random.default_rng(0)
    for _ in range(200):
        logits = rng.normal(size=6) * 3
        top = np.sort(logits)
        interval = feasible_temperatures([top[-1] - top[-2]], confidence=confidence, n_classes=6)
        assert (
            interval.lowest[0] - 1e-9 <= needed_temperature(logits, confidence) <= interval.highest[0] + 1e-9
        )


def test_the_bounds_are_reached():
    crowd = np.array([2.0, 0, 0, 0, 0])
    duel = np.array([2.0, 0, -1e4, -1e4, -1e4])
    interval = feasible_temperatures(np.array([2.0]), confidence=0.8, n_classes=5)
    assert interval.lowest[0] == pytest.approx(needed_temperature(crowd, 0.8))
    assert interval.highest[0] == pytest.approx(needed_temperature(duel, 0.8))


def test_two_classes_leave_one_temperature():
    interval = feasible_temperatures([1.0, 3.0], confidence=0.9, n_classes=2)
    assert interval.lowest == pytest.approx(interval.highest)
    assert interval.lowest == pytest.approx([1 / math.log(9), 3 / math.log(9)])


def test_a_confidence_of_half_or_less_has_no_upper_bound():
    assert feasible_temperatures([1.0], confidence=0.5, n_classes=3).highest == [math.inf]


@pytest.mark.parametrize(
    ("margins", "options", "message"),
    [
        ([1.0], {"confidence": 1.0}, "^confidence: expected a number between 1/2 and 1, got 1.0"),
        (
            [1.0],
            {"confidence": 0.1, "n_classes": 10},
            "^confidence: expected a number between 1/10 and 1, got",
        ),
        ([-1.0], {"confidence": 0.9}, "^margins: expected finite numbers of at least 0"),
        (
            [1.0],
            {"confidence": 0.9, "n_classes": 1},
            "^n_classes: expected a whole number of at least 2, got 1",
        ),
    ],
)
def test_arguments_are_checked(margins, options, message):
    with pytest.raises(InputError, match=message):
        feasible_temperatures(margins, **options)
