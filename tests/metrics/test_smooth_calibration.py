from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import csr_array

from calibrant.metrics.smooth_calibration import (
    Probe,
    _isotonic_median,
    smooth_calibration_error,
    worst_case_probe,
)


def highest_bias(x, weight, pairs):
    """The definition as a linear program: one unknown phi(x) per entry, one constraint per ordered pair."""
    i, j = pairs
    rows = np.arange(len(i))
    lipschitz = csr_array(
        (np.repeat([1.0, -1.0], len(i)), (np.tile(rows, 2), np.concatenate([i, j]))), shape=(len(i), len(x))
    )
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    constraints = {"A_ub": lipschitz, "b_ub": np.abs(x[i] - x[j])} if len(i) else {}
    solution = linprog(-weight, bounds=(-1, 1), method="highs", options=tight, **constraints)
    assert solution.success
    return -solution.fun


def every_pair(n):
    return np.nonzero(~np.eye(n, dtype=bool))


def neighbours(n):
    left = np.arange(n - 1)
    return np.concatenate([left, left + 1]), np.concatenate([left + 1, left])


def assert_feasible_and_attained(probe: Probe, confidence, correct) -> None:
    x, place = np.unique(np.asarray(confidence, dtype=np.float64), return_inverse=True)
    phi = probe.phi.numpy()
    assert np.array_equal(probe.confidence.numpy(), x)
    assert np.abs(phi).max() <= 1
    # On a line, neighbours suffice for all pairs.
    assert np.all(np.abs(np.diff(phi)) <= np.diff(x) + 1e-12)
    assert np.mean((np.asarray(correct) - x[place]) * phi[place]) == pytest.approx(probe.value, abs=1e-12)


def hits(rng, p):
    """Return hits that occur as often as the confidence, more often, less often, or half of the time."""
    return rng.random(len(p)) < [p, np.sqrt(p), p**2, np.full(len(p), 0.5)][rng.integers(4)]


def errors_that_cancel(rng, n):
    """Return samples with a mean error of exactly zero, for which the probe need not touch its bounds."""
    p = rng.integers(0, 65, n) / 64
    return np.append(p, 1 - p), rng.permuted([False, True] * n)


CONFIDENCES = {
    "uniform": lambda rng, n: rng.random(n),
    "nearly sure": lambda rng, n: rng.beta(8, 0.5, n),
    "float32": lambda rng, n: rng.random(n, dtype=np.float32),
    "clustered": lambda rng, n: (rng.choice([0.2, 0.55, 0.97], n) + rng.normal(0, 0.01, n)).clip(0, 1),
    "tied on a grid": lambda rng, n: rng.integers(0, 11, n) / 10,
    "even grid": lambda rng, n: np.linspace(rng.integers(2), 0.5, n),
    "only 0 and 1": lambda rng, n: rng.integers(0, 2, n).astype(float),
    "two values": lambda rng, n: rng.choice(rng.random(2), n),
}


def calibrated(draw):
    """Confidences of this kind, and whether each is right, which is as likely as it says."""
    return lambda rng, n: (p := draw(rng, n), hits(rng, p))


FAMILIES = {
    **{name: calibrated(draw) for name, draw in CONFIDENCES.items()},
    "all right": lambda rng, n: (rng.random(n), np.ones(n, dtype=bool)),
    "all wrong": lambda rng, n: (rng.random(n), np.zeros(n, dtype=bool)),
    "errors that cancel": errors_that_cancel,
}


def merge(p, error):
    """Distinct confidences and the mean error at each."""
    x, place = np.unique(p, return_inverse=True)
    return x, np.bincount(place, weights=error) / len(p)


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_the_linear_program_and_its_probe_attains_it(family) -> None:
    rng = np.random.default_rng(len(family))
    for n in [1, 2, 3, 4, 5, *rng.integers(1, 61, size=30)]:
        p, a = FAMILIES[family](rng, int(n))
        probe = worst_case_probe(confidence=p, correct=a)
        x, weight = merge(p.astype(np.float64), a - p.astype(np.float64))
        assert probe.value == pytest.approx(highest_bias(x, weight, every_pair(len(x))), abs=1e-9)
        assert_feasible_and_attained(probe, p, a)


@pytest.mark.parametrize("skill", [0.5, 1.0, 1.02, 2.0])
def test_equals_the_linear_program_on_a_long_chain(skill) -> None:
    rng = np.random.default_rng(1)
    p = rng.random(1500)
    a = rng.random(len(p)) < p**skill
    x, weight = merge(p, a - p)
    probe = worst_case_probe(confidence=p, correct=a)
    assert probe.value == pytest.approx(highest_bias(x, weight, neighbours(len(x))), abs=1e-9)
    assert_feasible_and_attained(probe, p, a)


