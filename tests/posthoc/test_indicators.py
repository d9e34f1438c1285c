"""Indicators: each is what its name says."""

import pytest
import torch
from scipy.stats import entropy

from calibrant.errors import InputError
from calibrant.posthoc.fitting.indicators import INDICATORS, check_indicator, indicator_values, margin

LOGITS = torch.tensor([[3.0, 1.0, 2.5], [1.0, 1.0, 0.0], [-1.0, 4.0, 0.5]], dtype=torch.float64)


def test_the_margin_separates_the_two_largest():
    assert margin(LOGITS).tolist() == [0.5, 0.0, 3.5]


def test_indicators_are_those_of_the_definitions():
    probs = torch.softmax(LOGITS, dim=1)
    expected = {
        "margin": [0.5, 0.0, 3.5],
        "entropy": entropy(probs, axis=1),
        "confidence": probs.max(dim=1).values.tolist(),
        "max_logit": [3.0, 1.0, 4.0],
        "max_minus_mean": [3 - 6.5 / 3, 1 - 2 / 3, 4 - 3.5 / 3],
    }
    for name, values in expected.items():
        assert indicator_values(name, LOGITS).squeeze(1).tolist() == pytest.approx(list(values))
    assert torch.equal(indicator_values("logits", LOGITS), LOGITS)
    assert set(expected) | {"logits"} == set(INDICATORS)


def test_an_unknown_indicator_is_named():
    with pytest.raises(InputError, match="^indicator: expected one of margin, .*, got 'shape'"):
        check_indicator("shape")
