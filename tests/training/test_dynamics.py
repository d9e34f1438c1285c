"""Training dynamics equal their definitions, and survive a file."""

import json
import math

import numpy as np
import pytest
import torch

from calibrant import InputError
from calibrant.bins import top_label_bins
from calibrant.losses import AdaFocalLoss, CRLLoss, CrossEntropyLoss
from calibrant.losses.adafocal import bin_of_true_class
from calibrant.training import dynamics
from calibrant.training.dynamics import (
    BinDynamics,
    ClassAgreement,
    EpochDynamics,
    bin_dynamics,
    class_agreement,
    measure_epoch,
    prediction_entropy,
)
from tests.conftest import draw, softmax


def kl_and_cosine_by_loops(probs, labels, batch_size):
    """The definitions, sample by sample."""
    kl, cosine = [], []
    for start in range(0, len(probs), batch_size):
        batch = range(start, min(start + batch_size, len(probs)))
        for i in batch:
            others = [j for j in batch if labels[j] == labels[i] and j != i]
            if not others:
                continue
            q = np.mean([probs[j] for j in others], axis=0)
            mu = np.mean([probs[j] for j in [*others, i]], axis=0)
            kl.append(sum(p * math.log(p / r) for p, r in zip(probs[i], q, strict=True) if p > 0))
            cosine.append(float(probs[i] @ mu) / math.sqrt(float(probs[i] @ probs[i]) * float(mu @ mu)))
    return np.mean(kl), np.mean(cosine)


@pytest.fixture(scope="module")
def epoch():
    """Validation and training logits and labels of an overconfident model that learned its training set."""
    validation = draw(403, 5, seed=4, sharpen=2.0)
    z, y = draw(700, 5, seed=5, sharpen=2.0)
    return validation, (z + 2.0 * np.eye(5)[y], y)


def test_entropy_is_the_mean_over_samples_in_nats(sample):
    probs, _ = sample
    expected = np.mean([-sum(p * math.log(p) for p in row if p > 0) for row in probs])
    assert prediction_entropy(probs) == pytest.approx(expected, rel=1e-12)


def test_entropy_of_certain_and_of_clueless_predictions():
    assert prediction_entropy([[1.0, 0.0, 0.0]]) == 0
    assert prediction_entropy(torch.full((3, 8), 1 / 8)) == pytest.approx(math.log(8))


@pytest.mark.parametrize("batch_size", [7, 64, 800, 5000])
def test_agreement_is_that_of_the_definition(sample, batch_size):
    probs, labels = sample
    probs = 0.999 * probs + 0.001 / 4  # zeros have a test of their own
    agreement = class_agreement(probs, labels, batch_size=batch_size)
    kl, cosine = kl_and_cosine_by_loops(probs, labels, batch_size)
    assert agreement.kl == pytest.approx(kl, rel=1e-9)
    assert agreement.cosine == pytest.approx(cosine, rel=1e-12)


def test_pieces_of_a_batch_make_no_difference(sample, monkeypatch):
    probs, labels = sample
    whole = class_agreement(probs, labels, batch_size=300), prediction_entropy(probs)
    monkeypatch.setattr(dynamics, "_AT_ONCE", 4 * 17)
    parts = class_agreement(probs, labels, batch_size=300), prediction_entropy(probs)
    assert (parts[0].kl, parts[0].cosine, parts[1]) == pytest.approx((whole[0].kl, whole[0].cosine, whole[1]))


def test_without_a_batch_size_all_rows_are_one_batch_in_any_order(sample):
    probs, labels = sample
    agreement = class_agreement(probs, labels)
    assert agreement == class_agreement(probs, labels, batch_size=len(probs))
    order = np.random.default_rng(0).permutation(len(probs))
    shuffled = class_agreement(probs[order], labels[order])
    assert (shuffled.kl, shuffled.cosine) == pytest.approx((agreement.kl, agreement.cosine), rel=1e-9)


def test_equal_predictions_agree_fully():
    agreement = class_agreement([[0.7, 0.2, 0.1]] * 6, [0, 0, 0, 2, 2, 2])
    assert agreement.kl == pytest.approx(0, abs=1e-12)
    assert agreement.cosine == pytest.approx(1)


def test_two_of_a_class_are_measured_against_each_other():
    agreement = class_agreement([[0.75, 0.25], [0.5, 0.5]], [1, 1])
    there = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    back = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert agreement.kl == pytest.approx((there + back) / 2)


def test_a_sample_alone_in_its_class_counts_for_neither():
    pair, labels = [[0.75, 0.25], [0.5, 0.5]], [0, 0]
    assert class_agreement([*pair, [0.1, 0.9]], [*labels, 1]) == class_agreement(pair, labels)


@pytest.mark.parametrize(("labels", "batch_size"), [([0, 1], None), ([0, 0], 1)])
def test_nobody_to_agree_with_is_none(labels, batch_size):
    probs = [[0.9, 0.1], [0.2, 0.8]]
    assert class_agreement(probs, labels, batch_size=batch_size) == ClassAgreement(None, None)


