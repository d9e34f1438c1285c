"""AUROCs against scikit-learn and against counting pairs."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from calibrant.errors import InputError
from calibrant.metrics.discrimination import auroc_correctness, auroc_ovo, auroc_ovr


def random_table(n, k, *, seed, digits=None):
    """Probabilities, rounded so that many are equal, and labels that follow them a little."""
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.ones(k), size=n)
    if digits is not None:
        probs = rng.multinomial(10**digits, probs) / 10**digits
    labels = np.where(rng.random(n) < 0.5, probs.argmax(axis=1), rng.integers(0, k, n))
    return probs, labels


def chance(high, low):
    """Share of pairs in which the first is higher, ties one half."""
    return np.mean([(a > b) + 0.5 * (a == b) for a in high for b in low])


def loop_ovo(probs, labels):
    present = sorted(set(labels.tolist()))
    values = []
    for i in present:
        for j in present:
            if i < j:
                one = chance(probs[labels == i, i], probs[labels == j, i])
                other = chance(probs[labels == j, j], probs[labels == i, j])
                values.append((one + other) / 2)
    return np.mean(values)


def loop_ovr(probs, labels):
    return np.mean(
        [chance(probs[labels == i, i], probs[labels != i, i]) for i in sorted(set(labels.tolist()))]
    )


@pytest.mark.parametrize("digits", [None, 1, 2])
@pytest.mark.parametrize("k", [3, 7])
def test_equals_scikit_learn(k, digits):
    probs, labels = random_table(400, k, seed=k, digits=digits)
    for ours, name in ((auroc_ovo, "ovo"), (auroc_ovr, "ovr")):
        theirs = roc_auc_score(labels, probs, multi_class=name)
        assert ours(probs, labels) == pytest.approx(theirs, abs=1e-12)


def test_many_classes_equal_scikit_learn():
    probs, labels = random_table(1000, 30, seed=0)
    assert auroc_ovo(probs, labels) == pytest.approx(
        roc_auc_score(labels, probs, multi_class="ovo"), abs=1e-12
    )
    assert auroc_ovr(probs, labels) == pytest.approx(
        roc_auc_score(labels, probs, multi_class="ovr"), abs=1e-12
    )


@pytest.mark.parametrize("missing", [(), (0,), (1, 3)])
def test_absent_classes_are_left_out(missing):
    probs, labels = random_table(120, 5, seed=2, digits=1)
    kept = ~np.isin(labels, missing)
    assert auroc_ovo(probs[kept], labels[kept]) == pytest.approx(
        loop_ovo(probs[kept], labels[kept]), abs=1e-12
    )
    assert auroc_ovr(probs[kept], labels[kept]) == pytest.approx(
        loop_ovr(probs[kept], labels[kept]), abs=1e-12
    )


def test_two_classes_are_the_binary_auroc():
    rng = np.random.default_rng(1)
    p, y = rng.random(200).round(2), rng.integers(0, 2, 200)
    expected = roc_auc_score(y, p)
    assert auroc_ovo(p, y) == pytest.approx(expected, abs=1e-12)
    assert auroc_ovr(p, y) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("function", [auroc_ovo, auroc_ovr])
def test_auroc_of_a_single_class_is_undefined(function):
    assert math.isnan(function([[0.5, 0.5], [0.2, 0.8]], [1, 1]))
    assert math.isnan(function([[0.5, 0.5]], [1]))


@pytest.mark.parametrize("function", [auroc_ovo, auroc_ovr])
@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), n=st.integers(2, 30), k=st.integers(2, 5))
def test_rows_and_classes_may_come_in_any_order(function, seed, n, k):
    probs, labels = random_table(n, k, seed=seed, digits=1)
    rng = np.random.default_rng(seed)
    rows, renamed = rng.permutation(n), rng.permutation(k)
    value = function(probs, labels)
    assert function(probs[rows], labels[rows]) == pytest.approx(value, abs=1e-12, nan_ok=True)
    assert function(probs[:, renamed], renamed.argsort()[labels]) == pytest.approx(
        value, abs=1e-12, nan_ok=True
    )
    assert math.isnan(value) or 0 <= value <= 1


@pytest.mark.parametrize("function", [auroc_ovo, auroc_ovr])
def test_constant_probabilities_score_one_half_and_perfect_ones_one(function):
    labels = torch.tensor([0, 1, 2, 2, 1])
    assert function(torch.full((5, 3), 1 / 3), labels) == 0.5
    assert function(torch.eye(3)[labels], labels) == 1


def test_frequencies_move_one_vs_rest_but_not_one_vs_one():
    probs, labels = random_table(300, 4, seed=5)
    extra = labels == 0
    more = (
        np.concatenate([probs, probs[extra], probs[extra]]),
        np.append(labels, np.zeros(2 * extra.sum(), int)),
    )
    assert auroc_ovo(*more) == pytest.approx(auroc_ovo(probs, labels), abs=1e-12)
    assert auroc_ovr(*more) != pytest.approx(auroc_ovr(probs, labels), abs=1e-4)


def test_any_score_can_replace_the_confidence(sample):
    probs, labels = sample
    correct = probs.argmax(axis=1) == labels
    margin = np.diff(np.sort(probs, axis=1)[:, -2:])[:, 0] - 5
    expected = roc_auc_score(correct, margin)
    assert auroc_correctness(score=margin, correct=correct) == pytest.approx(expected, abs=1e-12)
    assert auroc_correctness(probs, labels, score=margin) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("function", [auroc_ovo, auroc_ovr])
def test_logits_are_refused(function):
    with pytest.raises(InputError, match="pass them as logits"):
        function([[2.0, -1.0], [0.0, 3.0]], [0, 1])
