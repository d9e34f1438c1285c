"""What losses do with a batch: torch's conventions, without its NaN."""

import pytest
import torch
import torch.nn.functional as F

from calibrant.errors import InputError
from calibrant.inputs import at_least_float32
from calibrant.losses.parts.batch import check_batch, rows
from calibrant.losses.parts.samples import Samples
from tests.losses.batches import batch

WEIGHT = torch.tensor([0.5, 1.0, 2.0, 4.0, 0.0], dtype=torch.float64)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("ignored", [-100, 2])
def test_reduction_is_torchs(reduction, weight, ignored):
    logits, labels = batch()
    labels[4] = ignored
    samples = Samples(logits, labels, reduction=reduction, weight=weight, ignore_index=ignored)
    found = samples.reduce(samples.nll())
    expected = F.cross_entropy(logits, labels, weight=weight, reduction=reduction, ignore_index=ignored)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("weight", [None, torch.zeros(5)])
def test_nothing_to_average_over_is_0(weight):
    labels = torch.full((3,), -100) if weight is None else torch.tensor([0, 1, 2])
    assert Samples(torch.zeros(3, 5), labels, weight=weight).reduce(torch.zeros(3)) == 0
    assert Samples(torch.zeros(0, 5), labels[:0], weight=weight).reduce(torch.zeros(0)) == 0
    assert Samples(torch.zeros(0, 5), torch.zeros(0, 5)).reduce_soft(torch.zeros(0)) == 0


def test_an_unknown_reduction_is_refused_for_both_kinds_of_labels():
    with pytest.raises(InputError, match="^reduction: expected 'mean', 'sum' or 'none', got 'max'$"):
        Samples(torch.zeros(3, 5), torch.zeros(3).long(), reduction="max").reduce(torch.zeros(3))
    with pytest.raises(InputError, match="^reduction: expected 'mean', 'sum' or 'none', got 'max'$"):
        Samples(torch.zeros(3, 5), torch.zeros(3, 5), reduction="max").reduce_soft(torch.zeros(3))


def test_dense_predictions_have_one_value_per_position():
    logits, labels = batch(24)
    dense = logits.view(2, 3, 4, 5).movedim(-1, 1)
    torch.testing.assert_close(
        Samples(dense, labels.view(2, 3, 4)).nll().flatten(), Samples(logits, labels).nll()
    )


def test_rows_are_the_positions_that_count_in_the_order_of_the_labels():
    logits, labels = batch(24)
    labels[[2, 7]] = -100
    dense = logits.view(2, 3, 4, 5).movedim(-1, 1)
    z, y, kept = rows(dense, labels.view(2, 3, 4))
    assert kept is None
    kept = labels != -100
    assert torch.equal(z, logits[kept])
    assert torch.equal(y, labels[kept])


@pytest.mark.parametrize("ignored", [-100, 0, 4, 99])
def test_rows_leave_out_whatever_label_is_ignored(ignored):
    logits, labels = batch()
    labels[1] = ignored
    assert torch.equal(rows(logits, labels, ignore_index=ignored)[1], labels[labels != ignored])


def test_a_label_that_is_ignored_elsewhere_is_out_of_range_here():
    logits, labels = batch()
    labels[3] = -100
    samples = Samples(logits, labels, ignore_index=-1)
    for read in (samples.rows, samples.nll):
        with pytest.raises(InputError, match=r"\(or -1, which is ignored\), got -100$"):
            read()


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (torch.zeros(3), torch.zeros(3).long(), r"^logits: expected shape \(n, k\) .*, got \(3,\)"),
        (torch.zeros(3, 0), torch.zeros(3).long(), r"^logits: .* at least one class, got \(3, 0\)"),
        (torch.zeros(3, 2).long(), torch.zeros(3).long(), "^logits: expected floating-point scores"),
        (torch.zeros(3, 2), torch.zeros(2).long(), r"^labels: expected .* of shape \(3,\)"),
        (torch.zeros(3, 2), torch.zeros(3, 1).long(), r"^labels: expected .* got shape \(3, 1\)"),
        (torch.zeros(3, 2, 4), torch.zeros(3).long(), r"^labels: expected .* of shape \(3, 4\)"),
        (torch.zeros(3, 2), torch.zeros(3), r"^labels: .*got torch.float32; use .long\(\)"),
    ],
)
def test_what_does_not_belong_together_is_refused(logits, labels, message):
    with pytest.raises(InputError, match=message):
        check_batch(logits, labels)


def test_class_weights_must_be_one_per_class():
    logits, labels = torch.zeros(3, 2), torch.zeros(3).long()
    Samples(logits, labels, weight=None)
    Samples(logits, labels, weight=torch.ones(2))
    with pytest.raises(InputError, match=r"^weight: expected one number per class, shape \(2,\), got"):
        Samples(logits, labels, weight=torch.ones(3))


def test_soft_labels_are_distributions_over_the_classes_of_each_sample():
    assert Samples(torch.zeros(3, 2), torch.zeros(3, 2)).soft
    assert not Samples(torch.zeros(3, 2), torch.zeros(3, 2).long()).soft
    assert not Samples(torch.zeros(3, 2), torch.zeros(3)).soft
    assert not Samples(torch.zeros(3), torch.zeros(3)).soft


@pytest.mark.parametrize(
    ("given", "used"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_half_precision_is_widened_and_nothing_narrowed(given, used):
    assert at_least_float32(torch.zeros(2, 2, dtype=given)).dtype == used


def test_the_index_gathers_the_true_class_of_dense_predictions():
    logits = torch.arange(2 * 3 * 2.0).view(2, 3, 2)
    labels = torch.tensor([[0, 2], [1, -100]])
    index, kept = Samples(logits, labels).true_class()
    assert logits.gather(1, index)[:, 0].tolist() == [[0.0, 5.0], [8.0, 7.0]]
    assert kept.tolist() == [[True, True], [True, False]]


def test_where_all_samples_count_there_is_nothing_to_leave_out():
    logits, labels = batch()
    index, kept = Samples(logits, labels).true_class()
    assert torch.equal(index[:, 0], labels)
    assert kept is None
    assert Samples(logits, labels, ignore_index=int(labels[0])).true_class()[1] is not None


@pytest.mark.parametrize("bad", [-1, 5])
def test_a_true_class_out_of_range_is_named(bad):
    logits, labels = batch()
    labels[4] = bad
    with pytest.raises(InputError, match=f"^labels: expected classes from 0 to 4 .*, got {bad}$"):
        Samples(logits, labels).true_class()


def test_no_samples_are_no_mistake():
    index, kept = Samples(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)).true_class()
    assert index.shape == (0, 1)
    assert kept.shape == (0,)
