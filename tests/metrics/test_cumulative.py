"""Cumulative differences: the definition as a loop, the laws by other formulas, and the level of the test."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from calibrant.inference.calibration_test import calibration_test, cumulative_test
from calibrant.metrics import averaged_two_bin_error, expected_calibration_error, ks_error, kuiper_error
from calibrant.metrics.cumulative import CumulativeDifference, brownian_tail
from calibrant.metrics.names import MEASURES
from calibrant.outcomes import check_outcomes

pytestmark = pytest.mark.usefixtures("one_thread")

STATED = np.array([0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0])
SHARES = [0.03, 0.05, 0.1, 0.17, 0.5, 0.1, 0.05]


def largest_interval(pairs):
    """The definition: the largest sum over the samples of any interval of confidence."""
    values = sorted({c for c, _ in pairs})
    sums = [
        abs(math.fsum(a - c for c, a in pairs if low <= c <= high))
        for low in values
        for high in values
        if low <= high
    ]
    return max(sums) / len(pairs)


@settings(max_examples=40)
@given(
    pairs=st.lists(
        st.tuples(st.integers(0, 20).map(lambda i: i / 20), st.booleans()), min_size=1, max_size=25
    ),
    seed=st.integers(0, 99),
)
def test_the_kuiper_error_is_the_largest_sum_over_an_interval_in_any_order(pairs, seed):
    for order in (np.arange(len(pairs)), np.random.default_rng(seed).permutation(len(pairs))):
        confidence, correct = zip(*(pairs[i] for i in order), strict=True)
        found = kuiper_error(confidence=confidence, correct=correct)
        assert found == pytest.approx(largest_interval(pairs), abs=1e-12)
        assert ks_error(confidence=confidence, correct=correct) <= found + 1e-12


def tail_by_the_published_series(statistic, x):
    """1 - F(x) of Tygert's appendix, summed until the terms vanish."""
    total = 0.0
    for k in range(200):
        h = k + 0.5
        if statistic == "kuiper":
            total += (8 / x**2 + 2 / (h * math.pi) ** 2) * math.exp(-2 * (h * math.pi / x) ** 2)
        else:
            total += 2 / math.pi * (-1) ** k / h * math.exp(-((h * math.pi / x) ** 2) / 2)
    return 1 - total


@pytest.mark.parametrize("statistic", ["kuiper", "ks"])
def test_tails_are_those_of_the_published_series(statistic):
    x = np.linspace(0.1, 6, 60)
    expected = [tail_by_the_published_series(statistic, each) for each in x]
    assert brownian_tail(statistic, x) == pytest.approx(expected, abs=1e-12)
    # The published series cannot show p-values below the rounding error of 1; ours can.
    assert 0 < float(brownian_tail(statistic, 12.0)) < 1e-31


@pytest.mark.parametrize(
    ("statistic", "mean"), [("kuiper", math.sqrt(8 / math.pi)), ("ks", math.sqrt(math.pi / 2))]
)
def test_the_means_of_the_laws_are_the_known_ones(statistic, mean):
    assert quad(lambda x: float(brownian_tail(statistic, x)), 0, 12)[0] == pytest.approx(mean, abs=1e-8)


def p_values(draw, n, runs):
    """P-values of calibrated models."""
    rng = np.random.default_rng(n)
    found = []
    for _ in range(runs):
        c = draw(rng, n)
        cells = CumulativeDifference.from_outcomes(check_outcomes(confidence=c, correct=rng.random(n) < c))
        found.append(cumulative_test(cells, n_resamples=199, rng=rng))
    return np.array([each.p_value for each in found]), {each.method for each in found}


@pytest.mark.parametrize(
    ("draw", "n", "method"),
    [
        (lambda rng, n: rng.random(n), 1000, "Brownian motion"),
        (lambda rng, n: rng.beta(8, 0.5, n), 40, "consistency resampling"),
        (lambda rng, n: rng.choice(STATED, n, p=SHARES), 300, "consistency resampling"),
    ],
    ids=["many different", "few and nearly sure", "stated in words"],
)
def test_a_calibrated_model_is_rejected_as_often_as_the_level_says(draw, n, method):
    p, methods = p_values(draw, n, 1000)
    assert methods == {method}
    for level in (0.05, 0.2):
        assert (p <= level).mean() == pytest.approx(level, abs=3.5 * math.sqrt(level / 1000))


def test_ties_that_brownian_motion_does_not_know_make_its_law_too_cautious():
    hits = np.arange(1000) < 931  # 19 too few at 95 %: 2.76 standard deviations
    found = calibration_test(
        confidence=np.full(1000, 0.95), correct=hits, statistic="kuiper", n_resamples=9999
    )
    assert found.statistic == pytest.approx(19 / math.sqrt(1000 * 0.95 * 0.05))
    assert found.p_value == pytest.approx(0.0075, abs=0.004)  # two-sided binomial
    assert found.p_value < float(brownian_tail("kuiper", found.statistic)) / 2


