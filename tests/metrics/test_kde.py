import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import beta, dirichlet

from calibrant.errors import InputError
from calibrant.metrics import kde
from calibrant.metrics.kde import kde_calibration_error


def loop_kde(points, stated, seen, density, p):
    """The definition: each sample against the average of the others, weighted by the kernel."""
    total = 0.0
    for j, x in enumerate(points):
        others = [i for i in range(len(points)) if i != j]
        weights = [density(x, points[i]) for i in others]
        for c in range(len(stated[j])):
            mean = sum(w * seen[i][c] for w, i in zip(weights, others, strict=True)) / sum(weights)
            total += abs(mean - stated[j][c]) ** p
    return (total / len(points)) ** (1 / p)


def loop_top_label(confidence, correct, bandwidth, p):
    def density(x, centre):
        return beta.pdf(x, centre / bandwidth + 1, (1 - centre) / bandwidth + 1)

    return loop_kde(confidence, [[c] for c in confidence], [[float(a)] for a in correct], density, p)


@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
@pytest.mark.parametrize("bandwidth", [0.01, 0.1, 1.0])
def test_equals_the_definition_for_the_top_label(bandwidth, p):
    rng = np.random.default_rng(0)
    for confidence in (rng.random(25), rng.integers(1, 5, 20) / 5, [0.3, 0.9]):
        correct = rng.random(len(confidence)) < 0.6
        expected = loop_top_label(confidence, correct, bandwidth, p)
        ours = kde_calibration_error(confidence=confidence, correct=correct, bandwidth=bandwidth, p=p)
        assert ours == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("p", [1, 2])
def test_equal_confidences_are_compared_as_one_point(p, monkeypatch):
    rng, sizes, compare = np.random.default_rng(0), [], kde._leave_one_out

    def counted(points, *others):
        sizes.append(len(points))
        return compare(points, *others)

    monkeypatch.setattr(kde, "_leave_one_out", counted)
    confidence = rng.choice([0.5, 0.7, 0.95], size=40)
    confidence[0] = 0.6
    correct = rng.random(40) < confidence
    ours = kde_calibration_error(confidence=confidence, correct=correct, bandwidth=0.1, p=p)
    assert ours == pytest.approx(loop_top_label(confidence, correct, 0.1, p), abs=1e-9)
    assert sizes == [4]


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("entries", [1, 70, 1 << 21])
def test_equals_the_definition_for_whole_distributions(p, entries, monkeypatch):
    monkeypatch.setattr(kde, "_ENTRIES_AT_ONCE", entries)
    rng = np.random.default_rng(1)
    probs, labels = rng.dirichlet(np.ones(3), 18), rng.integers(0, 3, 18)
    for bandwidth in (0.05, 0.5):
        expected = loop_kde(
            probs, probs, np.eye(3)[labels], lambda x, c, b=bandwidth: dirichlet.pdf(x, c / b + 1), p
        )
        ours = kde_calibration_error(probs, labels, bandwidth=bandwidth, p=p, mode="canonical")
        assert ours == pytest.approx(expected, rel=1e-9)


def test_the_bandwidth_is_the_likeliest_of_the_grid():
    rng = np.random.default_rng(2)
    confidence = rng.beta(4, 2, 40)
    correct = rng.random(40) < confidence
    likelihood = {}
    for b in kde._BANDWIDTHS:
        density = beta.pdf(confidence[:, None], confidence / b + 1, (1 - confidence) / b + 1)
        np.fill_diagonal(density, 0)
        with np.errstate(divide="ignore"):
            likelihood[b] = np.log(density.sum(axis=1)).sum()
    best = max(likelihood, key=likelihood.get)
    assert 1e-5 < best < 1
    chosen = kde_calibration_error(confidence=confidence, correct=correct)
    assert chosen == kde_calibration_error(confidence=confidence, correct=correct, bandwidth=best)


def test_two_classes_give_the_same_error_in_both_columns():
    rng = np.random.default_rng(3)
    p = 0.5 + rng.random(60) / 2
    y = rng.integers(0, 2, 60)
    top = kde_calibration_error(p, y, bandwidth=0.05)
    assert kde_calibration_error(p, y, bandwidth=0.05, mode="canonical") == pytest.approx(2 * top, abs=1e-12)


