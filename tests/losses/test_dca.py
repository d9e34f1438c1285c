import pytest
import torch

from calibrant.losses.dca import DCALoss, dca_loss
from calibrant.losses.loss import Loss


def _batch(n=25, k=4):
    generator = torch.Generator().manual_seed(4)
    logits = 2 * torch.randn(n, k, dtype=torch.float64, generator=generator)
    return logits, torch.randint(0, k, (n,), generator=generator)


def test_it_is_the_gap_between_mean_confidence_and_accuracy():
    logits, labels = _batch()
    confidence, predicted = torch.softmax(logits, dim=1).max(dim=1)
    accuracy = sum(bool(hit) for hit in predicted == labels) / len(labels)
    assert float(dca_loss(logits, labels)) == pytest.approx(abs(float(confidence.mean()) - accuracy))


def test_the_gradient_passes_gradcheck():
    logits, labels = _batch(n=6)
    assert torch.autograd.gradcheck(lambda z: dca_loss(z, labels), logits.requires_grad_())


def test_an_overconfident_batch_is_pushed_towards_less_confidence():
    logits = torch.tensor([[3.0, 0.0], [3.0, 0.0]], requires_grad=True)
    dca_loss(logits, torch.tensor([0, 1])).backward()
    assert (logits.grad[:, 0] > 0).all()


def test_its_weight_in_a_sum_counts():
    logits, labels = _batch()
    assert isinstance(DCALoss(), Loss)
    torch.testing.assert_close((10.0 * DCALoss())(logits, labels), 10 * dca_loss(logits, labels))
