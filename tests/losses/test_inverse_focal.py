"""Inverse focal loss: cross-entropy that grows with certainty."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from scipy.special import lambertw

from calibrant.errors import InputError
from calibrant.losses.inverse_focal import InverseFocalLoss, inverse_focal_loss
from tests.losses.batches import batch, chained, gradient


def test_the_value_is_the_definition():
    logits, labels = batch()
    p = torch.softmax(logits, dim=1)
    expected = [-((1 + p[i, y]) ** 2) * math.log(p[i, y]) for i, y in enumerate(labels.tolist())]
    found = inverse_focal_loss(logits, labels, gamma=2.0, reduction="none")
    torch.testing.assert_close(found, torch.stack(expected))


@pytest.mark.parametrize("gamma", [0.5, 1.0, 3.0])
def test_the_gradient_is_that_of_appendix_c_with_its_first_sign_put_right(gamma):
    # The paper prints +gamma (1 + p)^(gamma - 1) log p; the product rule in the line above gives a minus,
    # and only with it can the slope be positive for large gamma, as the text says.
    def slope(p):
        return -gamma * (1 + p) ** (gamma - 1) * math.log(p) - (1 + p) ** gamma / p

    logits, labels = batch()
    found = gradient(InverseFocalLoss(gamma, reduction="none"), logits, labels)
    torch.testing.assert_close(found, chained(slope, logits, labels))


def test_gamma_0_is_cross_entropy():
    logits, labels = batch()
    torch.testing.assert_close(inverse_focal_loss(logits, labels, gamma=0.0), F.cross_entropy(logits, labels))


def test_one_hot_soft_labels_are_integer_labels():
    logits, labels = batch()
    found = inverse_focal_loss(logits, F.one_hot(labels, 5).double(), gamma=2.0)
    torch.testing.assert_close(found, inverse_focal_loss(logits, labels, gamma=2.0))


def test_the_warning_begins_where_the_loss_begins_to_rise_with_p():
    bound = 1 / lambertw(1 / math.e).real
    p = torch.linspace(0.01, 0.99, 999, dtype=torch.float64)
    for gamma, rises in ((bound - 0.01, False), (bound + 0.01, True)):
        value = -((1 + p) ** gamma) * p.log()
        assert bool((value.diff() > 0).any()) == rises
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            inverse_focal_loss(*batch(), gamma=gamma)
        assert bool(caught) == rises


def test_a_large_gamma_warns_that_it_pushes_the_wrong_way():
    with pytest.warns(UserWarning, match="^gamma: above 3.5911 inverse focal loss pushes .* got 5.0"):
        InverseFocalLoss(5.0)(*batch())


def test_class_weights_have_no_meaning_for_soft_labels():
    logits, _ = batch()
    with pytest.raises(InputError, match="^weight: expected none with soft labels"):
        inverse_focal_loss(logits, torch.softmax(logits, dim=1), weight=torch.ones(5))
