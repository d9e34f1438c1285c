import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.errors import InputError
from calibrant.metrics import kernel
from calibrant.metrics.kernel import mmce, skce, skce_pairs


def loop_mmce(confidence, correct, width):
    """The definition: every pair, itself included."""
    pairs = list(zip(map(float, confidence), map(float, correct), strict=True))
    terms = [(a - p) * (b - q) * math.exp(-abs(p - q) / width) for p, a in pairs for q, b in pairs]
    return math.sqrt(max(math.fsum(terms), 0.0)) / len(pairs)


@pytest.mark.parametrize("width", [1e-12, 1e-6, 1e-4, 0.003, 0.2, 0.4, 50.0])
def test_mmce_equals_the_double_sum(width):
    rng = np.random.default_rng(0)
    for p in (rng.random(60), rng.beta(8, 0.3, 60), rng.integers(0, 5, 60) / 4, np.full(7, 0.3)):
        a = rng.random(len(p)) < 0.6
        assert mmce(confidence=p, correct=a, width=width) == pytest.approx(
            loop_mmce(p, a, width), rel=1e-10, abs=1e-12
        )


@pytest.mark.parametrize("reach", [1.0, 20.0])
def test_mmce_does_not_depend_on_where_its_stretches_end(reach, monkeypatch):
    rng = np.random.default_rng(1)
    p, a = rng.random(500), rng.random(500) < 0.4
    whole = mmce(confidence=p, correct=a, width=0.01)
    monkeypatch.setattr(kernel, "_REACH", reach)
    assert mmce(confidence=p, correct=a, width=0.01) == pytest.approx(whole, rel=1e-12)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=30), st.integers(0, 100))
def test_mmce_is_a_fraction_and_ignores_the_order_of_the_rows(pairs, seed):
    confidence, correct = map(np.array, zip(*pairs, strict=True))
    value = mmce(confidence=confidence, correct=correct)
    assert 0 <= value <= 1 + 1e-12
    order = np.random.default_rng(seed).permutation(len(pairs))
    assert mmce(confidence=confidence[order], correct=correct[order]) == value


def test_mmce_of_one_sample_or_one_confidence_is_the_gap():
    assert mmce(confidence=[0.75], correct=[False]) == 0.75
    assert mmce(confidence=[1.0, 1.0], correct=[0, 0]) == 1
    assert mmce(confidence=[0.0, 1.0], correct=[0, 1]) == 0
    assert mmce(confidence=[0.9] * 10, correct=[1] * 6 + [0] * 4) == pytest.approx(0.3)


@pytest.mark.filterwarnings("ignore")
def test_mmce_agrees_with_netcal_whose_width_is_0_4(sample):
    from netcal.metrics import MMCE

    probs, labels = sample
    assert mmce(probs, labels, width=0.4) == pytest.approx(MMCE().measure(probs, labels), abs=1e-12)


def test_mmce_of_a_calibrated_model_shrinks_with_the_root_of_the_sample():
    rng = np.random.default_rng(2)
    p = rng.beta(5, 1, 400_000)
    a = rng.random(len(p)) < p
    assert mmce(confidence=p, correct=a) < 4 * math.sqrt(np.mean((a - p) ** 2) / len(p))
    assert mmce(confidence=p, correct=rng.random(len(p)) < p**2) > 0.05


def test_mmce_agrees_in_single_and_double_precision():
    rng = np.random.default_rng(3)
    p = rng.random(3000, dtype=np.float32)
    a = rng.random(3000) < p**2
    single, double = (mmce(confidence=c, correct=a) for c in (p, p.astype(np.float64)))
    assert single == pytest.approx(double, abs=1e-12)


def loop_h(probs, labels, width):
    """The matrix of h, entry by entry."""
    n, k = len(probs), len(probs[0])
    h = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            same = sum(((labels[i] == c) - probs[i][c]) * ((labels[j] == c) - probs[j][c]) for c in range(k))
            distance = sum(abs(probs[i][c] - probs[j][c]) for c in range(k)) / 2
            h[i, j] = same * math.exp(-distance / width)
    return h