def test_certain_predictions_that_contradict_each_other_stay_finite():
    agreement = class_agreement([[1.0, 0.0], [0.0, 1.0]], [0, 0])
    assert agreement.kl == pytest.approx(-math.log(1e-12))
    assert agreement.cosine == pytest.approx(math.sqrt(0.5))


def test_a_rounding_error_below_zero_does_no_harm():
    probs = [[1.0, -1e-7], [0.9, 0.1]]
    assert prediction_entropy(probs) == pytest.approx(0.1625415, rel=1e-6)
    assert math.isfinite(class_agreement(probs, [0, 0]).kl)


def test_the_caller_s_array_is_not_changed():
    probs = np.array([[1.0 + 1e-9, -1e-9], [0.4, 0.6]])
    before = probs.copy()
    prediction_entropy(probs), class_agreement(probs, [0, 0])
    np.testing.assert_array_equal(probs, before)


def test_many_classes_in_single_precision_agree_with_double():
    logits, labels = draw(300, 1000, seed=6)
    labels %= 40
    probs = softmax(logits)
    wide = class_agreement(probs, labels, batch_size=128)
    narrow = class_agreement(torch.softmax(torch.tensor(logits).float(), 1), labels, batch_size=128)
    assert (narrow.kl, narrow.cosine) == pytest.approx((wide.kl, wide.cosine), rel=1e-5)


@pytest.mark.parametrize("size", [0, -3, 2.5])
def test_a_batch_has_at_least_one_row(size):
    with pytest.raises(InputError, match="^batch_size: expected a whole number of at least 1"):
        class_agreement([[0.5, 0.5]], [0], batch_size=size)


def test_bins_of_validation_are_those_of_the_calibration_error(epoch):
    (z, y), train = epoch
    bins = bin_dynamics(z, y, *train, n_bins=15)
    expected = top_label_bins(softmax(z), y, n_bins=15, binning="mass")
    assert list(bins.count) == expected.count.tolist()
    np.testing.assert_allclose(bins.edges, expected.edges, rtol=1e-12)
    np.testing.assert_allclose(bins.confidence, expected.confidence, rtol=1e-12)
    np.testing.assert_allclose(bins.accuracy, expected.accuracy, rtol=1e-12)
    np.testing.assert_allclose(bins.gap, -expected.gap, atol=1e-12)


def test_training_samples_are_placed_by_true_class_and_by_top_label(epoch):
    validation, (z, y) = epoch
    bins = bin_dynamics(validation[0], validation[1], z, y, n_bins=6)
    probs = softmax(z)
    by_true, by_top = [[] for _ in range(6)], [[] for _ in range(6)]
    for row, label in zip(probs, y, strict=True):
        for table, value in ((by_true, row[label]), (by_top, row.max())):
            number = sum(value > edge for edge in bins.edges[1:-1])
            table[number].append((value, row.argmax() == label))
    assert bins.train_true_count == tuple(len(each) for each in by_true)
    assert bins.train_count == tuple(len(each) for each in by_top)
    assert min(bins.train_count + bins.train_true_count) > 0
    for number in range(6):
        assert bins.train_true[number] == pytest.approx(np.mean([value for value, _ in by_true[number]]))
        value, right = np.mean(by_top[number], axis=0)
        assert (bins.train_confidence[number], bins.train_accuracy[number]) == pytest.approx((value, right))


def test_training_samples_lie_in_the_bins_that_adafocal_puts_them_in(epoch):
    validation, (z, y) = epoch
    bins = bin_dynamics(validation[0], validation[1], z, y)
    nll = torch.nn.functional.cross_entropy(torch.tensor(z), torch.tensor(y), reduction="none")
    place = bin_of_true_class(nll, torch.tensor(bins.edges, dtype=torch.float64))
    assert bins.train_true_count == tuple(torch.bincount(place, minlength=15).tolist())


def test_a_training_set_equal_to_the_validation_set_has_its_numbers(epoch):
    (z, y), _ = epoch
    bins = bin_dynamics(z, y, z, y)
    assert bins.train_count == bins.count
    assert bins.train_confidence == bins.confidence
    assert bins.train_accuracy == bins.accuracy


def test_where_the_top_label_is_true_both_placements_agree(epoch):
    (z, _), _ = epoch
    bins = bin_dynamics(z, z.argmax(1), z, z.argmax(1))
    assert bins.train_true_count == bins.train_count
    assert bins.train_true == bins.train_confidence


def test_given_edges_are_used_and_outer_bins_reach_to_zero_and_one(epoch):
    validation, train = epoch
    bins = bin_dynamics(*validation, *train, edges=[0.5, 0.8, 0.9])
    confidence = softmax(validation[0]).max(1)
    assert bins.edges == (0.5, 0.8, 0.9)
    assert bins.count == ((confidence <= 0.8).sum(), (confidence > 0.8).sum())


