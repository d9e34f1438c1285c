import pytest
import torch
import torch.nn.functional as F

from calibrant.errors import InputError
from calibrant.losses.supervised_contrastive import SupervisedContrastiveLoss, supervised_contrastive_loss


def _batch(n=12, d=5, classes=3):
    generator = torch.Generator().manual_seed(9)
    z = torch.randn(n, d, dtype=torch.float64, generator=generator)
    labels = torch.randint(0, classes, (n,), generator=generator)
    return z, labels


def _by_loop(z, labels, *, temperature):
    u = F.normalize(z, dim=1)
    terms = []
    for i in range(len(u)):
        others = [j for j in range(len(u)) if j != i]
        log_sum = torch.logsumexp(torch.stack([u[i] @ u[j] / temperature for j in others]), dim=0)
        friends = [j for j in others if labels[j] == labels[i]]
        if friends:
            terms.append(torch.stack([log_sum - u[i] @ u[j] / temperature for j in friends]).mean())
    return torch.stack(terms).mean()


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_value_and_gradient_are_those_of_the_definition(temperature):
    z, labels = _batch()
    mine, loop = z.clone().requires_grad_(), z.clone().requires_grad_()
    value = supervised_contrastive_loss(mine, labels, temperature=temperature)
    expected = _by_loop(loop, labels, temperature=temperature)
    value.backward()
    expected.backward()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(mine.grad, loop.grad)


def test_it_agrees_with_pytorch_metric_learning():
    from pytorch_metric_learning.losses import SupConLoss

    z, labels = _batch(n=40)
    torch.testing.assert_close(SupervisedContrastiveLoss()(z, labels), SupConLoss(temperature=0.1)(z, labels))


def test_a_sample_without_partner_repels_but_is_not_counted():
    z, labels = _batch()
    labels[0] = 99
    z.requires_grad_()
    value = supervised_contrastive_loss(z, labels)
    value.backward()
    torch.testing.assert_close(value, _by_loop(z, labels, temperature=0.1))
    assert torch.isfinite(z.grad).all()


def test_samples_that_are_settled_are_counted():
    # In single precision their loss rounds to 0; leaving them out would double the mean.
    z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.1], [-1.0, 0.3], [-1.0, -0.3]])
    labels = torch.tensor([0, 0, 1, 1, 1])
    expected = float(_by_loop(z.double(), labels, temperature=0.05))
    assert float(supervised_contrastive_loss(z, labels, temperature=0.05)) == pytest.approx(
        expected, rel=1e-4
    )


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2], [-100, -100, -100], [5, -100, -100]])
def test_a_batch_with_nothing_to_contrast_is_zero_without_a_gradient(labels):
    z = torch.randn(3, 4, requires_grad=True)
    loss = supervised_contrastive_loss(z, torch.tensor(labels))
    loss.backward()
    assert float(loss.detach()) == 0
    assert (z.grad == 0).all()


def test_two_views_of_a_sample_are_partners():
    z, labels = _batch()
    views = torch.stack([z, z.flip(0)], dim=1)
    flat, repeated = views.reshape(-1, 5), labels.repeat_interleave(2)
    torch.testing.assert_close(
        supervised_contrastive_loss(views, labels), _by_loop(flat, repeated, temperature=0.1)
    )


def test_autocast_does_not_round_the_similarities():
    z, labels = _batch(n=40)
    z = z.float()
    plain = supervised_contrastive_loss(z, labels)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(supervised_contrastive_loss(z, labels), plain)


def test_the_gradient_passes_gradcheck():
    z, labels = _batch(n=6)
    assert torch.autograd.gradcheck(lambda e: supervised_contrastive_loss(e, labels), z.requires_grad_())


@pytest.mark.parametrize("shape", [(4,), (4, 2, 3, 5)])
def test_embeddings_of_another_shape_are_refused(shape):
    with pytest.raises(InputError, match="^embeddings: expected"):
        supervised_contrastive_loss(torch.zeros(shape), torch.zeros(4, dtype=torch.int64))


def test_a_temperature_of_zero_is_refused():
    with pytest.raises(InputError, match="^temperature: expected a positive number, got 0"):
        SupervisedContrastiveLoss(temperature=0.0)(*_batch())
