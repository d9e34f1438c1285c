"""Label smoothing: cross-entropy against labels mixed with the uniform distribution."""

import pytest
import torch
import torch.nn.functional as F

from calibrant.errors import InputError
from calibrant.losses.cross_entropy import cross_entropy_loss
from calibrant.losses.label_smoothing import LabelSmoothingLoss, label_smoothing_loss
from tests.losses.batches import batch, gradient

WEIGHT = torch.tensor([0.5, 1.0, 2.0, 4.0, 0.0], dtype=torch.float64)


def test_the_value_is_cross_entropy_against_smoothed_labels():
    logits, labels = batch()
    target = 0.9 * F.one_hot(labels, 5) + 0.1 / 5
    expected = -(target * torch.log_softmax(logits, dim=1)).sum(dim=1)
    torch.testing.assert_close(
        label_smoothing_loss(logits, labels, smoothing=0.1, reduction="none"), expected
    )


def test_the_gradient_is_prediction_minus_smoothed_label():
    logits, labels = batch()
    expected = torch.softmax(logits, dim=1) - 0.95 * F.one_hot(labels, 5) - 0.05 / 5
    torch.testing.assert_close(gradient(LabelSmoothingLoss(reduction="none"), logits, labels), expected)


@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_torch_agrees_with_weights_and_ignored_labels(weight):
    logits, labels = batch()
    labels[5] = -100
    expected = F.cross_entropy(logits, labels, weight=weight, label_smoothing=0.05)
    torch.testing.assert_close(label_smoothing_loss(logits, labels, weight=weight), expected)


def test_no_smoothing_is_cross_entropy():
    logits, labels = batch()
    assert torch.equal(
        label_smoothing_loss(logits, labels, smoothing=0.0), cross_entropy_loss(logits, labels)
    )


def test_soft_labels_are_smoothed_too():
    logits, labels = batch()
    onehot = F.one_hot(labels, 5).double()
    torch.testing.assert_close(label_smoothing_loss(logits, onehot), label_smoothing_loss(logits, labels))


def test_a_smoothing_outside_the_unit_interval_is_refused():
    with pytest.raises(InputError, match="^smoothing: expected a number from 0 to 1, got 1.5"):
        label_smoothing_loss(*batch(), smoothing=1.5)
