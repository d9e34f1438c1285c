"""Focal loss: cross-entropy that fades out."""

import math

import pytest
import torch
import torch.nn.functional as F

from calibrant.errors import InputError
from calibrant.losses.focal import FocalLoss, focal_loss
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
        FocalLoss(gama=2.0)
