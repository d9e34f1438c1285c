import math

import pytest
import torch
import torch.nn.functional as F

from calibrant.errors import InputError
from calibrant.losses.parts.confidence import confidence_score
from calibrant.losses.selective_risk import (
    AURCLoss,
    SelectiveRiskLoss,
    aurc_loss,
    rank_weights,
    selective_risk_loss,
)

SCORES = {
    "msp": lambda p: p.max(),
    "softmax_margin": lambda p: p.sort().values[-1] - p.sort().values[-2],
    "negative_entropy": lambda p: 1 + (p * p.log()).sum() / math.log(len(p)),
}


def _batch(n=20, k=4):
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(n, k, dtype=torch.float64, generator=generator)
    return logits, torch.randint(0, k, (n,), generator=generator)


def _weights(scores, *, coverage, nu, n_bins=15, start=0.0, end=1.0):
    """Eq. 20-22 with loops; counts and the threshold are numbers, each score may carry a gradient."""
    n = len(scores)
    numbers = [float(s.detach()) for s in scores]
    counts = [0] * n_bins
    for s in numbers:
        counts[min(int((s - start) / (end - start) * n_bins), n_bins - 1)] += 1

    def below(s):
        centers = [start + (end - start) * (m + 0.5) / n_bins for m in range(n_bins)]
        return sum(h / n * torch.sigmoid((s - c) / nu) for h, c in zip(counts, centers, strict=True))

    threshold = torch.tensor(sorted(numbers)[min(int(coverage * n), n - 1)], dtype=torch.float64)
    scale = below(threshold)
    return torch.stack([-torch.log(1 - below(s if s < threshold else threshold)) / scale for s in scores])


@pytest.mark.parametrize("score", SCORES)
def test_scores_are_what_their_names_say_on_the_unit_interval(score):
    logits, _ = _batch()
    p = torch.softmax(logits, dim=1)
    expected = torch.stack([SCORES[score](row) for row in p])
    found = confidence_score(p.log(), score)
    torch.testing.assert_close(found, expected)
    assert 0 <= float(found.min()) <= float(found.max()) <= 1


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(("coverage", "nu"), [(0.9, 0.05), (0.5, 0.1), (0.4, 0.01)])
def test_the_value_is_the_estimator_of_equation_23(score, coverage, nu):
    logits, labels = _batch()
    weights = _weights(confidence_score(logits.log_softmax(1), score), coverage=coverage, nu=nu)
    expected = (weights * F.cross_entropy(logits, labels, reduction="none")).mean()
    found = selective_risk_loss(logits, labels, score=score, coverage=coverage, nu=nu)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dial", [0.0, 0.25, 1.0])
def test_the_gradient_is_equation_36_with_the_weights_part_scaled_by_the_dial(score, dial):
    logits, labels = _batch()
    z = logits.clone().requires_grad_()
    selective_risk_loss(z, labels, score=score, weight_gradient=dial, reduction="sum").backward()

    def part(through_weight):
        z = logits.clone().requires_grad_()
        weights = _weights(confidence_score(z.log_softmax(1), score), coverage=0.5, nu=0.05)
        nll = F.cross_entropy(z, labels, reduction="none")
        product = weights * nll.detach() if through_weight else weights.detach() * nll
        return torch.autograd.grad(product.sum(), z)[0]

    torch.testing.assert_close(z.grad, dial * part(True) + part(False))


def test_negative_entropy_on_its_raw_scale_is_the_estimator_between_minus_log_k_and_0():
    logits, labels = _batch(k=6)

    def by_definition(z):
        p = z.softmax(1)
        weights = _weights((p * p.log()).sum(1), coverage=0.4, nu=0.2, start=-math.log(6), end=0.0)
        return (weights * F.cross_entropy(z, labels, reduction="none")).mean()

    def ours(z, **options):
        return selective_risk_loss(
            z, labels, score="negative_entropy", coverage=0.4, nu=0.2, weight_gradient=1.0, **options
        )

    z, same = (logits.clone().requires_grad_() for _ in range(2))
    expected, found = by_definition(z), ours(same, raw_scale=True)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, same), torch.autograd.grad(expected, z))
    assert not torch.isclose(found, ours(logits))


@pytest.mark.parametrize("score", ["msp", "softmax_margin"])
def test_other_scores_have_one_scale(score):
    logits, labels = _batch()
    raw = selective_risk_loss(logits, labels, score=score, raw_scale=True)
    assert torch.equal(raw, selective_risk_loss(logits, labels, score=score))


