"""Confidence and correctness of the predicted class."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibrant.errors import InputError
from calibrant.outcomes import Outcomes, check_outcomes
from tests.rounding import assert_equal_up_to_rounding


def test_the_first_of_equally_probable_classes_is_predicted():
    outcomes = check_outcomes([[0.5, 0.5], [0.5, 0.5]], [0, 1])
    assert outcomes.correct.tolist() == [True, False]
    assert outcomes.confidence.tolist() == [0.5, 0.5]


def test_logits_keep_the_order_of_samples_that_float32_calls_certain():
    logits = torch.tensor([[18.0, 0.0], [20.0, 0.0], [22.0, 0.0]])
    assert len(torch.softmax(logits, dim=1).amax(dim=1).unique()) < 3
    assert len(Outcomes.from_logits(logits, torch.zeros(3, dtype=torch.int64)).confidence.unique()) == 3


def test_blocks_of_rows_change_nothing(monkeypatch):
    logits = torch.randn(100, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(100) % 5
    whole = Outcomes.from_logits(logits, labels)
    monkeypatch.setattr("calibrant.outcomes.rows_in_cache", lambda _: 7)
    parts = Outcomes.from_logits(logits, labels)
    assert_equal_up_to_rounding(whole.confidence, parts.confidence)
    assert torch.allclose(whole.confidence, torch.softmax(logits.double(), dim=1).amax(dim=1), atol=1e-12)


@given(
    st.lists(st.tuples(st.floats(0, 1, width=32), st.booleans()), min_size=1, max_size=40),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_sorting_is_that_of_python(pairs, dtype):
    confidence, correct = zip(*pairs, strict=True)
    outcomes = Outcomes(torch.tensor(confidence, dtype=dtype), torch.tensor(correct)).sorted()
    assert list(zip(outcomes.confidence.tolist(), outcomes.correct.tolist(), strict=True)) == sorted(pairs)
    assert outcomes.confidence.dtype == dtype


def test_sorting_leaves_its_input_alone_and_knows_negative_zero():
    values = np.array([0.5, -0.0, 0.0])
    ordered = check_outcomes(confidence=values, correct=[True, True, False]).sorted()
    assert ordered.confidence.tolist() == [0.0, 0.0, 0.5]
    assert values.tolist() == [0.5, 0.0, 0.0]


@pytest.mark.parametrize(
    ("arguments", "given_names"),
    [
        ({}, "none of them"),
        ({"probs": [[0.5, 0.5]]}, "probs"),
        ({"confidence": [0.5], "labels": [0]}, "labels with confidence"),
        (
            {"probs": [[0.5, 0.5]], "labels": [0], "confidence": [0.5], "correct": [1]},
            "probs with labels with",
        ),
    ],
)
def test_probabilities_and_confidences_are_never_mixed(arguments, given_names):
    with pytest.raises(InputError, match=f"expected either probs with labels or .*, got {given_names}"):
        check_outcomes(**arguments)
