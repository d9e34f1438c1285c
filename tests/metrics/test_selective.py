"""Selective prediction against all orders of ties, plain loops, and the values of other libraries."""

import math
import tracemalloc
from fractions import Fraction
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.errors import InputError
from calibrant.metrics.discrimination import auroc_correctness
from calibrant.metrics.ranking import Ranking
from calibrant.metrics.selective import (
    augrc,
    aurc,
    coverage_at_risk,
    excess_aurc,
    risk_at_coverage,
    risk_coverage_curve,
)
from calibrant.outcomes import Outcomes

MEASURES = {
    "aurc": aurc,
    "excess_aurc": excess_aurc,
    "augrc": augrc,
    "risk_at_coverage": lambda **pairs: risk_at_coverage(**pairs, coverage=0.4),
    "coverage_at_risk": lambda **pairs: coverage_at_risk(**pairs, risk=0.3),
}
PAIRS = st.lists(
    st.tuples(st.floats(-50, 50, width=16) | st.sampled_from([-1.0, 0.0, 3.0]), st.booleans()),
    min_size=1,
    max_size=30,
)
EDGES = {
    "one right": ([3.0], [True]),
    "one wrong": ([-3.0], [False]),
    "all right": ([1.0, 2.0, 2.0], [True] * 3),
    "all wrong": ([1.0, 2.0, 2.0], [False] * 3),
    "all tied": ([7.0] * 4, [True, False, True, True]),
}


def errors_in_every_order(score, correct):
    """Errors among the first j, for each order of the samples that the score allows."""
    n = len(score)
    for order in permutations(range(n)):
        if all(score[a] >= score[b] for a, b in pairwise(order)):
            yield [sum(not correct[i] for i in order[:j]) for j in range(1, n + 1)]


def mean_over_orders(score, correct, measure):
    values = [measure(errors) for errors in errors_in_every_order(score, correct)]
    return sum(values) / len(values)


def order_aurc(errors):
    return sum(Fraction(e, j) for j, e in enumerate(errors, 1)) / len(errors)


def order_augrc(errors):
    """Trapezoids of errors / n over coverage, from the origin."""
    n = len(errors)
    return sum(Fraction(a + b, 2 * n * n) for a, b in zip([0, *errors], errors, strict=False))


def small_samples():
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 4, 5, 6):
        for levels in (1, 2, 3, 6):
            yield rng.integers(-levels, levels, n).tolist(), (rng.random(n) < 0.6).tolist()


@pytest.mark.parametrize(("score", "correct"), [*small_samples(), *EDGES.values()])
def test_areas_and_risks_are_means_over_all_orders_of_ties(score, correct):
    pairs = {"score": score, "correct": correct}
    assert aurc(**pairs) == pytest.approx(float(mean_over_orders(score, correct, order_aurc)), abs=1e-12)
    assert augrc(**pairs) == pytest.approx(float(mean_over_orders(score, correct, order_augrc)), abs=1e-12)
    best = min(map(order_aurc, errors_in_every_order([0] * len(correct), correct)))
    excess = mean_over_orders(score, correct, order_aurc) - best
    assert excess_aurc(**pairs) == pytest.approx(float(excess), abs=1e-12)
    n = len(score)
    risks = [
        mean_over_orders(score, correct, lambda errors, j=j: Fraction(errors[j - 1], j))
        for j in range(1, n + 1)
    ]
    for j, risk in enumerate(risks, 1):
        assert risk_at_coverage(**pairs, coverage=j / n) == pytest.approx(float(risk), abs=1e-12)
    for limit in (0, 0.2, 0.25, 1 / 3, 0.5, 1):
        allowed = [j for j, risk in enumerate(risks, 1) if risk <= Fraction(limit).limit_denominator(100)]
        assert coverage_at_risk(**pairs, risk=limit) == max(allowed, default=0) / n


@pytest.mark.parametrize("name", MEASURES)
@settings(max_examples=40)
@given(pairs=PAIRS, seed=st.integers(0, 100))
def test_rows_may_come_in_any_order_and_values_are_fractions(name, pairs, seed):
    order = np.random.default_rng(seed).permutation(len(pairs))
    values = []
    for rows in (pairs, [pairs[i] for i in order]):
        score, correct = zip(*rows, strict=True)
        values.append(MEASURES[name](score=score, correct=correct))
    assert values[0] == values[1]
    assert 0 <= values[0] <= 1


