"""Decompositions against plain loops, scikit-learn's isotonic regression, and the scores they add up to."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from calibrant.errors import InputError
from calibrant.metrics.decomposition import decompose_brier, decompose_nll
from calibrant.metrics.proper import brier_score, negative_log_likelihood

FUNCTIONS = {"brier": decompose_brier, "nll": decompose_nll}
PAIRS = st.lists(
    st.tuples(st.floats(0.01, 0.99) | st.sampled_from([0.2, 0.5, 0.8]), st.booleans()),
    min_size=1,
    max_size=30,
)


def brier(forecast, outcome):
    return (forecast - outcome) ** 2


def nll(forecast, outcome):
    hit = forecast if outcome else 1 - forecast
    return -math.log(max(hit, 1e-6))


LOSSES = {"brier": brier, "nll": nll}


def mean_loss(loss, forecasts, outcomes):
    return math.fsum(loss(f, a) for f, a in zip(forecasts, outcomes, strict=True)) / len(outcomes)


def pool_adjacent_violators(pairs):
    """Recalibrate by the textbook algorithm: group equal forecasts, then merge while the rate falls."""
    blocks = []
    for value in sorted({f for f, _ in pairs}):
        outcomes = [a for f, a in pairs if f == value]
        blocks.append(([value], outcomes))
        while len(blocks) > 1 and np.mean(blocks[-2][1]) >= np.mean(blocks[-1][1]):
            (low, below), (high, above) = blocks[-2:]
            blocks[-2:] = [(low + high, below + above)]
    recalibrated = {value: sum(outcomes) / len(outcomes) for values, outcomes in blocks for value in values}
    return [recalibrated[f] for f, _ in pairs]


def random_pairs(seed, n=200, *, ties=False):
    rng = np.random.default_rng(seed)
    forecast = rng.random(n).round(1).clip(0.05, 0.95) if ties else rng.uniform(0.01, 0.99, n)
    return forecast, rng.random(n) < forecast**2


def assert_adds_up(parts):
    assert parts.calibration + parts.refinement + parts.remainder == pytest.approx(parts.score, abs=1e-12)
    assert parts.calibration - parts.resolution + parts.uncertainty + parts.remainder == pytest.approx(
        parts.score, abs=1e-12
    )


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("ties", [False, True])
def test_corp_is_the_gain_through_pooling_adjacent_violators(name, ties):
    forecast, outcome = random_pairs(1, ties=ties)
    loss = LOSSES[name]
    recalibrated = pool_adjacent_violators(list(zip(forecast.tolist(), outcome.tolist(), strict=True)))
    score, refined = (mean_loss(loss, f, outcome) for f in (forecast, recalibrated))
    base = mean_loss(loss, [outcome.mean()] * len(outcome), outcome)
    parts = FUNCTIONS[name](confidence=forecast, correct=outcome, method="corp")
    assert parts.score == pytest.approx(score, abs=1e-12)
    assert parts.refinement == pytest.approx(refined, abs=1e-12)
    assert parts.calibration == pytest.approx(score - refined, abs=1e-12)
    assert parts.uncertainty == pytest.approx(base, abs=1e-12)
    assert parts.resolution == pytest.approx(base - refined, abs=1e-12)
    assert parts.remainder == 0
    isotonic = IsotonicRegression().fit(forecast, outcome).predict(forecast)
    assert parts.refinement == pytest.approx(mean_loss(loss, isotonic.clip(0, 1), outcome), abs=1e-9)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("n_bins", [1, 4, 15])
def test_binned_parts_are_the_divergence_and_the_entropy_of_each_bin(name, n_bins):
    forecast, outcome = random_pairs(2)
    n, loss = len(outcome), LOSSES[name]

    def expected_loss(f, rate):
        return sum(share * loss(f, hit) for share, hit in ((rate, True), (1 - rate, False)) if share)

    calibration = refinement = 0.0
    for b in range(n_bins):
        inside = (b / n_bins < forecast) & (forecast <= (b + 1) / n_bins)
        if inside.any():
            mean, rate = forecast[inside].mean(), outcome[inside].mean()
            entropy = expected_loss(rate, rate)
            calibration += inside.sum() / n * (expected_loss(mean, rate) - entropy)
            refinement += inside.sum() / n * entropy
    parts = FUNCTIONS[name](confidence=forecast, correct=outcome, n_bins=n_bins)
    assert parts.calibration == pytest.approx(calibration, abs=1e-12)
    assert parts.refinement == pytest.approx(refinement, abs=1e-12)
    assert parts.score == pytest.approx(mean_loss(loss, forecast, outcome), abs=1e-12)
    assert parts.uncertainty == pytest.approx(expected_loss(outcome.mean(), outcome.mean()), abs=1e-12)
    assert_adds_up(parts)


def test_binned_brier_calibration_is_the_mean_squared_gap():
    parts = decompose_brier(confidence=[0.9, 0.9, 0.3, 0.3], correct=[1, 0, 0, 0], n_bins=10)
    assert parts.calibration == pytest.approx((0.4**2 + 0.3**2) / 2)
    assert parts.refinement == pytest.approx(0.25 / 2)
    assert parts.remainder == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("method", ["binned", "corp"])
@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=50)
@given(pairs=PAIRS, seed=st.integers(0, 100))
def test_parts_add_up_have_the_right_signs_and_ignore_the_order(name, method, pairs, seed):
    order = np.random.default_rng(seed).permutation(len(pairs))
    results = []
    for rows in (pairs, [pairs[i] for i in order]):
        forecast, outcome = zip(*rows, strict=True)
        parts = FUNCTIONS[name](confidence=forecast, correct=outcome, method=method)
        assert_adds_up(parts)
        assert parts.calibration >= 0
        assert parts.refinement >= 0
        assert parts.resolution >= -1e-12
        results.append((parts.score, parts.calibration, parts.refinement, parts.uncertainty, parts.remainder))
    assert results[0] == pytest.approx(results[1], abs=1e-12)


@pytest.mark.parametrize("method", ["binned", "corp"])
def test_classes_sum_to_the_brier_score(sample, method):
    probs, labels = sample
    parts = decompose_brier(probs, labels, method=method)
    assert parts.score == pytest.approx(brier_score(probs, labels), abs=1e-12)
    assert_adds_up(parts)
    shares = np.bincount(labels) / len(labels)
    assert parts.uncertainty == pytest.approx(1 - (shares**2).sum(), abs=1e-12)
    per_class = [
        decompose_brier(confidence=probs[:, c], correct=labels == c, method=method)
        for c in range(probs.shape[1])
    ]
    assert parts.calibration == pytest.approx(sum(p.calibration for p in per_class), abs=1e-12)


@pytest.mark.parametrize("method", ["binned", "corp"])
def test_two_classes_count_the_binary_brier_score_twice(method):
    forecast, outcome = random_pairs(3)
    both = decompose_brier(forecast, outcome.astype(int), method=method)
    one = decompose_brier(confidence=forecast, correct=outcome, method=method)
    assert both.score == pytest.approx(2 * one.score, abs=1e-12)
    assert both.calibration == pytest.approx(2 * one.calibration, abs=1e-12)


@pytest.mark.parametrize("method", ["binned", "corp"])
def test_nll_is_that_of_being_right_and_of_two_classes(overconfident, method):
    logits, labels = overconfident
    probs = torch.softmax(torch.tensor(logits) / 2, dim=1)
    parts = decompose_nll(probs, labels, method=method)
    assert_adds_up(parts)
    confidence, predicted = probs.max(dim=1)
    wrong = (predicted != torch.tensor(labels)).numpy()
    which = -np.log((probs[np.arange(len(labels)), labels] / (1 - confidence)).numpy()[wrong]).sum() / len(
        labels
    )
    assert negative_log_likelihood(probs, labels) == pytest.approx(parts.score + which, abs=1e-12)
    forecast, outcome = random_pairs(4)
    both = decompose_nll(forecast, outcome.astype(int), method=method)
    assert both.score == pytest.approx(negative_log_likelihood(forecast, outcome.astype(int)), abs=1e-12)


@pytest.mark.parametrize("method", ["binned", "corp"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_overconfident_model_loses_calibration_and_keeps_refinement(overconfident, name, method):
    logits, labels = (torch.tensor(x) for x in overconfident)
    confidence, predicted = torch.softmax(logits, dim=1).max(dim=1)
    correct = predicted == labels
    # Less confident, in the same order: only the calibration part may change, except for rounding and bins.
    sure, soft = (
        FUNCTIONS[name](confidence=c, correct=correct, method=method)
        for c in (confidence.clamp(max=1 - 1e-12), confidence * 0.8)
    )
    assert sure.calibration > 2 * soft.calibration
    assert sure.refinement == pytest.approx(soft.refinement, abs=0.02)
    if method == "corp":
        assert sure.refinement == pytest.approx(soft.refinement, abs=1e-12)


@pytest.mark.parametrize("method", ["binned", "corp"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_constant_base_rate_is_pure_uncertainty(name, method):
    for right in range(8):
        correct = [True] * right + [False] * (7 - right)
        parts = FUNCTIONS[name](confidence=[right / 7] * 7, correct=correct, method=method)
        assert parts.score == pytest.approx(parts.uncertainty)
        assert (parts.calibration, parts.resolution, parts.remainder) == pytest.approx((0, 0, 0), abs=1e-12)
        assert parts.calibration >= 0


@pytest.mark.parametrize("method", ["binned", "corp"])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("outcomes", [[True], [False], [True] * 3, [False] * 3])
def test_equal_outcomes_leave_calibration_only(name, method, outcomes):
    parts = FUNCTIONS[name](confidence=[0.6] * len(outcomes), correct=outcomes, method=method)
    assert parts.refinement == parts.uncertainty == 0
    assert parts.calibration == pytest.approx(parts.score, abs=1e-12)


@pytest.mark.parametrize("method", ["binned", "corp"])
def test_certain_and_right_forecasts_score_nothing(method):
    for function in FUNCTIONS.values():
        parts = function(confidence=[0.0, 1.0, 1.0], correct=[0, 1, 1], method=method)
        assert (parts.score, parts.calibration, parts.refinement, parts.remainder) == (0, 0, 0, 0)


@pytest.mark.parametrize("method", ["corp", "binned"])
def test_a_certain_forecast_that_fails_counts_as_in_the_nll(method):
    pairs = {"confidence": [1.0, 0.98, 0.4], "correct": [False, True, False]}
    classes = {"probs": [[1.0, 0.0], [0.98, 0.02], [0.4, 0.6]], "labels": [1, 0, 1]}
    for arguments in (pairs, classes):
        parts = decompose_nll(**arguments, method=method)
        assert parts.score == pytest.approx(negative_log_likelihood(**arguments), rel=1e-9)
        assert parts.calibration + parts.refinement + parts.remainder == pytest.approx(parts.score)


def test_a_bin_whose_mean_rounds_to_one_keeps_the_sum_finite():
    parts = decompose_nll(confidence=[1.0, 1.0, math.nextafter(1.0, 0.0)], correct=[True, True, False])
    assert math.isfinite(parts.score)
    assert_adds_up(parts)


def test_unknown_methods_are_refused():
    with pytest.raises(InputError, match="^method: expected 'binned' or 'corp', got 'kde'"):
        decompose_nll(confidence=[0.5], correct=[True], method="kde")
    with pytest.raises(InputError, match="^n_bins: expected a whole number of at least 1, got 0"):
        decompose_brier(confidence=[0.5], correct=[True], n_bins=0)
    for function in FUNCTIONS.values():
        with pytest.raises(InputError, match="got probs with confidence"):
            function([0.5], confidence=[0.5])
        with pytest.raises(InputError, match="pass them as logits"):
            function([[3.0, -2.0]], [0])