def test_weights_average_to_about_one_and_grow_with_confidence():
    logits, _ = _batch(n=4000)
    labels = torch.zeros(4000, dtype=torch.int64)
    nll = F.cross_entropy(logits, labels, reduction="none")
    weights = selective_risk_loss(logits, labels, score="msp", nu=0.01, reduction="none") / nll
    assert float(weights.mean()) == pytest.approx(1, abs=0.05)
    order = torch.softmax(logits, dim=1).amax(dim=1).argsort()
    assert (weights[order].diff() > -1e-9).all()


def test_full_coverage_and_equal_scores_stay_finite():
    logits = torch.zeros(6, 3, requires_grad=True)
    loss = selective_risk_loss(
        logits, torch.tensor([0, 1, 2] * 2), coverage=1.0, nu=1e-4, weight_gradient=1.0
    )
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()


def test_warm_up_is_cross_entropy_until_its_epochs_have_ended():
    logits, labels = _batch()
    loss = SelectiveRiskLoss(warmup=2)
    values = []
    for _ in range(3):
        values.append(float(loss(logits, labels)))
        loss.update()
    plain = float(F.cross_entropy(logits, labels))
    assert values == [pytest.approx(plain), pytest.approx(plain), pytest.approx(float(loss(logits, labels)))]
    assert values[2] != pytest.approx(plain)


def test_the_epoch_is_saved_and_restored():
    loss = SelectiveRiskLoss(warmup=2)
    loss.update()
    other = SelectiveRiskLoss(warmup=2)
    other.load_state_dict(loss.state_dict())
    other.update()
    logits, labels = _batch()
    torch.testing.assert_close(other(logits, labels), selective_risk_loss(logits, labels))


def test_the_default_learns_where_the_full_gradient_collapses():
    generator = torch.Generator().manual_seed(0)
    centers = 2 * torch.randn(20, 10, generator=generator)
    labels = torch.randint(0, 20, (600,), generator=generator)
    inputs = centers[labels] + torch.randn(600, 10, generator=generator)

    def accuracy(loss):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(10, 64), torch.nn.ReLU(), torch.nn.Linear(64, 20))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(60):
            optimizer.zero_grad()
            loss(model(inputs), labels).backward()
            optimizer.step()
            loss.update()
        return float((model(inputs).argmax(dim=1) == labels).float().mean())

    plain = accuracy(SelectiveRiskLoss(warmup=60))
    assert accuracy(SelectiveRiskLoss()) > plain - 0.02
    assert accuracy(SelectiveRiskLoss(score="msp", coverage=0.9, weight_gradient=1.0)) < plain - 0.1


@pytest.mark.parametrize(
    ("option", "value"), [("coverage", 0.0), ("coverage", 1.5), ("nu", 0.0), ("weight_gradient", 2.0)]
)
def test_options_outside_their_range_are_refused(option, value):
    with pytest.raises(InputError, match=f"^{option}: expected"):
        SelectiveRiskLoss(**{option: value})


def test_an_unknown_score_is_refused_by_name():
    with pytest.raises(
        InputError, match="^score: expected 'msp', 'softmax_margin' or 'negative_entropy', got 'energy'"
    ):
        selective_risk_loss(*_batch(), score="energy")


def _aurc_batch(n=30, k=4):
    generator = torch.Generator().manual_seed(2)
    logits = 2 * torch.randn(n, k, dtype=torch.float64, generator=generator)
    return logits, torch.randint(0, k, (n,), generator=generator)


@pytest.mark.parametrize("score", ["msp", "softmax_margin", "negative_entropy"])
def test_it_is_the_area_under_the_risk_coverage_curve(score):
    logits, labels = _aurc_batch()
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


def test_the_aurc_of_a_batch_of_one_is_cross_entropy():
    logits, labels = torch.tensor([[0.3, 1.0, -1.0]]), torch.tensor([2])
    torch.testing.assert_close(AURCLoss()(logits, labels), F.cross_entropy(logits, labels))


def test_the_gradient_is_that_of_cross_entropy_times_the_weight():
    logits, labels = _aurc_batch()
    z = logits.clone().requires_grad_()
    aurc_loss(z, labels, reduction="sum").backward()
    p = torch.softmax(logits, dim=1)
    expected = rank_weights(p.amax(dim=1))[:, None] * (p - F.one_hot(labels, 4))
    torch.testing.assert_close(z.grad, expected)