def distributions(n, k, seed):
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.ones(k), n)
    probs[: n // 4] = probs[0]  # ties
    return probs, rng.integers(0, k, n)


@pytest.mark.parametrize(("n", "k"), [(2, 2), (17, 3), (40, 5)])
@pytest.mark.parametrize("width", [0.1, 1.0])
@pytest.mark.parametrize("entries", [1, 100, 1 << 22])
def test_skce_equals_the_means_over_pairs(n, k, width, entries, monkeypatch):
    monkeypatch.setattr(kernel, "_ENTRIES_AT_ONCE", entries)
    probs, labels = distributions(n, k, seed=n)
    h = loop_h(probs, labels, width)
    assert skce(probs, labels, estimator="biased", width=width) == pytest.approx(h.mean(), abs=1e-12)
    other = h[~np.eye(n, dtype=bool)]
    assert skce(probs, labels, width=width) == pytest.approx(other.mean(), abs=1e-12)
    order = np.random.default_rng(0).permutation(n)
    pairs = [h[order[i], order[i + 1]] for i in range(0, n - 1, 2)]
    assert skce_pairs(probs, labels, width=width).tolist() == pytest.approx(pairs, abs=1e-12)


def test_skce_takes_the_median_distance_of_rows_that_differ():
    probs, labels = distributions(31, 4, seed=5)
    distance = [np.abs(p - q).sum() / 2 for i, p in enumerate(probs) for q in probs[:i]]
    width = np.median([d for d in distance if d > 0])
    for estimator in ("biased", "unbiased"):
        given_width = skce(probs, labels, estimator=estimator, width=width)
        assert skce(probs, labels, estimator=estimator) == pytest.approx(given_width, abs=1e-12)


def test_skce_of_equal_predictions_needs_no_width():
    assert skce([[0.5, 0.5]] * 4, [0, 1, 0, 1], estimator="biased") == 0
    assert skce([[1.0, 0.0]] * 3, [0, 0, 0]) == 0
    assert skce([[1.0, 0.0]] * 3, [1, 1, 1]) == 2


def test_skce_does_not_depend_on_the_order_of_the_rows():
    probs, labels = distributions(50, 3, seed=6)
    order = np.random.default_rng(0).permutation(50)
    for estimator in ("biased", "unbiased"):
        value = skce(probs, labels, estimator=estimator)
        assert skce(probs[order], labels[order], estimator=estimator) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize("n", [400, 3000])
def test_random_pairs_do_not_take_sorted_rows_for_miscalibration(n):
    rng = np.random.default_rng(3)
    probs = rng.dirichlet(np.ones(3), n)
    labels = (probs.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    for order in (np.arange(n), np.argsort(labels, kind="stable"), np.argsort(probs.max(axis=1))):
        given = probs[order], labels[order]
        terms = skce_pairs(*given)
        assert abs(terms.mean()) < 4 * terms.std() / math.sqrt(len(terms))
    assert skce_pairs(probs, labels, seed=1).tolist() != skce_pairs(probs, labels).tolist()


def test_the_unbiased_estimate_of_a_calibrated_model_is_zero_on_average():
    rng = np.random.default_rng(7)
    values = {"biased": [], "unbiased": []}
    for _ in range(300):
        probs = rng.dirichlet(np.ones(3), 20)
        labels = (probs.cumsum(axis=1) > rng.random((20, 1))).argmax(axis=1)
        for estimator, found in values.items():
            found.append(skce(probs, labels, estimator=estimator, width=0.3))
    error = np.std(values["unbiased"]) / math.sqrt(300)
    assert abs(np.mean(values["unbiased"])) < 4 * error
    assert min(values["biased"]) >= 0


def test_skce_of_a_large_calibrated_sample_is_small_and_sees_overconfidence(overconfident):
    logits, labels = overconfident
    calibrated, sharp = (torch.softmax(torch.tensor(logits) / t, dim=1) for t in (3, 1))
    assert abs(skce(calibrated, labels)) < 5e-4
    assert skce(sharp, labels) > 5e-3


def test_skce_agrees_in_single_and_double_precision_and_in_binary_form():
    probs, labels = distributions(60, 2, seed=8)
    single = probs.astype(np.float32)
    assert skce(single, labels) == pytest.approx(skce(single.astype(np.float64), labels), abs=1e-12)
    assert skce(probs[:, 1], labels) == pytest.approx(skce(probs, labels), abs=1e-12)


def test_options_are_checked():
    for width in (0, -1.0, math.inf, math.nan):
        with pytest.raises(InputError, match="^width: expected a positive number, got"):
            mmce(confidence=[0.5], correct=[1], width=width)
        with pytest.raises(InputError, match="^width: expected a positive number, got"):
            skce([[0.5, 0.5], [0.2, 0.8]], [0, 1], width=width)
    with pytest.raises(InputError, match="^estimator: expected 'biased' or 'unbiased', got 'fast'"):
        skce([[0.5, 0.5]], [0], estimator="fast")


def test_pairs_need_two_samples():
    with pytest.raises(InputError, match="^probs: expected at least 2 samples for this estimator, got 1"):
        skce([[0.5, 0.5]], [0])
    assert skce([[0.75, 0.25]], [1], estimator="biased") == pytest.approx(2 * 0.75**2)
