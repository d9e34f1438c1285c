"""The confidence penalty: minus the entropy."""

import math

import pytest
import torch
from scipy.stats import entropy

from calibrant.losses.confidence_penalty import ConfidencePenaltyLoss, confidence_penalty_loss
from calibrant.losses.cross_entropy import CrossEntropyLoss
from tests.losses.batches import batch, gradient


def test_the_value_is_minus_the_entropy_of_the_prediction():
    logits, labels = batch()
    expected = -entropy(torch.softmax(logits, dim=1), axis=1)
    found = confidence_penalty_loss(logits, labels, reduction="none")
    assert found.tolist() == pytest.approx(expected.tolist())


def test_the_gradient_is_that_of_the_paper():
    # p_c (log p_c + H), Sec. 3 of the paper, for minus the entropy.
    logits, labels = batch()
    p = torch.softmax(logits, dim=1)
    h = -(p * p.log()).sum(dim=1, keepdim=True)
    found = gradient(ConfidencePenaltyLoss(reduction="none"), logits, labels)
    torch.testing.assert_close(found, p * (p.log() + h))


def test_certainty_costs_nothing_more_and_indecision_is_the_floor():
    sure, undecided = torch.tensor([[1e4, -1e4, 0.0]]), torch.full((1, 3), 1e4)
    assert float(confidence_penalty_loss(sure, torch.tensor([0]))) == 0
    assert float(confidence_penalty_loss(undecided, torch.tensor([0]))) == pytest.approx(-math.log(3))


def test_it_is_a_term_to_add_to_cross_entropy():
    logits, labels = batch()
    total = CrossEntropyLoss() + 0.1 * ConfidencePenaltyLoss()
    expected = CrossEntropyLoss()(logits, labels) + 0.1 * ConfidencePenaltyLoss()(logits, labels)
    torch.testing.assert_close(total(logits, labels), expected)
    assert repr(total) == "CrossEntropyLoss() + 0.1 * ConfidencePenaltyLoss()"
