"""BSCE-GRA: cross-entropy with a weight that has no gradient."""

import math

import pytest
import torch
import torch.nn.functional as F

from calibrant.errors import InputError
from calibrant.losses.bsce import BSCEGRALoss, bsce_gra_loss
from calibrant.losses.focal import focal_loss
from tests.losses.batches import batch, gradient

OPTIONS = [(4.0, 2.0), (1.0, 1.0), (0.5, 3.0), (2.0, math.inf)]


def uncertainty(p, y, gamma, norm):
    away = [abs((c == y) - each) for c, each in enumerate(p)]
    if norm == math.inf:
        return max(away) ** gamma
    return sum(each**norm for each in away) ** (gamma / norm)


@pytest.mark.parametrize(("gamma", "norm"), OPTIONS)
def test_the_value_is_the_definition(gamma, norm):
    logits, labels = batch(40)
    expected = []
    for z, y in zip(logits, labels.tolist(), strict=True):
        p = torch.softmax(z, dim=0).tolist()
        expected.append(-uncertainty(p, y, gamma, norm) * math.log(p[y]))
    found = bsce_gra_loss(logits, labels, gamma=gamma, norm=norm, reduction="none")
    assert found.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("gamma", "norm"), OPTIONS)
def test_the_gradient_is_that_of_cross_entropy_times_the_weight(gamma, norm):
    logits, labels = batch(40)
    expected = []
    for z, y in zip(logits, labels.tolist(), strict=True):
        p = torch.softmax(z, dim=0).tolist()
        weight = uncertainty(p, y, gamma, norm)
        expected.append([weight * (each - (c == y)) for c, each in enumerate(p)])
    found = gradient(BSCEGRALoss(gamma, norm, reduction="none"), logits, labels)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=found.dtype))


def test_with_norm_1_the_value_is_focal_loss_times_a_power_of_two_but_the_gradient_is_not():
    logits, labels = batch()
    loss = BSCEGRALoss(3.0, 1.0, reduction="none")
    torch.testing.assert_close(
        loss(logits, labels), 8 * focal_loss(logits, labels, gamma=3.0, reduction="none")
    )
    focal = gradient(lambda z, y: 8 * focal_loss(z, y, gamma=3.0), logits, labels)
    assert not torch.allclose(gradient(BSCEGRALoss(3.0, 1.0), logits, labels), focal, rtol=0.1)


def test_the_square_of_the_distance_is_the_brier_score_of_the_sample():
    logits, labels = batch()
    brier = (torch.softmax(logits, dim=1) - F.one_hot(labels, logits.shape[1])).square().sum(dim=1)
    expected = brier * F.cross_entropy(logits, labels, reduction="none")
    torch.testing.assert_close(bsce_gra_loss(logits, labels, gamma=2.0, reduction="none"), expected)


def test_gamma_0_is_cross_entropy():
    logits, labels = batch()
    torch.testing.assert_close(bsce_gra_loss(logits, labels, gamma=0.0), F.cross_entropy(logits, labels))


def test_ignored_samples_count_neither_in_the_sum_nor_in_the_mean():
    logits, labels = batch()
    some = labels.clone()
    some[::3] = -100
    rest = some >= 0
    torch.testing.assert_close(bsce_gra_loss(logits, some), bsce_gra_loss(logits[rest], labels[rest]))


def test_a_sample_that_is_all_but_certain_has_a_finite_gradient():
    found = gradient(BSCEGRALoss(0.5), torch.tensor([[300.0, 0.0, 0.0]]), torch.tensor([0]))
    assert torch.isfinite(found).all()


@pytest.mark.parametrize(
    ("options", "message"), [({"norm": 0.5}, "norm: expected"), ({"gamma": -1}, "gamma: expected")]
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        bsce_gra_loss(*batch(), **options)