def test_certainty_that_is_wrong_is_infinitely_far_off():
    right = calibration_test(confidence=[1.0, 1.0, 0.0], correct=[1, 1, 0], statistic="kuiper")
    wrong = calibration_test(confidence=[1.0, 1.0, 0.0], correct=[1, 0, 0], statistic="kuiper")
    assert (right.statistic, right.p_value) == (0.0, 1.0)
    assert (wrong.statistic, wrong.p_value) == (math.inf, pytest.approx(1 / 1001))


def test_merged_cells_keep_all_samples_and_most_of_the_difference():
    rng = np.random.default_rng(3)
    c = rng.random(5000)
    fine = CumulativeDifference.from_outcomes(check_outcomes(confidence=c, correct=rng.random(5000) < c**1.2))
    coarse = fine.coarser(512)
    assert len(coarse.count) <= 512
    assert (coarse.n, coarse.hits.sum()) == (5000, fine.hits.sum())
    assert coarse.difference[-1] == pytest.approx(fine.difference[-1], abs=1e-12)
    assert (
        0.99 * fine.in_deviations("kuiper") < coarse.in_deviations("kuiper") <= fine.in_deviations("kuiper")
    )


@pytest.mark.parametrize("name", [name for name in MEASURES if MEASURES[name].of_pairs])
def test_no_measure_of_pairs_depends_on_the_order_of_rows_with_the_same_confidence(name):
    rng = np.random.default_rng(8)
    c = np.where(rng.random(300) < 0.5, 0.95, rng.choice(STATED, 300, p=SHARES))
    a, measure = rng.random(300) < c**2, MEASURES[name]
    orders = (np.arange(300), np.argsort(a), np.argsort(~a), rng.permutation(300))
    values = [measure.function(confidence=c[i], correct=a[i], **measure.arguments(15)) for i in orders]
    assert values == pytest.approx([values[0]] * 4, abs=1e-12)


def test_agrees_with_mcgrad_where_nothing_is_tied():
    theirs = pytest.importorskip(
        "mcgrad.metrics",
        reason="mcgrad is not installed (pip install --no-deps mcgrad; what it needs otherwise is large)",
    )
    rng = np.random.default_rng(0)
    for n in (200, 2000):
        c = rng.random(n)
        hits = rng.random(n) < c**1.1
        ours = calibration_test(confidence=c, correct=hits, statistic="kuiper")
        assert kuiper_error(confidence=c, correct=hits) == pytest.approx(theirs.ecce(hits * 1, c), abs=1e-12)
        assert ours.statistic == pytest.approx(theirs.ecce_sigma(hits * 1, c), abs=1e-9)
        assert ours.p_value == pytest.approx(theirs.ecce_pvalue(hits * 1, c), abs=1e-9)
    # Under ties its result depends on the order of the rows, and is never below ours.
    c, hits = np.full(20, 0.5), np.arange(20) < 10
    assert kuiper_error(confidence=c, correct=hits) == 0.0
    assert theirs.ecce(hits * 1, c) == pytest.approx(0.25)


def by_integration(confidence, correct, n=200_000):
    """The averaged two-bin error at the middles of many short intervals."""
    places = (np.arange(n) + 0.5) / n
    below = (confidence[:, None] < places[None]).astype(float)
    errors = (correct - confidence)[:, None]
    return float((((errors * below).mean(axis=0)) ** 2 + ((errors * (1 - below)).mean(axis=0)) ** 2).mean())


@pytest.mark.parametrize("seed", range(3))
def test_the_averaged_two_bin_error_is_the_integral(seed):
    rng = np.random.default_rng(seed)
    confidence = rng.random(12).round(1 if seed else 8)  # with and without ties
    correct = rng.random(12) < 0.5
    found = averaged_two_bin_error(confidence=confidence, correct=correct)
    assert found == pytest.approx(by_integration(confidence, correct), abs=1e-5)


def test_no_confidences_have_a_lower_two_bin_error_on_average_than_the_true_ones():
    truth = np.array([0.2, 0.3, 0.6, 0.9, 0.95])
    outcomes = np.array(np.meshgrid(*[[0, 1]] * 5)).reshape(5, -1).T
    likelihood = np.where(outcomes, truth, 1 - truth).prod(axis=1)

    def expected(error, confidence):
        return sum(
            w * error(confidence=confidence, correct=y) for w, y in zip(likelihood, outcomes, strict=True)
        )

    others = [truth.round(), np.full(5, truth.mean()), truth**1.3, (truth + 0.5) / 2]
    others += list(np.random.default_rng(0).random((40, 5)))
    honest = expected(averaged_two_bin_error, truth)
    assert all(expected(averaged_two_bin_error, other) > honest - 1e-12 for other in others)
    # The error of bins of equal width is not truthful: saying the mean of all has a lower one.
    assert expected(expected_calibration_error, others[1]) < expected(expected_calibration_error, truth)