@pytest.mark.parametrize("name", MEASURES)
def test_only_the_order_of_the_scores_matters(name, sample):
    probs, labels = sample
    confidence = probs.max(axis=1)
    correct = probs.argmax(axis=1) == labels
    expected = MEASURES[name](confidence=confidence, correct=correct)
    assert MEASURES[name](probs=probs, labels=labels) == expected
    for score in (confidence, 7 * confidence - 100, np.log(confidence)):
        assert MEASURES[name](score=score, correct=correct) == pytest.approx(expected, abs=1e-12)
        assert MEASURES[name](probs=probs, labels=labels, score=score) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=60)
@given(PAIRS)
def test_augrc_is_what_the_paper_derives_from_the_auroc_and_the_error_rate(pairs):
    score, correct = zip(*pairs, strict=True)
    rate = correct.count(False) / len(correct)
    area = auroc_correctness(score=score, correct=correct)
    if math.isnan(area):
        area = 1.0  # undefined, but its factor is 0
    expected = (1 - area) * rate * (1 - rate) + rate**2 / 2
    assert augrc(score=score, correct=correct) == pytest.approx(expected, abs=1e-12)


def test_augrc_agrees_with_the_tests_of_its_authors():
    # The cases of fd-shifts with 100 samples, every other one wrong.
    correct = np.arange(100) % 2 == 1
    for score, expected in (
        (np.ones(100), 0.25),
        (correct, 0.125),
        (~correct, 0.375),
        (np.linspace(0, 1, 100), 0.2475),
        (np.repeat([0.2, 0.4, 0.6, 0.8], 25), 0.2475),
    ):
        assert augrc(score=score, correct=correct) == pytest.approx(expected, abs=1e-12)


def test_augrc_is_close_to_that_of_torch_uncertainty():
    rng = np.random.default_rng(4)
    for n in (2, 5, 100):
        score, correct = rng.permutation(n), rng.random(n) < 0.7
        risk = np.cumsum(~correct[np.argsort(-score)]) / n
        # Its formula: trapezoids from 1 / n to 1, stretched to the unit interval.
        theirs = ((risk[1:] + risk[:-1]) / 2 / n).sum() / (1 - 1 / n)
        assert augrc(score=score, correct=correct) == pytest.approx(theirs, abs=1 / n)


def test_a_perfect_ranking_has_no_excess_and_approaches_the_known_limit():
    for n in range(1, 200):
        correct = np.arange(n) >= n // 5
        assert 0 <= excess_aurc(score=np.arange(n), correct=correct) < 1e-15
    correct = np.arange(100_000) >= 20_000
    assert aurc(score=np.arange(100_000), correct=correct) == pytest.approx(
        0.2 + 0.8 * math.log(0.8), abs=1e-5
    )


def test_a_constant_score_gives_the_error_rate():
    pairs = {"score": [-2.0] * 10, "correct": [True] * 7 + [False] * 3}
    assert aurc(**pairs) == pytest.approx(0.3, abs=1e-12)
    assert augrc(**pairs) == pytest.approx(0.15, abs=1e-12)
    assert risk_at_coverage(**pairs, coverage=0.25) == pytest.approx(0.3)
    assert coverage_at_risk(**pairs, risk=0.3) == 1
    assert coverage_at_risk(**pairs, risk=0.29) == 0


@pytest.mark.parametrize(
    ("n", "coverage", "answered"), [(100, 0.07, 7), (100, 0.071, 8), (10, 0.7, 7), (3, 1e-9, 1)]
)
def test_coverage_is_rounded_up_to_a_whole_number_of_samples(n, coverage, answered):
    # Only the sample at that place is wrong: the risk is nowhere higher before or after.
    correct = np.arange(1, n + 1) != answered
    assert risk_at_coverage(score=-np.arange(n), correct=correct, coverage=coverage) == 1 / answered


def test_part_of_a_group_of_equals_may_be_answered():
    # After three of the five equals 0.6 errors are expected among 4: exactly 0.15, rounding aside.
    pairs = {"score": [1.0] + [0.0] * 5, "correct": [True, False, True, True, True, True]}
    assert coverage_at_risk(**pairs, risk=0.15) == pytest.approx(4 / 6)


def test_coverage_at_risk_looks_beyond_an_early_error():
    pairs = {"score": np.arange(20)[::-1], "correct": np.arange(20) != 0}
    assert coverage_at_risk(**pairs, risk=0.05) == 1
    assert coverage_at_risk(**pairs, risk=0.049) == 0


