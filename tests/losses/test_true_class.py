"""Finding the true class in the table of classes."""

import pytest
import torch

from calibrant.errors import InputError
from calibrant.losses.parts.true_class import true_class_index
from tests.losses.batches import batch


def test_the_index_gathers_the_true_class_of_dense_predictions():
    logits = torch.arange(2 * 3 * 2.0).view(2, 3, 2)
    labels = torch.tensor([[0, 2], [1, -100]])
    index, kept = true_class_index(logits, labels)
    assert logits.gather(1, index)[:, 0].tolist() == [[0.0, 5.0], [8.0, 7.0]]
    assert kept.tolist() == [[True, True], [True, False]]


def test_where_all_samples_count_there_is_nothing_to_leave_out():
    logits, labels = batch()
    index, kept = true_class_index(logits, labels)
    assert torch.equal(index[:, 0], labels)
    assert kept is None
    assert true_class_index(logits, labels, ignore_index=int(labels[0]))[1] is not None


@pytest.mark.parametrize("bad", [-1, 5])
def test_a_label_out_of_range_is_named(bad):
    logits, labels = batch()
    labels[4] = bad
    with pytest.raises(InputError, match=f"^labels: expected classes from 0 to 4 .*, got {bad}$"):
        true_class_index(logits, labels)


def test_no_samples_are_no_mistake():
    index, kept = true_class_index(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    assert index.shape == (0, 1)
    assert kept.shape == (0,)
