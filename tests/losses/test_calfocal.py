"""CalFocal: exponents from the validation set's bins, both cases."""

import math

import pytest
import torch

from calibrant.errors import InputError
from calibrant.losses.calfocal import CalFocalLoss, calfocal_loss
from calibrant.losses.focal import focal_loss
from tests.losses.batches import batch, chained, gradient

BINS = {
    "edges": torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64),
    "accuracy": torch.tensor([0.2, 0.7], dtype=torch.float64),
}
CONFIDENCE = torch.tensor([0.4, 0.65], dtype=torch.float64)


def _value(p, gamma):
    return -((1 - p) ** gamma) * math.log(p)


@pytest.mark.parametrize("confidence", [None, CONFIDENCE])
def test_the_value_is_equation_2_or_3(confidence):
    logits, labels = batch(30)
    expected = []
    for z, y in zip(logits, labels.tolist(), strict=True):
        p = float(torch.softmax(z, dim=0)[y])
        b = int(p > 0.5)
        shown = p if confidence is None else float(confidence[b])
        expected.append(_value(p, math.exp(4 * (shown - float(BINS["accuracy"][b])))))
    found = calfocal_loss(logits, labels, **BINS, confidence=confidence, lam=4.0, reduction="none")
    assert found.tolist() == pytest.approx(expected)


def test_in_case_1_the_exponent_carries_a_gradient():
    logits, labels = batch(30)

    def slope(p):
        step = 1e-6
        accuracy = 0.7 if p > 0.5 else 0.2
        low, high = (_value(q, math.exp(4 * (q - accuracy))) for q in (p - step, p + step))
        return (high - low) / (2 * step)

    found = gradient(lambda z, y: calfocal_loss(z, y, **BINS, lam=4.0, reduction="none"), logits, labels)
    torch.testing.assert_close(found, chained(slope, logits, labels), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("case", ["bin", "sample"])
def test_it_begins_near_focal_loss_with_gamma_1(case):
    logits, labels = batch()
    found = CalFocalLoss(case)(logits, labels)
    torch.testing.assert_close(found, focal_loss(logits, labels, gamma=1.0), rtol=0.3, atol=0)


def test_a_calibrated_bin_has_gamma_1_again():
    loss = CalFocalLoss(n_bins=1, lam=50.0)
    logits = torch.tensor([[9.0, 0.0]] * 4)
    loss.update(logits, torch.tensor([0, 0, 1, 1]))
    batch_ = batch()
    silent = loss(*batch_)
    loss.update(torch.zeros(4, 2), torch.tensor([0, 0, 1, 1]))
    torch.testing.assert_close(loss(*batch_), focal_loss(*batch_, gamma=1.0))
    assert silent < loss(*batch_)


def test_a_huge_strength_has_finite_gradients():
    logits, labels = batch(30, spread=10.0)
    loss = CalFocalLoss("sample", n_bins=3, lam=1e4)
    loss.update(logits, (labels + 1) % 5)
    for dtype in (torch.float32, torch.float64):
        assert torch.isfinite(gradient(loss, logits.to(dtype), labels)).all()


def test_bins_and_history_survive_a_checkpoint():
    loss = CalFocalLoss(n_bins=4)
    loss.update(*batch(40))
    restored = CalFocalLoss(n_bins=4)
    restored.load_state_dict(loss.state_dict())
    assert restored.history == loss.history
    assert sorted(loss.history[0]) == ["accuracy", "confidence", "edges"]
    assert restored(*batch(seed=3)) == loss(*batch(seed=3))


def test_an_unknown_case_is_refused():
    with pytest.raises(InputError, match="^case: expected 'bin' or 'sample', got 'class'"):
        CalFocalLoss("class")
