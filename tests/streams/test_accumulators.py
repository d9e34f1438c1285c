"""Accumulators against the one-shot functions: any order, any partition, any number of workers."""

import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.bins import top_label_bins
from calibrant.errors import InputError
from calibrant.metrics.accuracy import top_k_error
from calibrant.metrics.classwise import class_bins
from calibrant.metrics.proper import brier_score, negative_log_likelihood
from calibrant.streams import OutcomeAccumulator
from calibrant.streams.accumulators import ClasswiseAccumulator, ProperScoreAccumulator, TopKErrorAccumulator

ACCUMULATORS = [OutcomeAccumulator, ClasswiseAccumulator, ProperScoreAccumulator, TopKErrorAccumulator]


@st.composite
def labelled(draw):
    """Probabilities with ties, zeros, ones and values on bin edges, and labels."""
    k, n = draw(st.integers(2, 5)), draw(st.integers(1, 40))
    weights = draw(st.lists(st.lists(st.integers(0, 5), min_size=k, max_size=k), min_size=n, max_size=n))
    table = np.array(weights, dtype=float)
    table[table.sum(axis=1) == 0] = 1
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    probs = (table / table.sum(axis=1, keepdims=True)).astype(dtype)
    labels = draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n))
    return probs, np.array(labels)


def collect(make, draw, probs, labels):
    """Shuffle, cut into batches, some of them empty, share them among workers, merge these in any order."""
    n = len(labels)
    order = draw(st.permutations(range(n)))
    cuts = sorted(draw(st.lists(st.integers(0, n), max_size=6)))
    workers = [make() for _ in range(draw(st.integers(1, 3)))]
    for rows in np.split(np.array(order), cuts):
        draw(st.sampled_from(workers)).update(probs[rows], labels[rows])
    total, *others = draw(st.permutations(workers))
    for other in others:
        total.merge(other)
    assert total.n == n
    return total.compute()


def assert_same_bins(ours, expected):
    assert ours.count.tolist() == expected.count.tolist()
    assert ours.correct_sum.tolist() == expected.correct_sum.tolist()
    assert ours.edges.tolist() == expected.edges.tolist()
    torch.testing.assert_close(ours.confidence_sum, expected.confidence_sum, rtol=1e-12, atol=1e-12)
    assert [t.dtype for t in vars(ours).values()] == [t.dtype for t in vars(expected).values()]


@settings(max_examples=60)
@given(labelled(), st.sampled_from([1, 5, 15]), st.data())
def test_bins_of_a_stream_are_those_of_all_samples_at_once(sample, n_bins, data):
    top = collect(lambda: OutcomeAccumulator(n_bins=n_bins), data.draw, *sample)
    expected = top_label_bins(*sample, n_bins=n_bins)
    assert_same_bins(top, expected)
    for gap in ("expected_gap", "largest_gap", "root_mean_square_gap", "average_gap"):
        assert float(getattr(top, gap)()) == pytest.approx(float(getattr(expected, gap)()), abs=1e-12)
    classes = collect(lambda: ClasswiseAccumulator(n_bins=n_bins), data.draw, *sample)
    assert_same_bins(classes, class_bins(*sample, n_bins=n_bins))


@settings(max_examples=60)
@given(labelled(), st.data())
def test_scores_of_a_stream_are_those_of_all_samples_at_once(sample, data):
    scores = collect(ProperScoreAccumulator, data.draw, *sample)
    expected = negative_log_likelihood(*sample)
    assert scores.negative_log_likelihood == pytest.approx(expected, abs=1e-12)
    assert scores.brier_score == pytest.approx(brier_score(*sample), abs=1e-12)
    assert collect(lambda: TopKErrorAccumulator(k=2), data.draw, *sample) == top_k_error(*sample, k=2)


def test_pairs_and_probabilities_fill_the_same_bins(sample):
    probs, labels = sample
    pairs = OutcomeAccumulator()
    for rows in np.array_split(np.arange(len(labels)), 7):
        pairs.update(confidence=probs[rows].max(axis=1), correct=probs[rows].argmax(axis=1) == labels[rows])
    assert_same_bins(pairs.compute(), top_label_bins(probs, labels))


