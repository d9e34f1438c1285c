"""Dual focal loss: as intended, and as released."""

import math

import pytest
import torch
import torch.nn.functional as F

from calibrant.losses.dual_focal import DualFocalLoss, dual_focal_loss
from calibrant.losses.focal import focal_loss
from tests.losses.batches import batch, gradient


def _definition(z, y, gamma, released):
    p = torch.softmax(z, dim=0).tolist()
    rival = max(p[c] for c in range(len(p)) if c != y)
    if released and p[y] < rival:
        rival = 0.0
    return -((1 - p[y] + rival) ** gamma) * math.log(p[y])


@pytest.mark.parametrize("released", [False, True])
def test_the_value_is_equation_33_or_34_and_35_of_the_selective_risk_paper(released):
    logits, labels = batch(40)
    expected = [_definition(z, y, 2.5, released) for z, y in zip(logits, labels.tolist(), strict=True)]
    found = dual_focal_loss(logits, labels, gamma=2.5, released=released, reduction="none")
    assert found.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 5.0])
def test_the_gradient_is_that_of_autograd(gamma, released):
    logits, labels = batch(40)
    rivals = logits.scatter(1, labels[:, None], -math.inf).argmax(dim=1)

    def plain(z, y):
        p = torch.softmax(z, dim=1)
        rows = torch.arange(len(y))
        true, rival = p[rows, y], p[rows, rivals]
        if released:
            rival = rival * (true >= rival)
        return -((1 - true + rival) ** gamma) * true.log()

    found = gradient(DualFocalLoss(gamma, released=released, reduction="none"), logits, labels)
    torch.testing.assert_close(found, gradient(plain, logits, labels))


def test_without_a_rival_it_is_focal_loss():
    logits = torch.cat([torch.zeros(1, 1), torch.full((1, 20_000), -9.0)], dim=1).double()
    label = torch.tensor([0])
    assert float(dual_focal_loss(logits, label, gamma=3.0)) == pytest.approx(
        float(focal_loss(logits, label, gamma=3.0)), rel=1e-3
    )


def test_with_two_classes_it_is_focal_loss_times_a_power_of_two():
    logits, labels = batch(k=2)
    torch.testing.assert_close(
        dual_focal_loss(logits, labels, gamma=3.0), 8 * focal_loss(logits, labels, gamma=3.0)
    )


def test_gamma_0_is_cross_entropy():
    logits, labels = batch()
    torch.testing.assert_close(dual_focal_loss(logits, labels, gamma=0.0), F.cross_entropy(logits, labels))


def test_the_released_form_is_focal_loss_for_mistakes():
    logits, labels = batch(40)
    wrong = logits.argmax(dim=1) != labels
    assert 0 < wrong.sum() < 40
    found = dual_focal_loss(logits, labels, gamma=3.0, released=True, reduction="none")
    torch.testing.assert_close(found[wrong], focal_loss(logits, labels, gamma=3.0, reduction="none")[wrong])
    intended = dual_focal_loss(logits, labels, gamma=3.0, reduction="none")
    torch.testing.assert_close(found[~wrong], intended[~wrong])


def test_only_the_released_form_jumps_where_the_rival_draws_level():
    label = torch.tensor([0])
    behind, ahead = (torch.tensor([[x, 0.0, -1.0]], dtype=torch.float64) for x in (-1e-9, 1e-9))
    jump = {
        released: float(dual_focal_loss(ahead, label, released=released))
        - float(dual_focal_loss(behind, label, released=released))
        for released in (False, True)
    }
    assert jump[False] == pytest.approx(0, abs=1e-7)
    assert jump[True] > 0.5


def test_a_certain_sample_has_a_finite_gradient_for_a_fractional_gamma():
    found = gradient(DualFocalLoss(0.5), torch.tensor([[300.0, 0.0, 0.0]]), torch.tensor([0]))
    assert torch.isfinite(found).all()
