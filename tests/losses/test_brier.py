"""Brier loss: the squared distance, in few passes."""

import pytest
import torch
import torch.nn.functional as F

from calibrant.errors import InputError
from calibrant.losses.brier import BrierLoss, brier_loss
from calibrant.metrics import brier_score
from tests.losses.batches import batch, gradient


def test_the_value_is_the_squared_distance_to_the_label():
    logits, labels = batch()
    p = torch.softmax(logits, dim=1)
    expected = [sum((p[i, c] - float(c == y)) ** 2 for c in range(5)) for i, y in enumerate(labels.tolist())]
    torch.testing.assert_close(brier_loss(logits, labels, reduction="none"), torch.stack(expected))


def test_the_mean_is_the_brier_score():
    logits, labels = batch(200)
    assert float(brier_loss(logits, labels)) == pytest.approx(
        brier_score(torch.softmax(logits, dim=1), labels)
    )


def test_the_gradient_is_that_of_autograd():
    logits, labels = batch(spread=5.0)

    def plain(z, y):
        return (torch.softmax(z, dim=1) - F.one_hot(y, 5)).square().sum(dim=1)

    torch.testing.assert_close(
        gradient(BrierLoss(reduction="none"), logits, labels), gradient(plain, logits, labels)
    )


def test_soft_labels_are_distances_to_distributions():
    logits, labels = batch()
    torch.testing.assert_close(brier_loss(logits, F.one_hot(labels, 5).double()), brier_loss(logits, labels))
    assert float(brier_loss(logits, torch.softmax(logits, dim=1))) == 0


def test_certainty_rounds_to_0_when_right_and_to_2_when_wrong():
    logits = torch.tensor([[1e4, -1e4, 0.0], [40.0, 0.0, 0.0]])
    right = brier_loss(logits, torch.tensor([0, 0]), reduction="none")
    assert right.min() >= 0
    assert right.max() < 1e-6
    assert brier_loss(logits, torch.tensor([1, 1]), reduction="none").tolist() == [2.0, 2.0]


def test_class_weights_have_no_meaning_for_soft_labels():
    logits, _ = batch()
    with pytest.raises(InputError, match="^weight: expected none with soft labels"):
        brier_loss(logits, torch.softmax(logits, dim=1), weight=torch.ones(5))