def test_empty_bins_have_no_means():
    sure, unsure = [9.0, 0.0], [0.5, 0.0]
    bins = bin_dynamics([unsure], [0], [sure], [0], edges=[0.0, 0.7, 1.0])
    assert (bins.count, bins.train_true_count, bins.train_count) == ((1, 0), (0, 1), (0, 1))
    assert bins.confidence[1] is bins.accuracy[1] is bins.gap[1] is None
    assert bins.train_true[0] is bins.train_confidence[0] is bins.train_accuracy[0] is None


def test_ties_leave_bins_empty_and_place_training_samples_below():
    bins = bin_dynamics([[2.0, 0.0]] * 4, [0, 0, 1, 0], [[2.0, 0.0]] * 2, [0, 0], n_bins=3)
    assert bins.count == (4, 0, 0)
    assert bins.train_true_count == bins.train_count == (2, 0, 0)


@pytest.mark.parametrize("edges", [[0.5], [0.5, 0.2], [[0.0, 1.0]], [0.0, float("nan"), 1.0]])
def test_edges_that_bound_nothing_are_refused(epoch, edges):
    with pytest.raises(InputError, match="^edges: expected two or more numbers that never fall"):
        bin_dynamics(*epoch[0], *epoch[1], edges=edges)


def test_errors_name_the_side_that_is_wrong(epoch):
    validation, (z, y) = epoch
    with pytest.raises(InputError, match="^train_labels: expected 700 entries"):
        bin_dynamics(validation[0], validation[1], z, y[:-1])
    with pytest.raises(InputError, match="^val_logits: expected finite numbers"):
        measure_epoch(1, validation=([[float("nan"), 0.0]], [0]), train=(z, y))


def test_an_epoch_gathers_what_the_functions_measure(epoch):
    validation, train = epoch
    measured = measure_epoch(3, validation=validation, train=train, batch_size=50, n_bins=4)
    assert measured.epoch == 3
    assert measured.bins == bin_dynamics(*validation, *train, n_bins=4)
    assert measured.adafocal is None
    for side, (z, y) in (("train", train), ("val", validation)):
        agreement = class_agreement(softmax(z), y, batch_size=50)
        assert getattr(measured, f"{side}_entropy") == pytest.approx(prediction_entropy(softmax(z)))
        assert getattr(measured, f"{side}_kl") == pytest.approx(agreement.kl)
        assert getattr(measured, f"{side}_cosine") == pytest.approx(agreement.cosine)


@pytest.mark.parametrize("mixed", [False, True])
def test_adafocal_brings_its_gammas_for_the_bins_measured(epoch, mixed):
    adafocal = AdaFocalLoss(n_bins=5)
    loss = adafocal + 0.1 * CRLLoss(10) if mixed else adafocal
    (z, y), train = epoch
    for _ in range(2):
        loss.update(torch.tensor(z), torch.tensor(y))
    measured = measure_epoch(2, validation=(z, y), train=train, loss_history=loss.history)
    assert measured.adafocal == adafocal.history[-1]
    np.testing.assert_allclose(measured.bins.gap, measured.adafocal["gap"], atol=1e-5)
    np.testing.assert_allclose(measured.bins.edges, measured.adafocal["edges"], atol=1e-5)


def test_a_loss_without_gammas_has_no_entry(epoch):
    validation, train = epoch
    for history in (CrossEntropyLoss().history, [{"edges": [0.0, 1.0], "confidence": [0.5]}]):
        measured = measure_epoch(1, validation=validation, train=train, loss_history=history)
        assert measured.adafocal is None
        assert len(measured.bins.gap) == 15


@pytest.mark.parametrize(
    "history", [(), [{"edges": [0.0, 0.4, 1.0], "gap": [0.1, 0.0], "gammas": [1.0, -0.5]}]]
)
def test_a_line_of_a_file_gives_the_epoch_back(history):
    measured = measure_epoch(
        7,
        validation=([[2.0, 0.0]] * 3, [0, 1, 0]),  # ties: empty bins
        train=([[1.0, 0.0], [0.0, 1.0]], [0, 1]),  # nobody to agree with
        loss_history=history,
    )
    line = json.dumps(measured.as_json() | {"stage": "classifier"}, allow_nan=False)
    assert EpochDynamics.from_json(json.loads(line)) == measured
    assert (measured.adafocal is None) == (not history)
    assert measured.train_kl is None
    assert None in measured.bins.gap


def test_stored_bins_are_plain_lists(epoch):
    stored = bin_dynamics(*epoch[0], *epoch[1]).as_json()
    assert stored == json.loads(json.dumps(stored))
    assert BinDynamics.from_json(stored).as_json() == stored


def test_a_line_that_lacks_something_is_refused():
    with pytest.raises(InputError, match="^dynamics: expected 'train_entropy', got none$"):
        EpochDynamics.from_json({"epoch": 1})