def test_scores_of_pairs_are_those_of_wrong_and_right_and_0_and_1_are_one_in_a_million_away():
    confidence, correct = [0.0, 1.0, 1.0, 0.25, 0.9], [False, True, False, True, True]
    accumulator = ProperScoreAccumulator()
    accumulator.update(confidence=confidence[:2], correct=correct[:2])
    accumulator.update(confidence=confidence[2:], correct=correct[2:])
    right = [(c if hit else 1 - c) for c, hit in zip(confidence, correct, strict=True)]
    losses = [-math.log(min(max(p, 1e-6), 1 - 1e-6)) for p in right]
    scores = accumulator.compute()
    assert scores.negative_log_likelihood == pytest.approx(sum(losses) / 5, rel=1e-9)
    assert scores.brier_score == pytest.approx(sum((1 - p) ** 2 for p in right) / 5, abs=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logits_are_read_as_their_softmax(overconfident, dtype):
    logits, labels = overconfident[0].astype(dtype), overconfident[1]
    probs = torch.softmax(torch.tensor(logits), dim=1)
    outcomes, classes, scores, top = (make() for make in ACCUMULATORS)
    for rows in np.array_split(np.arange(len(labels)), 3):
        for accumulator in (outcomes, classes, scores, top):
            accumulator.update(logits=logits[rows], labels=labels[rows])
    sure = torch.softmax(torch.tensor(logits).double(), dim=1)
    assert_same_bins(outcomes.compute(), top_label_bins(sure, labels))
    assert_same_bins(classes.compute(), class_bins(probs, labels))
    expected = negative_log_likelihood(logits=logits, labels=labels)
    assert scores.compute().negative_log_likelihood == pytest.approx(expected, abs=1e-12)
    assert scores.compute().brier_score == pytest.approx(brier_score(probs, labels), abs=1e-12)
    assert top.compute() == top_k_error(probs, labels)


def test_a_probability_of_zero_counts_as_a_trillionth_and_logits_do_not_underflow():
    accumulator = ProperScoreAccumulator()
    accumulator.update([[1.0, 0.0]], [1])
    accumulator.update([[1.0, 0.0], [0.5, 0.5]], [1, 0])
    expected = (2 * math.log(1e12) + math.log(2)) / 3
    assert accumulator.compute().negative_log_likelihood == pytest.approx(expected)
    assert accumulator.compute().brier_score == pytest.approx(4.5 / 3)
    accumulator = ProperScoreAccumulator()
    accumulator.update(logits=[[1e4, -1e4]], labels=[1])
    assert accumulator.compute().negative_log_likelihood == 2e4


def test_batches_of_one_do_not_drift_after_a_billion_samples():
    accumulator = OutcomeAccumulator(n_bins=1)
    accumulator.update(confidence=[0.9], correct=[True])
    for _ in range(30):
        accumulator.merge(accumulator)
    for _ in range(1000):
        accumulator.update(confidence=[0.1], correct=[False])
    exact = 2**30 * Fraction(0.9) + 1000 * Fraction(0.1)
    assert accumulator.n == 2**30 + 1000
    assert float(accumulator.compute().confidence_sum) == float(exact)


@pytest.mark.parametrize("make", ACCUMULATORS)
def test_a_batch_without_samples_changes_nothing(make):
    accumulator = make()
    for empty in ([], np.zeros((0, 6)), torch.zeros(0, 6)):
        accumulator.update(empty, [])
        accumulator.update(logits=empty, labels=np.zeros(0, dtype=int))
    assert accumulator.n == 0
    accumulator.update(np.full((2, 6), 1 / 6), [0, 5])
    before = repr(accumulator.state())
    accumulator.update([], [])
    assert repr(accumulator.state()) == before


@pytest.mark.parametrize("make", ACCUMULATORS)
def test_a_batch_that_is_refused_changes_nothing(make):
    accumulator = make()
    good = np.full((2, 6), 1 / 6)
    for batch in (
        {"probs": good, "labels": [0, 6]},
        {"probs": good, "labels": []},
        {"probs": np.zeros((0, 6)), "labels": [0]},
        {"probs": 2 * good, "labels": [0, 1]},
        {"logits": good, "probs": good, "labels": [0, 1]},
        {"probs": good},
        {"logits": good},
        {},
    ):
        with pytest.raises(InputError, match="expected"):
            accumulator.update(**batch)
    assert accumulator.n == 0
    with pytest.raises(InputError, match="^compute: expected at least one sample so far, got none"):
        accumulator.compute()


def test_merge_takes_only_the_same_settings():
    for one, other, message in (
        (OutcomeAccumulator(n_bins=15), OutcomeAccumulator(n_bins=10), r"n_bins=15\), got .*n_bins=10\)"),
        (OutcomeAccumulator(), ProperScoreAccumulator(), "OutcomeAccumulator.*, got ProperScoreAccumulator"),
        (ClasswiseAccumulator(n_classes=3), ClasswiseAccumulator(n_classes=4), "n_classes=3.*n_classes=4"),
        (ClasswiseAccumulator(n_bins=3), ClasswiseAccumulator(n_bins=4), "n_bins=3.*n_bins=4"),
        (TopKErrorAccumulator(k=1), TopKErrorAccumulator(k=5), "k=1.*k=5"),
        (TopKErrorAccumulator(k=1), 0.5, r"TopKErrorAccumulator\(k=1\), got float"),
    ):
        with pytest.raises(InputError, match=f"^merge: expected .*{message}"):
            one.merge(other)


def test_the_first_batch_or_merge_says_how_many_classes_there_are():
    batch = [[0.2, 0.3, 0.5]], [2]
    accumulator, idle = ClasswiseAccumulator(), ClasswiseAccumulator()
    accumulator.update(*batch)
    accumulator.merge(idle)
    idle.merge(accumulator)
    for one in (accumulator, idle):
        assert_same_bins(one.compute(), class_bins(*batch))
        with pytest.raises(InputError, match="^probs: expected 3 classes as before, got 2"):
            one.update([[0.5, 0.5]], [1])
    with pytest.raises(InputError, match="^logits: expected 2 classes as before, got 3"):
        ClasswiseAccumulator(n_classes=2).update(logits=batch[0], labels=batch[1])


@pytest.mark.parametrize("make", ACCUMULATORS)
def test_workers_can_send_it_as_a_pickle_or_as_a_plain_dictionary(make):
    batch = np.full((2, 6), 1 / 6), [0, 5]
    accumulator = make()
    idle = make.from_state(accumulator.state())
    accumulator.update(*batch)
    state = accumulator.state()
    assert all(isinstance(value, int | torch.Tensor) for value in state.values())
    copies = [pickle.loads(pickle.dumps(accumulator)), make.from_state(state)]
    accumulator.update(*batch)
    assert make.from_state(state).n == 2, "a state does not follow its accumulator"
    for copy in copies:
        idle.merge(copy)
    assert repr(idle) == repr(accumulator)
    assert repr(idle.compute()) == repr(accumulator.compute())


def test_a_state_of_something_else_is_refused():
    state = OutcomeAccumulator().state()
    for wrong, message in (
        (
            ProperScoreAccumulator().state(),
            "that of OutcomeAccumulator with n, n_weighted, weight, .*count, .* brier_sum",
        ),
        ({name: value for name, value in state.items() if name != "count"}, ".* differs in count"),
        (state | {"n": torch.tensor(-1)}, "n of at least n_weighted"),
        (state | {"n": torch.tensor(1.5)}, "n of type int64, got torch.float32"),
        (state | {"n_bins": 10}, r"count of shape \(2, 10\), got shape \(2, 15\)"),
    ):
        with pytest.raises(InputError, match=f"^state: expected {message}"):
            OutcomeAccumulator.from_state(wrong)


@pytest.mark.parametrize("make", ACCUMULATORS)
def test_it_does_not_grow_with_the_stream(make):
    rng = np.random.default_rng(0)
    sizes = set()
    accumulator = make()
    for n in (1, 10, 1000, 10_000):
        accumulator.update(rng.dirichlet(np.ones(6), n), rng.integers(6, size=n))
        sizes.add(sum(value.nbytes for value in accumulator.state().values() if torch.is_tensor(value)))
    assert len(sizes) == 1
