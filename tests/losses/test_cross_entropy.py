"""Cross-entropy: torch's own, except where torch has nothing to average."""

import pytest
import torch
import torch.nn.functional as F

from calibrant.errors import InputError
from calibrant.losses.cross_entropy import CrossEntropyLoss, cross_entropy_loss
from tests.losses.batches import batch

WEIGHT = torch.tensor([0.5, 1.0, 2.0, 4.0, 0.0], dtype=torch.float64)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_it_is_torchs_cross_entropy(weight, reduction):
    logits, labels = batch()
    labels[3] = -100
    expected = F.cross_entropy(logits, labels, weight=weight, reduction=reduction)
    torch.testing.assert_close(
        cross_entropy_loss(logits, labels, weight=weight, reduction=reduction), expected
    )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_soft_labels_and_their_weights_are_torchs(weight, reduction):
    logits, _ = batch()
    soft = torch.softmax(batch(seed=1)[0], dim=1)
    expected = F.cross_entropy(logits, soft, weight=weight, reduction=reduction)
    torch.testing.assert_close(cross_entropy_loss(logits, soft, weight=weight, reduction=reduction), expected)


@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_a_batch_of_ignored_labels_is_0_where_torch_gives_nan(weight):
    logits, labels = batch()
    logits.requires_grad_()
    nothing = torch.full_like(labels, -100)
    assert torch.isnan(F.cross_entropy(logits, nothing))
    loss = cross_entropy_loss(logits, nothing, weight=weight)
    loss.backward()
    assert loss == 0
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_classes_that_all_weigh_nothing_give_0_not_nan():
    logits, labels = batch()
    assert cross_entropy_loss(logits, torch.full_like(labels, 4), weight=WEIGHT) == 0


def test_a_label_out_of_range_is_named():
    logits, labels = batch()
    labels[2] = 7
    with pytest.raises(InputError, match="^labels: expected classes from 0 to 4 .*, got 7$"):
        CrossEntropyLoss()(logits, labels)
