"""Dual focal loss, with each of its three rivals."""

import math

import pytest
import torch
import torch.nn.functional as F

from calibrant.errors import InputError
from calibrant.losses.dual_focal import DualFocalLoss, dual_focal_loss
from calibrant.losses.focal import focal_loss
from tests.losses.batches import batch, gradient

RIVALS = ("below", "strongest", "dropped")


def _rival(p, y, rival):
    others = [p[c] for c in range(len(p)) if c != y]
    if rival == "below":
        return max([each for each in others if each < p[y]], default=0.0)
    strongest = max(others)
    return 0.0 if rival == "dropped" and p[y] < strongest else strongest


def _definition(z, y, gamma, rival):
    p = torch.softmax(z, dim=0).tolist()
    return -((1 - p[y] + _rival(p, y, rival)) ** gamma) * math.log(p[y])


@pytest.mark.parametrize("rival", RIVALS)
def test_the_value_is_the_definition_or_equation_33_or_34_and_35_of_the_selective_risk_paper(rival):
    logits, labels = batch(40)
    expected = [_definition(z, y, 2.5, rival) for z, y in zip(logits, labels.tolist(), strict=True)]
    found = dual_focal_loss(logits, labels, gamma=2.5, rival=rival, reduction="none")
    assert found.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("rival", RIVALS)
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 5.0])
def test_the_gradient_is_that_of_autograd(gamma, rival):
    logits, labels = batch(40)

    def plain(z, y):
        rows = []
        for row, label in zip(torch.softmax(z, dim=1), y.tolist(), strict=True):
            wanted = _rival(row.tolist(), label, rival)
            found = [row[c] for c, each in enumerate(row.tolist()) if each == wanted]
            rows.append(-((1 - row[label] + (found[0] if found else 0.0)) ** gamma) * row[label].log())
        return torch.stack(rows)

    found = gradient(DualFocalLoss(gamma, rival=rival, reduction="none"), logits, labels)
    torch.testing.assert_close(found, gradient(plain, logits, labels))


def test_without_a_rival_it_is_focal_loss():
    logits = torch.cat([torch.zeros(1, 1), torch.full((1, 20_000), -9.0)], dim=1).double()
    label = torch.tensor([0])
    assert float(dual_focal_loss(logits, label, gamma=3.0)) == pytest.approx(
        float(focal_loss(logits, label, gamma=3.0)), rel=1e-3
    )


def test_with_two_classes_and_the_strongest_rival_it_is_focal_loss_times_a_power_of_two():
    logits, labels = batch(k=2)
    torch.testing.assert_close(
        dual_focal_loss(logits, labels, gamma=3.0, rival="strongest"),
        8 * focal_loss(logits, labels, gamma=3.0),
    )


def test_gamma_0_is_cross_entropy():
    logits, labels = batch()
    torch.testing.assert_close(dual_focal_loss(logits, labels, gamma=0.0), F.cross_entropy(logits, labels))


def test_a_dropped_rival_leaves_focal_loss_for_mistakes():
    logits, labels = batch(40)
    wrong = logits.argmax(dim=1) != labels
    assert 0 < wrong.sum() < 40
    found = dual_focal_loss(logits, labels, gamma=3.0, rival="dropped", reduction="none")
    torch.testing.assert_close(found[wrong], focal_loss(logits, labels, gamma=3.0, reduction="none")[wrong])
    for rival in ("strongest", "below"):
        same = dual_focal_loss(logits, labels, gamma=3.0, rival=rival, reduction="none")
        torch.testing.assert_close(found[~wrong], same[~wrong])


def test_the_loss_jumps_where_a_rival_draws_level_unless_it_is_the_strongest():
    label = torch.tensor([0])
    behind, ahead = (torch.tensor([[x, 0.0, -1.0]], dtype=torch.float64) for x in (-1e-9, 1e-9))
    jump = {
        rival: float(dual_focal_loss(ahead, label, rival=rival))
        - float(dual_focal_loss(behind, label, rival=rival))
        for rival in RIVALS
    }
    assert jump["strongest"] == pytest.approx(0, abs=1e-7)
    # The next class below gives a smaller jump than no rival at all.
    assert 0.1 < jump["below"] < jump["dropped"]


def test_an_unknown_rival_is_refused():
    with pytest.raises(InputError, match="rival: expected one of below, strongest, dropped, got 'none'"):
        dual_focal_loss(*batch(), rival="none")


def test_a_certain_sample_has_a_finite_gradient_for_a_fractional_gamma():
    found = gradient(DualFocalLoss(0.5), torch.tensor([[300.0, 0.0, 0.0]]), torch.tensor([0]))
    assert torch.isfinite(found).all()
