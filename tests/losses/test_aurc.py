import pytest
import torch
import torch.nn.functional as F

from calibrant.losses.aurc import AURCLoss, aurc_loss, rank_weights
from calibrant.losses.parts.scores import confidence_score


def _batch(n=30, k=4):
    generator = torch.Generator().manual_seed(2)
    logits = 2 * torch.randn(n, k, dtype=torch.float64, generator=generator)
    return logits, torch.randint(0, k, (n,), generator=generator)


@pytest.mark.parametrize("score", ["msp", "margin", "neg_entropy"])
def test_it_is_the_area_under_the_risk_coverage_curve(score):
    logits, labels = _batch()
    nll = F.cross_entropy(logits, labels, reduction="none")
    order = confidence_score(logits.log_softmax(1), score).argsort(descending=True)
    risks = [nll[order[:answered]].mean() for answered in range(1, len(nll) + 1)]
    torch.testing.assert_close(aurc_loss(logits, labels, score=score), torch.stack(risks).mean())


def test_weights_are_close_to_the_logarithmic_form_of_the_paper():
    n = 1000
    exact = rank_weights(torch.arange(n, dtype=torch.float64))
    ranks = torch.arange(1, n + 1, dtype=torch.float64)
    torch.testing.assert_close(exact[:900], -torch.log(1 - ranks / (n + 1))[:900], rtol=0.01, atol=1e-3)


def test_equal_confidences_share_the_mean_of_their_weights():
    found = rank_weights(torch.tensor([0.5, 0.9, 0.5, 0.1], dtype=torch.float64))
    ranked = [1 / 4, 1 / 4 + 1 / 3, 1 / 4 + 1 / 3 + 1 / 2, 1 / 4 + 1 / 3 + 1 / 2 + 1]
    shared = (ranked[1] + ranked[2]) / 2
    torch.testing.assert_close(found, torch.tensor([shared, ranked[3], shared, ranked[0]]).double())


def test_constant_confidence_gives_cross_entropy():
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    labels = torch.tensor([0, 0, 1])
    torch.testing.assert_close(aurc_loss(logits, labels), F.cross_entropy(logits, labels))


def test_a_batch_of_one_is_cross_entropy():
    logits, labels = torch.tensor([[0.3, 1.0, -1.0]]), torch.tensor([2])
    torch.testing.assert_close(AURCLoss()(logits, labels), F.cross_entropy(logits, labels))


def test_the_gradient_is_that_of_cross_entropy_times_the_weight():
    logits, labels = _batch()
    z = logits.clone().requires_grad_()
    aurc_loss(z, labels, reduction="sum").backward()
    p = torch.softmax(logits, dim=1)
    expected = rank_weights(p.amax(dim=1))[:, None] * (p - F.one_hot(labels, 4))
    torch.testing.assert_close(z.grad, expected)
