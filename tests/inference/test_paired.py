"""Paired comparisons: signs, sizes and power, on models that are equal or different by construction."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from calibrant.errors import InputError
from calibrant.inference.intervals import with_interval
from calibrant.inference.paired import paired_difference, swap_p_value
from calibrant.inference.units import Units
from calibrant.metrics import (
    accuracy,
    auroc_correctness,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
    top_label_bins,
)
from calibrant.metrics.names import MEASURES

pytestmark = pytest.mark.usefixtures("one_thread")


def models(n, rng, *, spoil=0.0):
    """Return the probabilities of two noisy models, the second one sharper by a factor, and labels."""
    logits = rng.normal(size=(n, 3)) * 2
    labels = (softmax(logits).cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    a, b = logits + 0.7 * rng.normal(size=(2, n, 3))
    return softmax(a), softmax((1 + spoil) * b), labels


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def as_outcomes(a, b, labels):
    return {
        "a": a.max(axis=1),
        "b": b.max(axis=1),
        "correct_a": a.argmax(axis=1) == labels,
        "correct_b": b.argmax(axis=1) == labels,
    }


@pytest.mark.parametrize("metric", [brier_score, accuracy, expected_calibration_error])
def test_swapping_the_models_flips_the_sign(metric):
    a, b, labels = models(200, np.random.default_rng(0), spoil=1.0)
    one = paired_difference(metric, a, b, labels, n_resamples=200)
    other = paired_difference(metric, b, a, labels, n_resamples=200)
    assert (one.difference, one.low, one.high) == pytest.approx(
        (-other.difference, -other.high, -other.low), abs=1e-12
    )
    assert (one.value_a, one.value_b) == (other.value_b, other.value_a)
    assert one.p_value == other.p_value


@pytest.mark.parametrize("metric", [negative_log_likelihood, expected_calibration_error])
@pytest.mark.parametrize("n", [50, 40_000])
def test_a_model_does_not_differ_from_itself(metric, n):
    a, _, labels = models(n, np.random.default_rng(0))
    found = paired_difference(metric, a, a.copy(), labels, n_resamples=20)
    assert (found.difference, found.low, found.high, found.p_value) == (0.0, 0.0, 0.0, 1.0)


def test_values_are_those_of_the_measure_and_their_difference():
    a, b, labels = models(300, np.random.default_rng(0), spoil=1.0)
    found = paired_difference(expected_calibration_error, a, b, labels, n_resamples=50, n_bins=5)
    assert found.value_a == expected_calibration_error(a, labels, n_bins=5)
    assert found.value_b == expected_calibration_error(b, labels, n_bins=5)
    assert found.difference == found.value_a - found.value_b
    assert found.low < found.difference < found.high


def test_terms_are_drawn_as_rows_are():
    a, b, labels = models(300, np.random.default_rng(0), spoil=1.0)
    fast = paired_difference(brier_score, a, b, labels, n_resamples=100)
    plain = paired_difference(lambda p, y: brier_score(p, y), a, b, labels, n_resamples=100)
    assert dataclasses.astuple(fast) == pytest.approx(dataclasses.astuple(plain), abs=1e-12)


def test_confidences_with_hits_give_what_probabilities_give():
    a, b, labels = models(300, np.random.default_rng(0), spoil=0.3)
    for metric in (accuracy, expected_calibration_error):
        by_probs = paired_difference(metric, a, b, labels, n_resamples=50)
        assert paired_difference(metric, **as_outcomes(a, b, labels), n_resamples=50) == by_probs


def test_logits_are_read_as_logits():
    a, b, labels = models(300, np.random.default_rng(0), spoil=0.3)
    by_probs = paired_difference(negative_log_likelihood, a, b, labels)
    by_logits = paired_difference(negative_log_likelihood, np.log(a), np.log(b), labels, reads="logits")
    assert dataclasses.astuple(by_logits) == pytest.approx(dataclasses.astuple(by_probs), abs=1e-9)


def test_the_interval_agrees_with_scipy_and_is_narrower_than_the_models_own():
    a, b, labels = models(200, np.random.default_rng(0), spoil=0.5)
    found = paired_difference(brier_score, a, b, labels, n_resamples=4000)
    terms = [brier_score(a[i : i + 1], [y]) - brier_score(b[i : i + 1], [y]) for i, y in enumerate(labels)]
    theirs = stats.bootstrap(
        (terms,), np.mean, n_resamples=4000, method="percentile", rng=np.random.default_rng(1)
    )
    assert (found.low, found.high) == pytest.approx(
        tuple(theirs.confidence_interval), abs=0.15 * theirs.standard_error
    )
    alone = with_interval(brier_score, b, labels)
    assert found.high - found.low < alone.high - alone.low


@pytest.mark.parametrize("metric", [brier_score, negative_log_likelihood, accuracy])
def test_equally_good_models_rarely_differ_significantly(metric):
    rng = np.random.default_rng(0)
    p_values = np.array(
        [
            paired_difference(metric, *models(150, rng), n_resamples=199, seed=seed).p_value
            for seed in range(250)
        ]
    )
    rejected = int((p_values <= 0.05).sum())
    assert stats.binomtest(rejected, 250, 0.06).pvalue > 0.001
    if metric is not accuracy:  # which has few distinct differences
        assert stats.kstest(p_values, "uniform").pvalue > 0.001


@pytest.mark.parametrize("name", ["ece", "mce", "classwise_ece", "auroc_correct"])
def test_equally_good_models_rarely_differ_by_any_measure(name):
    measure, rng = MEASURES[name], np.random.default_rng(0)
    for spoil in (0.0, 2.0):
        rejected = 0
        for seed in range(30):
            a, b, labels = models(120, rng)
            both = softmax((1 + spoil) * np.log(a)), softmax((1 + spoil) * np.log(b)), labels
            found = paired_difference(
                measure.function, *both, **measure.arguments(15), n_resamples=39, seed=seed
            )
            rejected += found.p_value <= 0.05
            assert found.low <= found.difference <= found.high
            assert found.p_value < 0.15 or found.low <= 0 <= found.high
        # Of 30 tests at 5 %, more than 5 have a probability of 0.3 %.
        assert rejected <= 5


@pytest.mark.parametrize("name", ["ece", "classwise_ece"])
def test_a_calibrated_model_that_knows_less_is_not_less_calibrated(name):
    measure, rng, rejected = MEASURES[name], np.random.default_rng(1), 0
    for seed in range(40):
        spread = np.repeat(rng.dirichlet([0.2] * 5, 40), 5, axis=0)
        labels = (spread.cumsum(axis=1) > rng.random((200, 1))).argmax(axis=1)
        base_rate = np.full((200, 5), 0.2)
        found = paired_difference(
            measure.function, base_rate, spread, labels, **measure.arguments(15), n_resamples=39, seed=seed
        )
        rejected += found.p_value <= 0.05
    assert rejected <= 6


def test_the_share_of_swaps_is_exact():
    rng, units = np.random.default_rng(0), Units.of(None, 6)
    a, b = ({"x": rng.random((6, 1)), "labels": np.arange(6)} for _ in range(2))

    def total(rows):
        return float(np.asarray(rows["x"])[:, 0] @ (1 + rows["labels"]))

    found = abs(total(a) - total(b))
    signs = (1 + np.arange(6)) * (a["x"] - b["x"])[:, 0]
    every = [abs(np.dot(s, signs)) >= found - 1e-12 for s in itertools.product((-1, 1), repeat=6)]
    share = swap_p_value(total, a, b, units, n_swaps=3999, rng=rng)
    assert share == pytest.approx(np.mean(every), abs=0.03)
    assert swap_p_value(total, a, a, units, n_swaps=9, rng=rng) == 1.0
    one, other = ({"x": torch.from_numpy(rows["x"]), "labels": rows["labels"]} for rows in (a, b))
    assert swap_p_value(total, one, other, units, n_swaps=3999, rng=rng) == pytest.approx(share, abs=0.03)
    wide = {"x": np.hstack([b["x"]] * 2), "labels": b["labels"]}
    assert swap_p_value(total, a, wide, units, n_swaps=9, rng=rng) == 0.1
    pairs = Units.of([4, 4, 7, 7, 7, 1], 6)
    whole = [signs[:2].sum(), signs[2:5].sum(), signs[5]]
    every = [abs(np.dot(s, whole)) >= found - 1e-12 for s in itertools.product((-1, 1), repeat=3)]
    share = swap_p_value(total, a, b, pairs, n_swaps=3999, rng=rng)
    assert share == pytest.approx(np.mean(every), abs=0.03)


def test_power_grows_with_the_samples_and_with_the_difference():
    def power(n, spoil):
        rng = np.random.default_rng(1)
        found = [
            paired_difference(brier_score, *models(n, rng, spoil=spoil), n_resamples=99) for _ in range(60)
        ]
        return sum(f.p_value <= 0.05 and f.difference < 0 for f in found) / 40

    by_size = [power(n, 2.0) for n in (50, 200, 1000)]
    by_spoiling = [power(400, spoil) for spoil in (0.0, 1.0, 4.0)]
    for powers in (by_size, by_spoiling):
        assert powers == sorted(powers)
        assert powers[-1] > max(0.9, powers[0] + 0.3)


def test_the_p_value_and_the_interval_agree():
    rng = np.random.default_rng(2)
    for seed in range(40):
        found = paired_difference(brier_score, *models(80, rng, spoil=0.5), seed=seed, level=0.8)
        if abs(found.p_value - 0.2) > 0.01:
            assert (found.p_value < 0.2) == (not found.low <= 0 <= found.high)


def test_equal_seeds_give_equal_results_and_undefined_resamples_are_counted():
    a, b = np.linspace(0.5, 0.9, 25), np.linspace(0.9, 0.5, 25)
    right = np.arange(25) > 0
    one, same = (
        paired_difference(auroc_correctness, a, b, correct_a=right, correct_b=right, seed=3, n_resamples=300)
        for _ in range(2)
    )
    assert one == same
    assert one.n_undefined > 50
    assert one.n_resamples + one.n_undefined == 300


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"labels": None},
            "^arguments: expected either labels or correct_a with correct_b, got none of them",
        ),
        ({"correct_a": [1, 0, 1]}, "^arguments: .* got labels with correct_a"),
        ({"b": [0.1, 0.2], "labels": [0, 1, 1]}, "^labels: expected 2 entries, one per prediction, got 3"),
        (
            {"b": [0.1, 0.2], "labels": None, "correct_a": [1, 0, 1], "correct_b": [1, 1]},
            "^b: expected 3 entries, one per prediction, got 2",
        ),
        ({"reads": "scores"}, "^reads: expected 'probs' or 'logits', got 'scores'"),
        ({"level": 2}, "^level: expected a number between 0 and 1, got 2"),
        ({"n_resamples": 1.5}, "^n_resamples: expected a whole number of at least 2, got 1.5"),
        ({"metric": top_label_bins}, "^metric: expected a function that returns one number, got Bins"),
        (
            {"metric": lambda probs, labels: math.inf},  # noqa: ARG005  # the signature of a measure
            "^metric: expected a finite value on the whole sample, got inf",
        ),
    ],
)
def test_wrong_input_is_refused_in_one_sentence(change, message):
    arguments = {
        "metric": negative_log_likelihood,
        "a": [0.4, 0.5, 0.6],
        "b": [0.5, 0.5, 0.5],
        "labels": [1, 0, 1],
    }
    with pytest.raises(InputError, match=message):
        paired_difference(**(arguments | change))
