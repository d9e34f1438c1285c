"""The core measures against their definitions written as loops, and against independent libraries."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from torchmetrics.functional.classification import multiclass_calibration_error

from calibrant import metrics
from calibrant.errors import InputError


def loop_top_label(probs, labels):
    """(confidence, correct) pairs, row by row."""
    rows = []
    for p, y in zip(probs, labels, strict=True):
        best = max(range(len(p)), key=lambda c: (p[c], -c))
        rows.append((float(p[best]), best == y))
    return rows


def loop_ece(pairs, n_bins):
    """Right-closed bins of equal width, and the largest gap beside."""
    total, largest = 0.0, 0.0
    for b in range(n_bins):
        low, high = b / n_bins, (b + 1) / n_bins
        inside = [(c, a) for c, a in pairs if (low < c <= high) or (b == 0 and c == 0)]
        if inside:
            gap = abs(math.fsum(c for c, _ in inside) - sum(a for _, a in inside)) / len(inside)
            total += len(inside) / len(pairs) * gap
            largest = max(largest, gap)
    return total, largest


def test_accuracy_and_mean_confidence_are_means(sample):
    pairs = loop_top_label(*sample)
    assert metrics.accuracy(*sample) == sum(a for _, a in pairs) / len(pairs)
    assert metrics.mean_confidence(*sample) == pytest.approx(
        math.fsum(c for c, _ in pairs) / len(pairs), abs=1e-12
    )


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_top_k_error_agrees_with_sorting_each_row(sample, k):
    probs, labels = sample
    missed = [y not in np.argsort(-p, kind="stable")[:k] for p, y in zip(probs, labels, strict=True)]
    assert metrics.top_k_error(probs, labels, k=k) == np.mean(missed)


def test_top_k_error_needs_k_classes(sample):
    with pytest.raises(InputError, match="^k: expected at most the 4 classes of probs, got 5"):
        metrics.top_k_error(*sample, k=5)


def test_nll_and_brier_are_those_of_scikit_learn(sample):
    probs, labels = sample
    probs = 0.99 * probs + 0.0025
    assert metrics.negative_log_likelihood(probs, labels) == pytest.approx(
        sk.log_loss(labels, probs), abs=1e-12
    )
    brier = sk.brier_score_loss(labels, probs, scale_by_half=False)
    assert metrics.brier_score(probs, labels) == pytest.approx(brier, abs=1e-12)


def test_nll_of_logits_is_that_of_their_softmax_and_survives_where_it_underflows(overconfident):
    logits, labels = overconfident
    probs = torch.softmax(torch.tensor(logits), dim=1)
    expected = metrics.negative_log_likelihood(probs, labels)
    assert metrics.negative_log_likelihood(logits=logits, labels=labels) == pytest.approx(expected, abs=1e-12)
    assert metrics.negative_log_likelihood(logits=[[1e4, -1e4]], labels=[1]) == 2e4
    assert metrics.negative_log_likelihood([[1.0, 0.0]], [1]) == -math.log(1e-12)


def test_nll_reads_either_probabilities_or_logits():
    for arguments in (
        {"labels": [0]},
        {"probs": [[0.5, 0.5]]},
        {"probs": [[1, 0]], "logits": [[1, 0]], "labels": [0]},
    ):
        with pytest.raises(InputError, match="labels with either probs or logits"):
            metrics.negative_log_likelihood(**arguments)


@pytest.mark.parametrize("n_bins", [1, 2, 10, 15, 100])
def test_ece_and_mce_are_those_of_the_loop(sample, n_bins):
    total, largest = loop_ece(loop_top_label(*sample), n_bins)
    assert metrics.expected_calibration_error(*sample, n_bins=n_bins) == pytest.approx(total, abs=1e-12)
    assert metrics.maximum_calibration_error(*sample, n_bins=n_bins) == pytest.approx(largest, abs=1e-12)


def test_ece_agrees_with_torchmetrics_away_from_certainty(overconfident):
    logits, labels = overconfident
    probs = torch.softmax(torch.tensor(logits) / 2, dim=1)
    kept = probs.amax(dim=1) < 1
    for norm, ours in (
        ("l1", metrics.expected_calibration_error),
        ("max", metrics.maximum_calibration_error),
    ):
        theirs = multiclass_calibration_error(
            probs[kept], torch.tensor(labels)[kept], 5, n_bins=15, norm=norm
        )
        assert ours(probs[kept], labels[kept]) == pytest.approx(float(theirs), abs=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.filterwarnings("ignore:.*invalid escape sequence:SyntaxWarning")  # netcal's, from Python 3.12 on
def test_ece_agrees_with_netcal(overconfident):
    from netcal.metrics import ECE, MCE

    logits, labels = overconfident
    probs = torch.softmax(torch.tensor(logits) / 2, dim=1).numpy()
    assert metrics.expected_calibration_error(probs, labels) == pytest.approx(
        ECE(15).measure(probs, labels), abs=1e-9
    )
    assert metrics.maximum_calibration_error(probs, labels) == pytest.approx(
        MCE(15).measure(probs, labels), abs=1e-9
    )


def test_a_confidence_of_exactly_one_counts_in_the_last_bin():
    # Two samples in one bin cancel to a gap of 0.03 each; a bin of its own for 1.0 would give 0.5.
    probs, labels = [[1.0, 0.0], [0.94, 0.06]], [1, 0]
    assert metrics.expected_calibration_error(probs, labels, n_bins=10) == pytest.approx(0.47, abs=1e-12)
    theirs = multiclass_calibration_error(torch.tensor(probs), torch.tensor(labels), 2, n_bins=10)
    assert float(theirs) != pytest.approx(0.47, abs=1e-3), "torchmetrics follows the definition now: say so"


def test_many_float32_confidences_are_summed_exactly():
    rng = np.random.default_rng(0)
    confidence = (0.9 + 0.1 * rng.random(2_000_000)).astype(np.float32)
    correct = rng.random(2_000_000) < 0.9
    exact = loop_ece_exact(confidence, correct)
    assert metrics.expected_calibration_error(confidence=confidence, correct=correct) == pytest.approx(
        exact, abs=1e-12
    )


def loop_ece_exact(confidence, correct, n_bins=15):
    """Every sum by math.fsum, which does not round."""
    index = np.searchsorted(np.arange(1, n_bins) / n_bins, confidence.astype(float), side="left")
    gaps = [
        math.fsum(confidence[index == b].astype(float)) - int(correct[index == b].sum())
        for b in range(n_bins)
    ]
    return math.fsum(map(abs, gaps)) / len(confidence)


def loop_equal_mass_ece(pairs, n_bins):
    """Cut the sorted list into equal parts, moving a cut within ties to their end."""
    ordered = sorted(pairs)
    n, start, total = len(ordered), 0, 0.0
    for b in range(1, n_bins + 1):
        upper = ordered[math.ceil(Fraction(b * n, n_bins)) - 1][0]
        stop = max(i + 1 for i in range(n) if ordered[i][0] <= upper)
        total += abs(math.fsum(c - a for c, a in ordered[start:stop]))
        start = stop
    return total / n


@pytest.mark.parametrize("n_bins", [1, 5, 15])
def test_equal_mass_ece_is_that_of_the_loop(sample, n_bins):
    expected = loop_equal_mass_ece(loop_top_label(*sample), n_bins)
    ours = metrics.expected_calibration_error(*sample, n_bins=n_bins, binning="mass")
    assert ours == pytest.approx(expected, abs=1e-12)


def loop_classwise(probs, labels, n_bins):
    """The binary error of each class, averaged."""
    per_class = [
        loop_ece([(float(p[c]), y == c) for p, y in zip(probs, labels, strict=True)], n_bins)[0]
        for c in range(len(probs[0]))
    ]
    return sum(per_class) / len(per_class)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_bins", [1, 3, 10, 15])
def test_classwise_ece_is_that_of_the_loop(sample, n_bins, dtype):
    probs, labels = sample[0].astype(dtype), sample[1]
    expected = loop_classwise(probs, labels, n_bins)
    assert metrics.classwise_calibration_error(probs, labels, n_bins=n_bins) == pytest.approx(
        expected, abs=1e-12
    )


def test_classwise_ece_places_values_on_an_edge_below_it():
    probs = np.array([[0.2, 0.8], [0.4, 0.6], [0.6, 0.4]], dtype=np.float32)
    for n_bins in (5, 10, 15):
        expected = loop_classwise(probs, [0, 0, 1], n_bins)
        assert metrics.classwise_calibration_error(probs, [0, 0, 1], n_bins=n_bins) == pytest.approx(expected)


def loop_aurc(pairs):
    """The mean over coverages of the error rate, averaged over all orders of tied samples."""
    total, errors, seen = 0.0, 0.0, 0
    for value in sorted({c for c, _ in pairs}, reverse=True):
        tied = [a for c, a in pairs if c == value]
        wrong = tied.count(False)
        for j in range(1, len(tied) + 1):
            total += (errors + wrong * j / len(tied)) / (seen + j)
        errors, seen = errors + wrong, seen + len(tied)
    return total / len(pairs)


def test_aurc_is_that_of_the_loop(sample):
    assert metrics.aurc(*sample) == pytest.approx(loop_aurc(loop_top_label(*sample)), abs=1e-12)


def test_aurc_averages_over_the_orders_of_ties():
    rng = np.random.default_rng(0)
    pairs = [(c, bool(a)) for c, a in zip(rng.choice([0.5, 0.7, 0.9], 12), rng.random(12) < 0.6, strict=True)]
    shuffled = []
    for _ in range(4000):
        order = rng.permutation(len(pairs))
        ranked = sorted((pairs[i] for i in order), key=lambda pair: -pair[0])  # stable: ties stay shuffled
        wrong = np.cumsum([not a for _, a in ranked])
        shuffled.append((wrong / np.arange(1, len(pairs) + 1)).mean())
    confidence, correct = zip(*pairs, strict=True)
    assert metrics.aurc(confidence=confidence, correct=correct) == pytest.approx(np.mean(shuffled), abs=0.005)


def test_auroc_of_correctness_is_that_of_scikit_learn(sample):
    confidence, correct = zip(*loop_top_label(*sample), strict=True)
    assert metrics.auroc_correctness(*sample) == pytest.approx(
        sk.roc_auc_score(correct, confidence), abs=1e-12
    )


def test_auroc_is_undefined_when_all_predictions_are_alike():
    assert math.isnan(metrics.auroc_correctness(confidence=[0.4, 0.6], correct=[True, True]))
    assert math.isnan(metrics.auroc_correctness(confidence=[0.4, 0.6], correct=[False, False]))


TOP_LABEL = {
    "accuracy": metrics.accuracy,
    "mean_confidence": metrics.mean_confidence,
    "ece": metrics.expected_calibration_error,
    "mce": metrics.maximum_calibration_error,
    "aurc": metrics.aurc,
    "auroc": metrics.auroc_correctness,
}
PAIRS = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=30)


@pytest.mark.parametrize("name", TOP_LABEL)
@settings(max_examples=40)
@given(pairs=PAIRS, seed=st.integers(0, 100))
def test_the_order_of_the_rows_does_not_matter_and_values_are_fractions(name, pairs, seed):
    order = np.random.default_rng(seed).permutation(len(pairs))
    values = []
    for rows in (pairs, [pairs[i] for i in order]):
        confidence, correct = zip(*rows, strict=True)
        values.append(TOP_LABEL[name](confidence=confidence, correct=correct))
    assert values[0] == pytest.approx(values[1], abs=1e-12, nan_ok=True)
    assert math.isnan(values[0]) or -1e-12 <= values[0] <= 1 + 1e-12


@pytest.mark.parametrize("name", TOP_LABEL)
def test_probabilities_and_their_confidences_give_the_same(name, sample):
    confidence, correct = zip(*loop_top_label(*sample), strict=True)
    assert TOP_LABEL[name](*sample) == pytest.approx(
        TOP_LABEL[name](confidence=confidence, correct=correct), abs=1e-12
    )


def test_two_columns_agree_with_the_binary_form():
    rng = np.random.default_rng(3)
    p, y = rng.random(300), rng.integers(0, 2, 300)
    table = np.stack([1 - p, p], axis=1)
    for function in (
        metrics.brier_score,
        metrics.negative_log_likelihood,
        metrics.classwise_calibration_error,
    ):
        assert function(p, y) == function(table, y)
    assert metrics.brier_score(p, y) == pytest.approx(2 * sk.brier_score_loss(y, p), abs=1e-12)


def test_one_sample_is_enough_for_a_number():
    assert metrics.expected_calibration_error([[0.75, 0.25]], [0]) == 0.25
    assert metrics.aurc([[0.75, 0.25]], [0]) == 0.0


@pytest.mark.parametrize(
    "function",
    [
        metrics.expected_calibration_error,
        metrics.brier_score,
        metrics.classwise_calibration_error,
        metrics.aurc,
    ],
)
def test_no_measure_takes_logits_or_half_a_distribution_for_probabilities(function, sample):
    probs, labels = sample
    with pytest.raises(InputError, match="sum to one"):
        function(probs / 2, labels)
    with pytest.raises(InputError, match="pass them as logits"):
        function(np.log(probs + 1e-3), labels)
    with pytest.raises(InputError, match="finite"):
        function(np.where(probs == probs[0, 0], np.nan, probs), labels)


@pytest.mark.parametrize(
    "function",
    [metrics.maximum_calibration_error, metrics.overconfidence, metrics.aurc, metrics.auroc_correctness],
)
def test_unknown_keywords_are_refused(function, sample):
    with pytest.raises(TypeError, match="unexpected keyword argument 'bins'"):
        function(*sample, bins=3)