def test_the_curve_has_a_point_for_every_threshold(sample):
    probs, labels = sample
    correct = probs.argmax(axis=1) == labels
    curve = risk_coverage_curve(probs, labels)
    assert curve.threshold.tolist() == sorted(set(probs.max(axis=1)), reverse=True)
    for coverage, risk, threshold in zip(curve.coverage, curve.risk, curve.threshold, strict=True):
        answered = probs.max(axis=1) >= float(threshold)
        assert float(coverage) == answered.mean()
        assert float(risk) == pytest.approx(1 - correct[answered].mean(), abs=1e-12)
        assert risk_at_coverage(probs, labels, coverage=float(coverage)) == pytest.approx(
            float(risk), abs=1e-12
        )


def points(curve):
    """The curve as (coverage, risk, threshold) triples."""
    columns = (curve.coverage.tolist(), curve.risk.tolist(), curve.threshold.tolist())
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize("max_points", [2, 3, 10, 50, 10_000])
def test_a_bounded_curve_is_a_part_of_the_whole_with_both_ends(sample, max_points):
    whole, part = risk_coverage_curve(*sample), risk_coverage_curve(*sample, max_points=max_points)
    assert len(points(part)) <= max_points
    assert set(points(part)) <= set(points(whole))
    assert points(part)[0] == points(whole)[0]
    assert points(part)[-1] == points(whole)[-1]
    assert part.coverage.dtype == part.risk.dtype == part.threshold.dtype == torch.float64


def test_errors_grow_evenly_among_equals():
    outcomes = Outcomes(torch.tensor([0.9, 0.5, 0.5, 0.5]), torch.tensor([False, True, False, False]))
    assert Ranking.from_outcomes(outcomes).expected_errors().tolist() == pytest.approx([1, 5 / 3, 7 / 3, 3])


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, "half", None])
def test_coverage_and_risk_are_fractions(value):
    pairs = {"score": [1.0], "correct": [True]}
    with pytest.raises(InputError, match="^coverage: expected a number between 0 and 1, got"):
        risk_at_coverage(**pairs, coverage=value)
    with pytest.raises(InputError, match="^risk: expected a number between 0 and 1, got"):
        coverage_at_risk(**pairs, risk=value)


def test_no_coverage_has_no_risk():
    with pytest.raises(InputError, match="^coverage: expected a number above 0, got 0"):
        risk_at_coverage(score=[1.0], correct=[True], coverage=0)


def test_a_curve_needs_two_points():
    with pytest.raises(InputError, match="^max_points: expected a whole number of at least 2, got 1"):
        risk_coverage_curve(score=[1.0, 2.0], correct=[True, False], max_points=1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("decimals", [1, 3, 5, 17])
def test_the_area_of_many_samples_is_that_of_a_plain_loop(dtype, decimals):
    rng = np.random.default_rng(decimals)
    confidence = np.round(rng.beta(5, 1, size=70_000), decimals).astype(dtype)
    correct = rng.random(70_000) < confidence
    area, errors, rank = [], 0, 0
    values, size = np.unique(confidence, return_counts=True)
    wrong = np.bincount(np.searchsorted(values, confidence), weights=~correct).astype(int).tolist()
    for group, misses in zip(reversed(size.tolist()), reversed(wrong), strict=True):
        area += [(errors + misses * i / group) / (rank + i) for i in range(1, group + 1)]
        errors, rank = errors + misses, rank + group
    expected = math.fsum(area) / 70_000
    assert aurc(confidence=confidence, correct=correct) == pytest.approx(expected, rel=1e-12)
    assert aurc(score=confidence, correct=correct) == pytest.approx(expected, rel=1e-12)
    right = 70_000 - errors
    oracle = math.fsum((j - right) / j for j in range(right + 1, 70_001)) / 70_000
    excess = excess_aurc(confidence=confidence, correct=correct)
    assert excess == pytest.approx(expected - oracle, rel=1e-11)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_area_needs_little_more_memory_than_a_copy_of_the_confidences(dtype):
    rng = np.random.default_rng(0)
    confidence, correct = rng.random(1_000_000).astype(dtype), rng.random(1_000_000) < 0.8
    aurc(confidence=confidence[:10], correct=correct[:10])
    tracemalloc.start()
    aurc(confidence=confidence, correct=correct)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < confidence.nbytes + 8_000_000