@pytest.mark.parametrize("bandwidth", [1e-5, 0.01, None])
def test_certain_predictions_are_compared_with_the_most_certain_of_the_others(bandwidth):
    # A confidence of exactly 1 has no density around any other centre, but the limit exists.
    value = kde_calibration_error(confidence=[1.0, 0.9, 0.5], correct=[1, 0, 1], bandwidth=bandwidth)
    assert math.isfinite(value)
    first = kde_calibration_error(confidence=[1.0, 0.9], correct=[1, 0], bandwidth=bandwidth)
    assert first == pytest.approx((abs(0 - 1.0) + abs(1 - 0.9)) / 2)
    ties = kde_calibration_error(confidence=[1.0, 1.0, 0.0, 0.0], correct=[1, 1, 0, 0], bandwidth=bandwidth)
    assert ties == 0
    one_hot = kde_calibration_error(
        np.eye(3)[[0, 1, 0, 1]], [0, 1, 0, 1], bandwidth=bandwidth, mode="canonical"
    )
    assert one_hot == 0


def test_all_right_or_all_wrong_leaves_the_gap():
    rng = np.random.default_rng(4)
    p = rng.random(50)
    assert kde_calibration_error(confidence=p, correct=p >= 0) == pytest.approx(1 - p.mean(), abs=1e-12)
    assert kde_calibration_error(confidence=p, correct=p < 0) == pytest.approx(p.mean(), abs=1e-12)
    squared = kde_calibration_error(confidence=p, correct=p < 0, p=2)
    assert squared == pytest.approx(math.sqrt((p**2).mean()), abs=1e-12)


def test_the_order_of_the_rows_does_not_matter():
    rng = np.random.default_rng(5)
    p = rng.beta(5, 1, 1500)
    a = rng.random(1500) < p
    order = rng.permutation(1500)
    first, second = (kde_calibration_error(confidence=p[i], correct=a[i]) for i in (np.arange(1500), order))
    assert first == second
    probs, labels = rng.dirichlet(np.ones(3), 80), rng.integers(0, 3, 80)
    first, second = (
        kde_calibration_error(probs[i], labels[i], mode="canonical")
        for i in (np.arange(80), rng.permutation(80))
    )
    assert first == pytest.approx(second, abs=1e-12)


@pytest.mark.slow
def test_a_calibrated_model_is_near_zero_and_an_overconfident_one_at_its_gap():
    rng = np.random.default_rng(6)
    p = 0.5 + rng.random(4000) / 2
    assert kde_calibration_error(confidence=p, correct=rng.random(4000) < p) < 0.03
    over = kde_calibration_error(confidence=p, correct=rng.random(4000) < p - 0.2)
    assert over == pytest.approx(0.2, abs=0.02)
    probs = rng.dirichlet(np.full(3, 2.0), 2000)
    labels = (probs.cumsum(axis=1) > rng.random((2000, 1))).argmax(axis=1)
    assert kde_calibration_error(probs, labels, mode="canonical") < 0.15


def test_orders_rise_and_stay_below_their_bounds(sample):
    orders = [1, 1.5, 2, 4]
    top = [kde_calibration_error(*sample, p=p, bandwidth=0.05) for p in orders]
    assert all(x <= y + 1e-12 for x, y in pairwise(top))
    assert 0 <= top[0] <= top[-1] <= 1
    for p in orders:
        assert kde_calibration_error(*sample, p=p, bandwidth=0.05, mode="canonical") <= 2 ** (1 / p)


def test_single_and_double_precision_agree(sample):
    probs, labels = sample
    single = probs.astype(np.float32)
    first, second = (kde_calibration_error(q, labels) for q in (single, single.astype(np.float64)))
    assert first == pytest.approx(second, abs=1e-12)
    first, second = (
        kde_calibration_error(q, labels, bandwidth=0.1, mode="canonical")
        for q in (single, single.astype(np.float64))
    )
    assert first == pytest.approx(second, abs=1e-12)


def test_options_are_checked():
    pair = {"confidence": [0.5, 0.6], "correct": [1, 0]}
    for p in (0.5, math.inf, math.nan):
        with pytest.raises(InputError, match="^p: expected a number of at least 1, got"):
            kde_calibration_error(**pair, p=p)
    for bandwidth in (0, -1, math.inf, math.nan):
        with pytest.raises(InputError, match="^bandwidth: expected a positive number, got"):
            kde_calibration_error(**pair, bandwidth=bandwidth)
    with pytest.raises(InputError, match="^mode: expected 'top_label' or 'canonical', got 'marginal'"):
        kde_calibration_error(**pair, mode="marginal")
    with pytest.raises(InputError, match="^arguments: expected probs with labels for mode='canonical'"):
        kde_calibration_error(**pair, mode="canonical")
    with pytest.raises(InputError, match="^samples: expected at least two"):
        kde_calibration_error(confidence=[0.5], correct=[1])
