import pytest
import torch

from calibrant.losses.dca import DCALoss, dca_loss, mdca_loss
from calibrant.losses.loss import Loss


def _batch(n=25, k=4, seed=4):
    generator = torch.Generator().manual_seed(seed)
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


def test_it_is_the_gap_of_each_class_averaged_over_classes():
    logits, labels = _batch(seed=5)
    p = torch.softmax(logits, dim=1)
    gaps = [(p[:, k].mean() - (labels == k).double().mean()).abs() for k in range(4)]
    torch.testing.assert_close(mdca_loss(logits, labels), torch.stack(gaps).mean())


def test_the_gradient_of_mdca_passes_gradcheck_twice():
    logits, labels = _batch(n=6, seed=5)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: mdca_loss(z, labels), logits)
    assert torch.autograd.gradgradcheck(lambda z: mdca_loss(z, labels), logits)


def test_predicting_the_frequencies_of_the_classes_is_zero():
    labels = torch.tensor([0, 0, 0, 1])
    logits = torch.tensor([0.75, 0.25], dtype=torch.float64).log().expand(4, 2)
    torch.testing.assert_close(mdca_loss(logits, labels), torch.zeros((), dtype=torch.float64))


def test_ignored_samples_count_neither_as_predictions_nor_as_occurrences():
    logits, labels = _batch(seed=5)
    labels[::4] = -100
    kept = labels != -100
    torch.testing.assert_close(mdca_loss(logits, labels), mdca_loss(logits[kept], labels[kept]))
