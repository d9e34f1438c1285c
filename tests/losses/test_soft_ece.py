import math

import pytest
import torch

from calibrant.losses.soft_ece import charbonnier_loss, soft_ece_loss


def _batch(n=30, k=4):
    generator = torch.Generator().manual_seed(7)
    logits = 2 * torch.randn(n, k, dtype=torch.float64, generator=generator)
    return logits, torch.randint(0, k, (n,), generator=generator)


def _by_loop(logits, labels, *, size, n_bins=15, lam=200.0):
    r, predicted = torch.softmax(logits, dim=1).max(dim=1)
    right = (predicted == labels).tolist()
    held, gap = [0.0] * n_bins, [0.0] * n_bins
    for r_i, right_i in zip(r.tolist(), right, strict=True):
        near = [math.exp(-lam * (r_i - (b + 0.5) / n_bins) ** 2) for b in range(n_bins)]
        for b in range(n_bins):
            share = near[b] / sum(near)
            held[b] += share
            gap[b] += share * (r_i - right_i)
    return sum(h / len(r) * size(g / h) for h, g in zip(held, gap, strict=True))


def test_soft_ece_is_the_mean_size_of_the_gaps_of_shared_bins():
    logits, labels = _batch()
    expected = _by_loop(logits, labels, size=abs)
    assert float(soft_ece_loss(logits, labels)) == pytest.approx(expected)


def test_charbonnier_rounds_off_the_size_of_each_gap():
    logits, labels = _batch()
    expected = _by_loop(logits, labels, size=lambda gap: math.hypot(gap, 0.1))
    assert float(charbonnier_loss(logits, labels, delta=0.1)) == pytest.approx(expected)


@pytest.mark.parametrize("loss", [soft_ece_loss, charbonnier_loss])
def test_the_gradient_passes_gradcheck(loss):
    logits, labels = _batch(n=6)
    assert torch.autograd.gradcheck(lambda z: loss(z, labels, n_bins=5, lam=20.0), logits.requires_grad_())


@pytest.mark.parametrize("loss", [soft_ece_loss, charbonnier_loss])
def test_sharp_bins_that_nobody_reaches_leave_the_gradient_finite(loss):
    logits = torch.tensor([[1e4, 0.0], [0.0, 0.1]], requires_grad=True)
    loss(logits, torch.tensor([0, 0]), n_bins=50, lam=1e5).backward()
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("loss", [soft_ece_loss, charbonnier_loss])
def test_autocast_does_not_round_the_sums_over_samples(loss):
    logits, labels = _batch(n=200)
    logits = logits.float()
    plain = loss(logits, labels)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(loss(logits, labels), plain)


def test_a_batch_at_the_floor_of_charbonnier_has_no_gradient_of_the_gap():
    logits = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
    value = charbonnier_loss(logits, torch.tensor([0, 1]))
    assert float(value.detach()) == pytest.approx(1e-3)