def test_many_samples_agree_with_a_program_on_a_fine_grid() -> None:
    rng = np.random.default_rng(0)
    p = rng.beta(5, 1, 200_000)
    a = rng.random(len(p)) < p - 0.1 * np.sin(20 * p)
    probe = worst_case_probe(confidence=p, correct=a)
    centre = (np.floor(p * 1000).clip(max=999) + 0.5) / 1000
    x, weight = merge(centre, a - p)
    # Moving every argument of a 1-Lipschitz probe by at most 0.0005 moves the mean by no more.
    assert probe.value == pytest.approx(highest_bias(x, weight, neighbours(len(x))), abs=5e-4)
    assert_feasible_and_attained(probe, p, a)


def test_isotonic_median_is_the_best_of_all_nondecreasing_fits() -> None:
    rng = np.random.default_rng(2)
    for _ in range(300):
        # The small weight is lost when it is added to the others.
        y, weight = rng.integers(0, 6, 6).astype(float), rng.choice([1.0, 3.0, 1e-20], 6)
        fit = _isotonic_median(y, weight)
        fits = np.array(list(combinations_with_replacement(range(6), 6)))
        assert np.all(np.diff(fit) >= 0)
        assert weight @ np.abs(y - fit) == pytest.approx((np.abs(y - fits) @ weight).min(), abs=1e-12)


def test_constant_confidence_leaves_the_gap_to_the_accuracy() -> None:
    assert smooth_calibration_error(confidence=[0.9] * 10, correct=[1] * 6 + [0] * 4) == pytest.approx(0.3)
    assert smooth_calibration_error(confidence=[0.75] * 4, correct=[1, 1, 1, 0]) == 0


def test_reaches_both_ends_of_its_range() -> None:
    assert smooth_calibration_error(confidence=[1.0, 1.0], correct=[0, 0]) == 1
    assert smooth_calibration_error(confidence=[0.0, 1.0], correct=[0, 1]) == 0
    assert smooth_calibration_error(confidence=[-0.0, 0.0], correct=[1, 1]) == 1


def test_opposite_errors_count_by_how_far_apart_they_are() -> None:
    # Half the samples stand at 0.5 and are right 0.25 too often, half at 0.75 and 0.25 too rarely.
    value = smooth_calibration_error(confidence=[0.5] * 4 + [0.75] * 4, correct=[1, 1, 1, 0, 1, 1, 0, 0])
    assert value == pytest.approx(0.5 * 0.25 * (0.75 - 0.5))


samples = st.lists(
    st.tuples(st.floats(0, 1) | st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.booleans()),
    min_size=1,
    max_size=40,
)


@settings(max_examples=100)
@given(samples)
def test_stays_between_0_and_1_with_a_probe_that_attains_it(pairs) -> None:
    p, a = map(list, zip(*pairs, strict=True))
    probe = worst_case_probe(confidence=p, correct=a)
    assert 0 <= probe.value <= 1
    assert_feasible_and_attained(probe, p, a)


@settings(max_examples=50)
@given(samples.flatmap(lambda pairs: st.tuples(st.just(pairs), st.permutations(pairs))))
def test_does_not_depend_on_the_order_of_samples(both) -> None:
    first, second = (
        dict(zip(("confidence", "correct"), zip(*pairs, strict=True), strict=True)) for pairs in both
    )
    assert smooth_calibration_error(**first) == smooth_calibration_error(**second)


@settings(max_examples=50)
@given(samples, st.integers(2, 5))
def test_does_not_change_when_every_sample_is_repeated(pairs, times) -> None:
    p, a = map(list, zip(*pairs, strict=True))
    repeated = smooth_calibration_error(confidence=p * times, correct=a * times)
    assert repeated == pytest.approx(smooth_calibration_error(confidence=p, correct=a), abs=1e-12)


@settings(max_examples=50)
@given(samples, st.floats(0, 1e-3))
def test_tied_confidences_may_be_pulled_apart_at_little_cost(pairs, shift) -> None:
    p, a = map(np.array, zip(*pairs, strict=True))
    moved = np.where(np.arange(len(p)) % 2, (p + shift).clip(max=1), p)
    before, after = (smooth_calibration_error(confidence=c, correct=a) for c in (p, moved))
    # A confidence moved by s moves its error by s and the probe at it by at most s.
    assert abs(after - before) <= 2 * shift + 1e-12


def test_reads_probabilities_with_labels() -> None:
    probs = torch.tensor([[0.5, 0.3, 0.2], [0.0, 1.0, 0.0]])
    probe = worst_case_probe(probs, torch.tensor([0, 2]))
    assert probe.value == smooth_calibration_error(probs, [0, 2]) == 0.375
    assert probe.confidence.dtype == probe.phi.dtype == torch.float64
    assert probe.confidence.tolist() == [0.5, 1.0]
