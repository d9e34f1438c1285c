"""MbLS: logits may differ by a margin for free."""

import pytest
import torch

from calibrant.errors import InputError
from calibrant.losses.mbls import MbLSLoss, mbls_loss
from tests.losses.batches import batch, gradient


def test_the_value_is_the_mean_excess_over_the_margin():
    logits, labels = batch()
    expected = [sum(max(0.0, max(z) - other - 1.5) for other in z) / 5 for z in logits.tolist()]
    assert mbls_loss(logits, labels, margin=1.5, reduction="none").tolist() == pytest.approx(expected)


def test_the_gradient_pulls_far_logits_up_and_the_largest_down():
    logits = torch.tensor([[5.0, 0.0, 3.0, -1.0]])
    found = gradient(MbLSLoss(margin=2.5), logits, torch.tensor([0]))
    assert found.tolist() == [[0.5, -0.25, 0.0, -0.25]]


def test_equal_largest_logits_share_the_pull():
    logits = torch.tensor([[5.0, 5.0, 0.0, 4.0]])
    found = gradient(MbLSLoss(margin=1.0), logits, torch.tensor([0]))
    assert found.tolist() == [[0.125, 0.125, -0.25, 0.0]]


def test_within_the_margin_nothing_happens():
    logits, labels = batch(spread=1.0)
    assert mbls_loss(logits, labels) == 0
    assert torch.equal(gradient(MbLSLoss(), logits, labels), torch.zeros_like(logits))


def test_the_second_derivative_is_0():
    logits, labels = batch()
    logits.requires_grad_()
    (first,) = torch.autograd.grad(mbls_loss(logits, labels, margin=1.0), logits, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), logits, allow_unused=True, materialize_grads=True)
    assert torch.equal(second, torch.zeros_like(logits))


def test_a_negative_margin_is_refused():
    with pytest.raises(InputError, match="^margin: expected a number of at least 0, got -1"):
        mbls_loss(*batch(), margin=-1)
