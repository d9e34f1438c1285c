"""LogitNorm: the cross-entropy of a direction."""

import pytest
import torch
import torch.nn.functional as F

from calibrant.errors import InputError
from calibrant.losses.logit_norm import LogitNormLoss, logit_norm_loss
from tests.losses.batches import batch, gradient


def _plain(z, y, temperature=0.04):
    return F.cross_entropy(z / z.norm(dim=1, keepdim=True) / temperature, y, reduction="none")


@pytest.mark.parametrize("temperature", [0.01, 0.04, 1.0])
def test_value_and_gradient_are_those_of_the_definition(temperature):
    logits, labels = batch()
    loss = LogitNormLoss(temperature, reduction="none")
    torch.testing.assert_close(loss(logits, labels), _plain(logits, labels, temperature), rtol=1e-5, atol=0)
    expected = gradient(lambda z, y: _plain(z, y, temperature), logits, labels)
    torch.testing.assert_close(gradient(loss, logits, labels), expected, rtol=1e-5, atol=1e-9)


def test_longer_logits_win_nothing():
    logits, labels = batch()
    torch.testing.assert_close(
        logit_norm_loss(logits, labels), logit_norm_loss(1000 * logits, labels), rtol=1e-5, atol=0
    )
    along = (gradient(LogitNormLoss(), logits, labels) * logits).sum(dim=1)
    torch.testing.assert_close(along, torch.zeros_like(along), rtol=0, atol=1e-5)


def test_a_row_of_zeros_is_undecided_and_has_a_finite_gradient():
    logits, label = torch.zeros(1, 4), torch.tensor([1])
    assert float(logit_norm_loss(logits, label)) == pytest.approx(torch.log(torch.tensor(4.0)).item())
    assert torch.isfinite(gradient(LogitNormLoss(), logits, label)).all()


def test_soft_labels_are_allowed():
    logits, labels = batch()
    torch.testing.assert_close(
        logit_norm_loss(logits, F.one_hot(labels, 5).double()), logit_norm_loss(logits, labels)
    )


def test_a_temperature_of_0_is_refused():
    with pytest.raises(InputError, match="^temperature: expected a positive number, got 0"):
        logit_norm_loss(*batch(), temperature=0)
