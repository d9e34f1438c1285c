"""Bins of validation confidence, and the training samples placed in them."""

import pytest
import torch

from calibrant.bins import top_label_bins
from calibrant.errors import InputError
from calibrant.losses.parts.validation_bins import bin_of_true_class, validation_bins
from tests.losses.batches import batch


def test_the_bins_are_the_library_s_bins_of_equal_mass():
    logits, labels = batch(100)
    found = validation_bins(logits, labels, n_bins=7)
    expected = top_label_bins(torch.softmax(logits, dim=1), labels, n_bins=7, binning="mass")
    torch.testing.assert_close(found.edges, expected.edges)
    assert torch.equal(found.count, expected.count)
    assert torch.equal(found.correct_sum, expected.correct_sum)


def test_ignored_and_dense_samples_are_counted_as_rows():
    logits, labels = batch(24)
    labels[5] = -100
    dense = logits.view(4, 6, 5).movedim(-1, 1)
    found = validation_bins(dense, labels.view(4, 6), n_bins=3)
    assert found.n == 23
    assert torch.equal(found.edges, validation_bins(logits, labels, n_bins=3).edges)


def test_probabilities_are_placed_as_a_loop_would():
    edges = torch.tensor([0.2, 0.4, 0.4, 0.9, 1.0], dtype=torch.float64)
    p = torch.tensor([1e-30, 0.1, 0.2, 0.3, 0.4, 0.41, 0.9, 0.95, 1.0], dtype=torch.float64)

    def place(value):
        return next((b for b in range(3) if value <= edges[b + 1]), 3)

    nll = -torch.log(p)
    expected = [place(value) for value in torch.exp(-nll)]
    assert bin_of_true_class(nll, edges).tolist() == expected
    assert set(expected) == {0, 2, 3}


def test_missing_validation_data_are_named():
    with pytest.raises(InputError, match="^update: expected the logits and labels of the validation set"):
        validation_bins(None, None, n_bins=5)
    logits, labels = batch()
    with pytest.raises(InputError, match="^labels: expected validation samples that are not ignored"):
        validation_bins(logits, torch.full_like(labels, -100), n_bins=5)


def test_scores_that_have_diverged_are_refused():
    logits, labels = batch()
    logits[3, 2] = torch.nan
    with pytest.raises(InputError, match="^logits: expected finite validation scores"):
        validation_bins(logits, labels, n_bins=5)
