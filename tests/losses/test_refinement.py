import math

import pytest
import torch
import torch.nn.functional as F

from calibrant.errors import InputError
from calibrant.losses.refinement import RefinementLoss, refinement_loss
from calibrant.losses.supervised_contrastive import supervised_contrastive_loss


def _batch(n=16, d=5, classes=3, seed=8):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(n, d, dtype=torch.float64, generator=generator)
    labels = torch.randint(0, classes, (n,), generator=generator)
    labels[: 2 * classes] = torch.arange(classes).repeat(2)  # everyone has a friend and a foe
    return z, labels


def _by_loop(z, labels):
    terms = []
    for i in range(len(z)):
        friends = [
            (z[i] - z[j]).square().sum() / 2 for j in range(len(z)) if j != i and labels[j] == labels[i]
        ]
        foes = [(z[i] - z[j]).square().sum() / 2 for j in range(len(z)) if labels[j] != labels[i]]
        if friends and foes:
            terms.append(min(friends) - min(foes))
    return torch.stack(terms).mean()


def test_it_compares_the_nearest_of_the_own_class_with_the_nearest_of_another():
    z, labels = _batch()
    mine, loop = z.clone().requires_grad_(), z.clone().requires_grad_()
    value, expected = refinement_loss(mine, labels, normalize=False), _by_loop(loop, labels)
    value.backward()
    expected.backward()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(mine.grad, loop.grad)


def test_embeddings_are_put_on_the_unit_sphere_by_default():
    z, labels = _batch()
    torch.testing.assert_close(refinement_loss(7 * z, labels), _by_loop(F.normalize(z, dim=1), labels))


def test_lemma_1_half_the_squared_distance_of_unit_vectors_is_one_minus_their_cosine():
    # So the loss on the unit sphere compares the nearest cosines of the other classes and of the own class.
    z, labels = _batch()
    cosine = F.cosine_similarity(z[:, None], z[None], dim=2)
    same = labels[:, None] == labels
    friend = cosine.masked_fill(~same | torch.eye(len(z), dtype=torch.bool), -math.inf).amax(dim=1)
    foe = cosine.masked_fill(same, -math.inf).amax(dim=1)
    assert torch.isfinite(friend).all()
    torch.testing.assert_close(refinement_loss(z, labels), (foe - friend).mean())


def test_a_sample_without_friend_contributes_nothing():
    z, labels = _batch()
    alone = torch.cat([labels, torch.tensor([99])])
    more = torch.cat([z, 100 * torch.ones(1, 5, dtype=torch.float64)])  # too far to be anyone's nearest
    torch.testing.assert_close(
        refinement_loss(more, alone, normalize=False), refinement_loss(z, labels, normalize=False)
    )


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2]])
def test_a_batch_of_one_class_or_of_singletons_is_zero_without_a_gradient(labels):
    z = torch.randn(3, 4, requires_grad=True)
    loss = refinement_loss(z, torch.tensor(labels))
    loss.backward()
    assert float(loss.detach()) == 0
    assert (z.grad == 0).all()


def test_views_of_a_sample_are_friends():
    z, labels = _batch()
    views = torch.stack([z, z.flip(0)], dim=1)
    flat, repeated = views.reshape(-1, 5), labels.repeat_interleave(2)
    torch.testing.assert_close(refinement_loss(views, labels), refinement_loss(flat, repeated))


def test_the_gradient_passes_gradcheck():
    z, labels = _batch(n=6)
    assert torch.autograd.gradcheck(lambda e: refinement_loss(e, labels), z.requires_grad_())


@pytest.mark.parametrize("seed", range(20))
def test_lemma_2_the_supervised_contrastive_loss_is_an_upper_bound_on_unit_vectors(seed):
    z, labels = _batch(n=24, d=3 + seed % 5, classes=2 + seed % 4, seed=seed)
    upper = supervised_contrastive_loss(z, labels, temperature=1.0)
    assert float(refinement_loss(z, labels)) < float(upper)
    # A smaller temperature stretches the distances, and the bound with them.
    sharp = 0.1 * supervised_contrastive_loss(z, labels, temperature=0.1)
    assert float(refinement_loss(z, labels)) < float(sharp) + 1e-12


def test_lemma_2_is_about_the_mean_over_positives_and_holds_for_separated_classes():
    z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]])
    labels = torch.tensor([0, 0, 1, 1])
    assert float(refinement_loss(z, labels)) == pytest.approx(-2)
    upper = math.log(1 + 2 * math.exp(-2))  # one friend at distance 0, two foes at the far pole
    assert float(supervised_contrastive_loss(z, labels, temperature=1.0)) == pytest.approx(upper, rel=1e-5)


def test_labels_of_another_length_are_refused():
    with pytest.raises(
        InputError, match=r"^labels: expected integer classes \(torch.int64\) of shape \(4,\)"
    ):
        RefinementLoss()(torch.zeros(4, 2), torch.zeros(3, dtype=torch.int64))
