"""Over- and underconfidence by both definitions, against plain loops."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.errors import InputError
from calibrant.metrics.binned import expected_calibration_error, overconfidence, underconfidence

PAIRS = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=30)


def loop_parts(pairs, n_bins):
    """Weighted gaps above and below the accuracy over right-closed bins."""
    over = under = 0.0
    for b in range(n_bins):
        inside = [(c, a) for c, a in pairs if b / n_bins < c <= (b + 1) / n_bins or (b == 0 and c == 0)]
        gap = math.fsum(c for c, _ in inside) - sum(a for _, a in inside)
        over, under = over + max(gap, 0) / len(pairs), under + max(-gap, 0) / len(pairs)
    return over, under


@pytest.mark.parametrize("n_bins", [1, 10, 15])
def test_binned_parts_are_those_of_the_loop(sample, n_bins):
    probs, labels = sample
    pairs = list(zip(probs.max(axis=1), probs.argmax(axis=1) == labels, strict=True))
    over, under = loop_parts(pairs, n_bins)
    assert overconfidence(probs, labels, n_bins=n_bins) == pytest.approx(over, abs=1e-12)
    assert underconfidence(probs, labels, n_bins=n_bins) == pytest.approx(under, abs=1e-12)


@pytest.mark.parametrize("binning", ["width", "mass"])
@settings(max_examples=60)
@given(pairs=PAIRS, n_bins=st.integers(1, 20), seed=st.integers(0, 100))
def test_binned_parts_add_up_to_the_calibration_error_in_any_order(binning, pairs, n_bins, seed):
    order = np.random.default_rng(seed).permutation(len(pairs))
    parts = []
    for rows in (pairs, [pairs[i] for i in order]):
        confidence, correct = zip(*rows, strict=True)
        arguments = {"confidence": confidence, "correct": correct, "n_bins": n_bins, "binning": binning}
        parts.append((overconfidence(**arguments), underconfidence(**arguments)))
        assert sum(parts[-1]) == pytest.approx(expected_calibration_error(**arguments), abs=1e-12)
        assert min(parts[-1]) >= 0
    assert parts[0] == pytest.approx(parts[1], abs=1e-12)


def test_conditional_means_are_those_of_wrong_and_of_right_predictions(sample):
    probs, labels = sample
    confidence, correct = probs.max(axis=1), probs.argmax(axis=1) == labels
    wrong = [c for c, a in zip(confidence, correct, strict=True) if not a]
    right = [1 - c for c, a in zip(confidence, correct, strict=True) if a]
    for arguments in ((probs, labels), (probs.astype(np.float32), labels)):
        assert overconfidence(*arguments, definition="conditional") == pytest.approx(np.mean(wrong), abs=1e-7)
        assert underconfidence(*arguments, definition="conditional") == pytest.approx(
            np.mean(right), abs=1e-7
        )


def test_conditional_parts_weigh_up_to_the_difference_of_mean_confidence_and_accuracy(sample):
    # conf - acc = (1 - acc) * over - acc * under, an identity of Wenger et al.
    probs, labels = sample
    accuracy = (probs.argmax(axis=1) == labels).mean()
    over, under = (f(probs, labels, definition="conditional") for f in (overconfidence, underconfidence))
    gap = probs.max(axis=1).mean() - accuracy
    assert (1 - accuracy) * over - accuracy * under == pytest.approx(gap, abs=1e-12)


def test_without_wrong_or_right_predictions_the_conditional_form_is_undefined():
    right = {"confidence": [0.8, 0.6], "correct": [True, True]}
    assert math.isnan(overconfidence(**right, definition="conditional"))
    assert underconfidence(**right, definition="conditional") == pytest.approx(0.3)
    assert (overconfidence(**right), underconfidence(**right)) == (0, pytest.approx(0.3))
    wrong = {"confidence": [0.75], "correct": [False]}
    assert overconfidence(**wrong, definition="conditional") == overconfidence(**wrong) == 0.75
    assert math.isnan(underconfidence(**wrong, definition="conditional"))
    assert underconfidence(**wrong) == 0


def test_a_constant_confidence_errs_in_one_direction():
    pairs = {"confidence": [0.7] * 4, "correct": [True, False, True, False]}
    assert (overconfidence(**pairs), underconfidence(**pairs)) == (pytest.approx(0.2), 0)


@pytest.mark.parametrize("function", [overconfidence, underconfidence])
def test_other_definitions_are_refused(function):
    with pytest.raises(InputError, match="^definition: expected 'binned' or 'conditional', got 'mean'"):
        function(confidence=[0.5], correct=[True], definition="mean")
    with pytest.raises(InputError, match="^arguments: expected either probs with labels"):
        function(confidence=[0.5])
