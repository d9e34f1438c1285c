"""Focal loss: cross-entropy that fades out."""

import math

import pytest
import torch
import torch.nn.functional as F

from calibrant.errors import InputError
from calibrant.losses.focal import FLSDLoss, FocalLoss, flsd_loss, focal_loss
from tests.losses.batches import batch, chained, gradient


def test_the_value_is_the_definition():
    logits, labels = batch()
    p = torch.softmax(logits, dim=1)
    expected = [-((1 - p[i, y]) ** 2) * math.log(p[i, y]) for i, y in enumerate(labels.tolist())]
    torch.testing.assert_close(focal_loss(logits, labels, gamma=2.0, reduction="none"), torch.stack(expected))


@pytest.mark.parametrize("gamma", [0.5, 1.0, 3.0])
def test_the_gradient_is_that_of_appendix_c_of_the_selective_risk_paper(gamma):
    logits, labels = batch()

    def slope(p):
        return gamma * (1 - p) ** (gamma - 1) * math.log(p) - (1 - p) ** gamma / p

    found = gradient(FocalLoss(gamma, reduction="none"), logits, labels)
    torch.testing.assert_close(found, chained(slope, logits, labels))


@pytest.mark.parametrize("gamma", [1.0, 2.0, 3.0, 5.0])
def test_it_is_at_least_the_divergence_from_the_label_less_gamma_times_the_entropy(gamma):
    # Section 3 of the AdaFocal paper; with one-hot labels the divergence is the cross-entropy.
    logits = 3 * torch.randn(500, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.arange(500) % 7
    divergence = F.cross_entropy(logits, labels, reduction="none")
    entropy = torch.special.entr(logits.softmax(1)).sum(1)
    assert (focal_loss(logits, labels, gamma=gamma, reduction="none") >= divergence - gamma * entropy).all()


def test_gamma_0_is_cross_entropy():
    logits, labels = batch()
    torch.testing.assert_close(focal_loss(logits, labels, gamma=0.0), F.cross_entropy(logits, labels))


def test_a_fractional_gamma_has_a_finite_gradient_at_certainty():
    logits = torch.tensor([[200.0, 0.0]])
    assert torch.isfinite(gradient(FocalLoss(0.5), logits, torch.tensor([0]))).all()


def test_class_weights_have_no_meaning_for_soft_labels():
    logits, _ = batch()
    with pytest.raises(InputError, match="^weight: expected none with soft labels"):
        focal_loss(logits, torch.softmax(logits, dim=1), weight=torch.ones(5))


def test_a_misspelt_option_is_not_lost():
    with pytest.raises(TypeError, match="unexpected keyword argument 'gama'"):
        FocalLoss(gama=2.0)  # type: ignore[call-arg]


def _two_classes(p):
    """Two classes, the first with this probability."""
    return torch.tensor([[p, 1 - p]], dtype=torch.float64).log()


@pytest.mark.parametrize(("p", "gamma"), [(0.01, 5), (0.199, 5), (0.201, 3), (0.5, 3), (0.99, 3)])
def test_the_exponent_is_5_below_a_probability_of_one_fifth_and_else_3(p, gamma):
    label = torch.tensor([0])
    assert float(flsd_loss(_two_classes(p), label)) == pytest.approx(
        float(focal_loss(_two_classes(p), label, gamma=gamma))
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
