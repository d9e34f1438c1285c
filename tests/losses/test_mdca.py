import torch

from calibrant.losses.mdca import mdca_loss


def _batch(n=25, k=4):
    generator = torch.Generator().manual_seed(5)
    logits = 2 * torch.randn(n, k, dtype=torch.float64, generator=generator)
    return logits, torch.randint(0, k, (n,), generator=generator)


def test_it_is_the_gap_of_each_class_averaged_over_classes():
    logits, labels = _batch()
    p = torch.softmax(logits, dim=1)
    gaps = [(p[:, k].mean() - (labels == k).double().mean()).abs() for k in range(4)]
    torch.testing.assert_close(mdca_loss(logits, labels), torch.stack(gaps).mean())


def test_the_gradient_passes_gradcheck_twice():
    logits, labels = _batch(n=6)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: mdca_loss(z, labels), logits)
    assert torch.autograd.gradgradcheck(lambda z: mdca_loss(z, labels), logits)


def test_predicting_the_frequencies_of_the_classes_is_zero():
    labels = torch.tensor([0, 0, 0, 1])
    logits = torch.tensor([0.75, 0.25], dtype=torch.float64).log().expand(4, 2)
    torch.testing.assert_close(mdca_loss(logits, labels), torch.zeros((), dtype=torch.float64))


def test_ignored_samples_count_neither_as_predictions_nor_as_occurrences():
    logits, labels = _batch()
    labels[::4] = -100
    kept = labels != -100
    torch.testing.assert_close(mdca_loss(logits, labels), mdca_loss(logits[kept], labels[kept]))
