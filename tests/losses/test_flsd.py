"""FLSD-53: two exponents, parted by the true class's probability."""

import pytest
import torch

from calibrant.errors import InputError
from calibrant.losses.flsd import FLSDLoss, flsd_loss
from calibrant.losses.focal import focal_loss
from tests.losses.batches import batch, gradient


def _logits(p):
    """Two classes, the first with this probability."""
    return torch.tensor([[p, 1 - p]], dtype=torch.float64).log()


@pytest.mark.parametrize(("p", "gamma"), [(0.01, 5), (0.199, 5), (0.201, 3), (0.5, 3), (0.99, 3)])
def test_the_exponent_is_5_below_a_probability_of_one_fifth_and_else_3(p, gamma):
    label = torch.tensor([0])
    assert float(flsd_loss(_logits(p), label)) == pytest.approx(
        float(focal_loss(_logits(p), label, gamma=gamma))
    )


def test_the_gradient_is_focal_loss_s_with_the_exponent_held():
    logits, labels = batch(40, spread=3.0)
    low = torch.softmax(logits, dim=1)[torch.arange(40), labels] < 0.2
    assert 0 < low.sum() < 40
    expected = torch.where(
        low[:, None],
        gradient(lambda z, y: focal_loss(z, y, gamma=5.0, reduction="none"), logits, labels),
        gradient(lambda z, y: focal_loss(z, y, gamma=3.0, reduction="none"), logits, labels),
    )
    torch.testing.assert_close(gradient(FLSDLoss(reduction="none"), logits, labels), expected)


def test_equal_exponents_are_focal_loss():
    logits, labels = batch()
    torch.testing.assert_close(
        flsd_loss(logits, labels, gammas=(2.0, 2.0)), focal_loss(logits, labels, gamma=2.0)
    )


def test_a_threshold_that_is_no_probability_is_refused():
    with pytest.raises(InputError, match="^threshold: expected a probability between 0 and 1, got 20"):
        flsd_loss(*batch(), threshold=20)
