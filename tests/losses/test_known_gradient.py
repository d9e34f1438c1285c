"""Closed-form gradients: the shortcut first, the definition for higher orders."""

import pytest
import torch

from calibrant.losses.brier import BrierLoss
from calibrant.losses.confidence_penalty import ConfidencePenaltyLoss
from calibrant.losses.dual_focal import DualFocalLoss
from calibrant.losses.logit_norm import LogitNormLoss
from calibrant.losses.mbls import MbLSLoss
from calibrant.losses.ols import OLSLoss
from calibrant.losses.parts.known_gradient import with_known_gradient
from tests.losses.batches import batch


def _cube(logits, kept, calls):
    """The sum of cubes of each row, which notes which of its functions are called."""

    def definition(z):
        calls.append("definition")
        return z.pow(3).sum(dim=1)

    def shortcut(z):
        calls.append("shortcut")
        square = z.square()

        def slope(outer):
            calls.append("gradient")
            return 3 * square * outer[:, None]

        return (z * square).sum(dim=1), slope

    return with_known_gradient(logits, kept, definition=definition, shortcut=shortcut)


def test_one_derivative_needs_the_shortcut_alone():
    logits, _ = batch()
    logits.requires_grad_()
    calls = []
    _cube(logits, torch.ones(12, dtype=torch.bool), calls).sum().backward()
    torch.testing.assert_close(logits.grad, 3 * logits.detach().square())
    assert calls == ["shortcut", "gradient"]


def test_second_derivatives_come_from_the_definition():
    logits, _ = batch(n=3, k=2)
    logits.requires_grad_()
    kept = torch.tensor([True, False, True])
    assert torch.autograd.gradgradcheck(lambda z: _cube(z, kept, []), (logits,))


def test_samples_that_do_not_count_have_neither_value_nor_gradient():
    logits, _ = batch(n=2)
    logits.requires_grad_()
    values = _cube(logits, torch.tensor([False, True]), [])
    values.sum().backward()
    assert values[0] == 0
    assert torch.equal(logits.grad[0], torch.zeros(5, dtype=torch.float64))
    assert logits.grad[1].abs().sum() > 0


@pytest.mark.parametrize(
    "loss",
    [BrierLoss(), ConfidencePenaltyLoss(), DualFocalLoss(), LogitNormLoss(), MbLSLoss(1.0), OLSLoss(5)],
)
def test_losses_that_use_it_agree_with_their_definitions_and_repeat_themselves(loss):
    logits, labels = batch()
    logits.requires_grad_()
    value = loss(logits, labels)
    (first,) = torch.autograd.grad(value, logits, retain_graph=True)
    (second,) = torch.autograd.grad(value, logits, retain_graph=True)
    (by_definition,) = torch.autograd.grad(value, logits, create_graph=True)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, by_definition)


def test_a_freed_graph_cannot_be_walked_again():
    logits, _ = batch()
    logits.requires_grad_()
    value = _cube(logits, torch.ones(12, dtype=torch.bool), []).sum()
    value.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        value.backward()
