"""Ratios of sums over units: the binomial test where units are rows, drawn weights, and the level."""

import numpy as np
import pytest
from scipy.special import bdtr, betaincinv

from calibrant.inference.ratios import UnitRatios


def of_rows(wrong, n):
    """Rows that are units of their own, the first ones wrong."""
    return UnitRatios.of([(np.arange(n) < wrong, np.ones(n, dtype=np.int64))])


@pytest.mark.parametrize(
    ("wrong", "n", "limit"), [(0, 59, 0.05), (2, 100, 0.05), (45, 600, 0.1), (9, 30, 0.3), (51, 500, 0.1)]
)
def test_units_of_one_row_have_the_binomial_test_and_the_bounds_of_clopper_and_pearson(wrong, n, limit):
    ratios = of_rows(wrong, n)
    assert ratios.p_values(limit) == pytest.approx(bdtr(wrong, n, limit), rel=0.02)
    assert ratios.p_values(limit) >= bdtr(wrong, n, limit)
    assert ratios.upper(0.95) == pytest.approx(betaincinv(wrong + 1, n - wrong, 0.95), rel=0.005)
    low = betaincinv(wrong, n - wrong + 1, 0.05) if wrong else 0.0
    assert ratios.lower(0.95) == pytest.approx(low, rel=0.005, abs=1e-9)


def test_the_p_value_is_the_share_of_drawn_weights_with_a_sum_above_zero():
    rng = np.random.default_rng(0)
    whole = rng.integers(1, 8, 40)
    part = rng.binomial(whole, 0.1)
    x = np.append(part - 0.2 * whole, 0.8 * whole.max())
    by_hand = (rng.dirichlet(np.ones(41), size=200_000) @ x > 0).mean()
    assert UnitRatios.of([(part, whole)]).p_values(0.2) == pytest.approx(by_hand, rel=0.03)


def test_several_collections_have_the_p_values_of_each_and_empty_units_do_not_count():
    rng = np.random.default_rng(1)
    sums = [(rng.integers(0, 3, n), rng.integers(2, 6, n)) for n in (10, 50, 3)]
    limits = np.array([0.4, 0.3, 0.9])
    alone = [UnitRatios.of([each]).p_values(limit)[0] for each, limit in zip(sums, limits, strict=True)]
    padded = [tuple(np.append(each, [0, 0]) for each in pair) for pair in sums]
    assert UnitRatios.of(padded).p_values(limits) == pytest.approx(alone, rel=1e-9)


def test_extreme_ratios_have_the_extreme_bounds():
    whole = np.full(30, 4)
    nothing, everything = (UnitRatios.of([(part, whole)]) for part in (0 * whole, whole))
    assert nothing.lower(0.95) == 0
    assert nothing.upper(0.95) == pytest.approx(1 - 0.05 ** (1 / 30), rel=0.005)
    assert everything.upper(0.95) == 1
    assert everything.lower(0.95) == pytest.approx(0.05 ** (1 / 30), rel=0.005)
    assert everything.p_values(0.5) == 1
    assert nothing.effective == 30


def test_copies_of_rows_say_no_more_and_agreement_costs():
    wrong = np.arange(200) < 9
    rows, copies = of_rows(9, 200), UnitRatios.of([(5 * wrong, np.full(200, 5))])
    assert copies.upper(0.95) == pytest.approx(rows.upper(0.95), rel=1e-9)
    spread = UnitRatios.of([((np.arange(200) < 45).astype(np.int64), np.full(200, 5))])
    assert spread.upper(0.95) < 0.95 * copies.upper(0.95)


@pytest.mark.parametrize("agreement", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("equal", [True, False])
def test_bounds_of_a_known_ratio_fail_as_rarely_as_stated(agreement, equal):
    rng = np.random.default_rng(2)
    sums = []
    for _ in range(200):
        whole = np.full(60, 5) if equal else rng.integers(1, 12, 60)
        # Each unit is as a whole part or not, or row by row, with a probability of one in ten.
        joint = rng.random(60) < agreement
        part = np.where(joint, whole * (rng.random(60) < 0.1), rng.binomial(whole, 0.1))
        sums.append((part, whole))
    ratios = UnitRatios.of(sums)
    # Of 200 bounds of 90 %, more than 32 fail with a probability of 1 in 300.
    assert (ratios.upper(0.9) < 0.1).sum() <= 32
    assert (ratios.lower(0.9) > 0.1).sum() <= 32
