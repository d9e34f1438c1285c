"""The bracketed Newton search, the search of a valley, non-negative unknowns, and the shares of a mixture."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar, nnls

from calibrant.errors import FitError
from calibrant.solvers import increasing_root, likeliest_shares, lowest_from_zero, minimum_between


@pytest.mark.parametrize("start", [-300.0, -1.0, 0.0, 5.0, 300.0])
def test_flat_ends_do_not_throw_the_search_away(start):
    root = increasing_root(lambda x: (math.tanh(x - 2), 1 - math.tanh(x - 2) ** 2), start=start)
    assert root == pytest.approx(2.0, abs=1e-9)


def test_a_function_without_a_root_is_an_error():
    with pytest.raises(FitError, match="did not settle within 200 steps"):
        increasing_root(lambda x: (1.0 + math.exp(min(x, 0.0)), math.exp(min(x, 0.0))))


VALLEYS = {
    "parabola": (lambda x: (x - 1.3) ** 2, -4.0, 5.0),
    "quartic, flat at the floor": (lambda x: (x - 0.7) ** 4, -4.0, 5.0),
    "a kink": (lambda x: abs(x - math.pi), 0.0, 10.0),
    "floor at the lower bound": (lambda x: x, 2.0, 3.0),
    "floor at the upper bound": (lambda x: -math.exp(x), -1.0, 3.0),
    "likelihood of a temperature": (lambda x: math.log1p(math.exp(-3 / math.exp(x))) + 0.1 * x, -5.0, 5.0),
    "flat everywhere": (lambda _: 1.0, 0.0, 1.0),
    "two valleys": (lambda x: math.sin(3 * x) + x / 10, 0.0, 4.0),
}


@pytest.mark.parametrize("case", VALLEYS)
@pytest.mark.parametrize("tolerance", [1e-3, 1e-7])
def test_the_floor_of_a_valley_is_that_of_scipy_at_no_more_calls(case, tolerance):
    function, low, high = VALLEYS[case]
    calls = []

    def counted(x):
        calls.append(x)
        return function(x)

    place, value = minimum_between(counted, low, high, tolerance=tolerance)
    expected = minimize_scalar(function, bounds=(low, high), method="bounded", options={"xatol": tolerance})
    assert value == function(place)
    assert value <= expected.fun + 1e-8
    assert abs(place - expected.x) <= 2 * tolerance
    assert all(low < x < high for x in calls)
    assert len(calls) <= expected.nfev + 1


@pytest.mark.parametrize("m", [1, 2, 5, 20])
@pytest.mark.parametrize("seed", range(10))
def test_the_lowest_point_from_zero_is_that_of_scipy(m, seed):
    rng = np.random.default_rng(seed)
    rows, right = rng.normal(size=(3 * m, m)), rng.normal(size=3 * m)
    x = lowest_from_zero(rows.T @ rows, rows.T @ right)
    np.testing.assert_allclose(x, nnls(rows, right)[0], atol=1e-9)


def mean_log_likelihood(likelihoods, shares):
    scaled = likelihoods / likelihoods.max(axis=1, keepdims=True)
    return float(np.log(scaled @ shares).mean())


def by_expectation_maximisation(likelihoods):
    """The plain algorithm: a share is the mean probability that its distribution made an observation."""
    scaled = likelihoods / likelihoods.max(axis=1, keepdims=True)
    shares = np.full(scaled.shape[1], 1 / scaled.shape[1])
    for _ in range(20_000):
        shares = shares * (scaled / (scaled @ shares)[:, None]).mean(axis=0)
    return shares


def spiked(n, value):
    """One observation that only the second distribution explains, and many that the first explains better."""
    likelihoods = np.tile([1.0, 0.1], (n, 1))
    likelihoods[0] = [value, 1.0]
    return likelihoods


RNG = np.random.default_rng(0)
PLAIN = RNG.dirichlet(np.ones(4), size=60)
PROBLEMS = {
    "plain": PLAIN,
    "nearly the same": np.exp(RNG.normal(size=(60, 5)) * 1e-2),
    "duplicate columns": np.concatenate([PLAIN, PLAIN[:, [1, 1, 2]]], axis=1),
    "a column of zeros": np.concatenate([PLAIN, np.zeros((60, 1))], axis=1),
    "zeros and ones": np.eye(3)[RNG.integers(3, size=40)],
    "some zeros": np.where(RNG.random((60, 4)) < 0.5, 0, PLAIN) + np.eye(4)[RNG.integers(4, size=60)],
    "one column": PLAIN[:, :1],
    "fewer rows than columns": RNG.dirichlet(np.ones(9), size=4),
    "one row": np.array([[0.1, 0.7, 0.2]]),
    "one column is best everywhere": np.tile([0.2, 0.9, 0.1], (7, 1)),
    "many orders of magnitude": 10.0 ** RNG.uniform(-300, 0, size=(60, 4)),
    "ratios of 1e300": spiked(50, 1e-300),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_no_shares_are_likelier_than_those_of_20_000_steps_of_em(case):
    likelihoods = PROBLEMS[case]
    shares = likeliest_shares(likelihoods)
    best = mean_log_likelihood(likelihoods, by_expectation_maximisation(likelihoods))
    assert mean_log_likelihood(likelihoods, shares) >= best - 1e-8


@pytest.mark.parametrize("case", PROBLEMS)
def test_shares_are_a_distribution_that_meets_the_conditions_of_an_optimum(case):
    likelihoods = PROBLEMS[case]
    shares = likeliest_shares(likelihoods)
    assert shares.min() >= 0
    assert shares.sum() == pytest.approx(1.0, abs=1e-12)
    scaled = likelihoods / likelihoods.max(axis=1, keepdims=True)
    gain = (scaled / (scaled @ shares)[:, None]).mean(axis=0)
    assert gain.max() <= 1 + 1e-8
    assert gain[shares > 1e-4] == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("n", [10_000, 1_000_000])
@pytest.mark.parametrize("value", [0.0, 1e-300, 1e-20])
def test_one_observation_of_very_many_does_not_overflow(n, value):
    # With shares (1 - w, w) the likelihood is log w + (n - 1) log(1 - 0.9 w), largest at w = 1 / (0.9 n).
    shares = likeliest_shares(spiked(n, value))
    assert shares[1] == pytest.approx(1 / (0.9 * n), rel=1e-4)


def test_equal_problems_have_equal_shares_and_the_scale_of_a_row_does_not_matter():
    likelihoods = PROBLEMS["plain"]
    shares = likeliest_shares(likelihoods)
    assert np.array_equal(shares, likeliest_shares(likelihoods.copy()))
    scales = 10.0 ** np.random.default_rng(1).uniform(-250, 250, size=(60, 1))
    assert likeliest_shares(likelihoods * scales) == pytest.approx(shares, abs=1e-9)


def test_random_problems_never_fail():
    rng = np.random.default_rng(2)
    for _ in range(300):
        n, m = int(rng.choice([1, 2, 5, 30, 300])), int(rng.integers(1, 13))
        likelihoods = 10.0 ** (-rng.exponential(float(rng.choice([0.01, 1, 30])), size=(n, m)))
        shares = likeliest_shares(likelihoods)
        gain = (likelihoods / (likelihoods @ shares)[:, None]).mean(axis=0)
        assert gain.max() <= 1 + 1e-8


def test_a_search_that_does_not_settle_is_an_error():
    with pytest.raises(FitError, match="^the search for shares did not settle within 1 steps"):
        likeliest_shares(PROBLEMS["plain"], max_steps=1)


@pytest.mark.parametrize("case", PROBLEMS)
def test_an_observation_of_weight_three_counts_like_three(case):
    likelihoods = PROBLEMS[case]
    counts = np.random.default_rng(3).integers(1, 4, size=len(likelihoods))
    repeated = np.repeat(likelihoods, counts, axis=0)
    shares = likeliest_shares(likelihoods, weights=0.1 * counts)
    best = mean_log_likelihood(repeated, likeliest_shares(repeated))
    assert mean_log_likelihood(repeated, shares) == pytest.approx(best, abs=1e-8)
