"""Studies of losses and of SMART's training: against definitions written as plain loops."""

import math

import pytest
import torch

from calibrant.errors import InputError
from calibrant.losses.names import make_loss
from calibrant.papers.loss_studies import (
    distribution,
    gradient_study,
    gradients_by_probability,
    shape_study,
    smoothed_distribution,
    smoothed_distribution_study,
)
from calibrant.papers.smart_convergence import convergence_study

SETTINGS = {"classes": 10, "probabilities": [0.1, 0.3, 0.6, 0.9]}


def shapes(loss, *, rival=1 / 9, **settings):
    found = shape_study({"loss": loss, "rival": rival}, {**SETTINGS, **settings}, 0, None)
    return {record.labels["probability"]: record.values for record in found}


def test_a_distribution_has_the_probability_the_rival_and_equal_others():
    [row] = distribution(torch.tensor([0.4], dtype=torch.float64), rival=0.5, n_classes=5).tolist()
    assert row == pytest.approx([0.4, 0.3, 0.1, 0.1, 0.1])


def test_value_weight_and_gradient_of_focal_loss_are_those_of_its_formula():
    for p, values in shapes("focal(gamma=3.0)").items():
        assert values["value"] == pytest.approx(-((1 - p) ** 3) * math.log(p))
        assert values["weight"] == pytest.approx((1 - p) ** 3)
        # Section C.1 of the AU paper, with the sign of the derivative.
        assert values["gradient"] == pytest.approx(3 * (1 - p) ** 2 * math.log(p) - (1 - p) ** 3 / p)


@pytest.mark.parametrize("form", ["strongest", "dropped"])
def test_dual_focal_loss_has_its_rival_unless_it_is_dropped(form):
    for p, values in shapes(f"dual_focal(gamma=5.0, rival='{form}')", rival=0.5).items():
        rival = 0.5 * (1 - p)
        ahead = rival if p >= rival or form == "strongest" else 0.0
        assert values["weight"] == pytest.approx((1 - p + ahead) ** 5)


def test_calfocal_knows_the_accuracy_of_validation():
    for p, values in shapes("calfocal(case='sample', lam=10.0)", accuracy=0.8).items():
        expected = (1 - p) ** math.exp(10 * (p - 0.8))
        assert values["weight"] == pytest.approx(expected, abs=0.05)


def test_a_loss_of_the_whole_batch_is_refused():
    with pytest.raises(InputError, match="loss: expected one that has a value for each sample, got 'dca'"):
        shapes("dca")


@pytest.mark.parametrize("loss", ["cross_entropy", "inverse_focal", "aurc"])
def test_gradients_on_samples_are_difference_quotients_with_the_others_in_proportion(loss):
    generator = torch.Generator().manual_seed(0)
    probs = (2 * torch.randn(12, 4, generator=generator, dtype=torch.float64)).softmax(dim=1)
    labels = torch.randint(4, (12,), generator=generator)
    found, bins = gradients_by_probability(probs, labels, loss, 10)
    each = make_loss(loss, n_classes=4)
    for place, label in enumerate(labels.tolist()):
        p = float(probs[place, label])
        assert int(bins[place]) == int(10 * p)
        values = []
        for moved in (p - 1e-6, p + 1e-6):
            changed = probs.clone()
            changed[place] *= (1 - moved) / (1 - p)
            changed[place, label] = moved
            values.append(12 * float(each(changed.log(), labels)))
        assert float(found[place]) == pytest.approx((values[1] - values[0]) / 2e-6, rel=1e-4, abs=1e-6)


def test_gradients_are_recorded_after_the_epochs_that_are_named():
    settings = {"epochs": [1, 3], "bins": 5}
    records = list(gradient_study({"loss": "cross_entropy"}, settings, 0, None))
    assert {each.labels["epoch"] for each in records} == {1, 3}
    for epoch in (1, 3):
        shares = [each.values["share"] for each in records if each.labels["epoch"] == epoch]
        assert sum(shares) == pytest.approx(1)
    # The gradient of cross-entropy is -1 / p.
    for each in records:
        low, high = each.labels["probability"] - 0.1, each.labels["probability"] + 0.1
        assert -1 / max(low, 1e-6) <= each.values["gradient"] <= -1 / high


def test_the_smoothed_distribution_is_equation_21():
    scores = torch.tensor([0.1, 0.35, 0.5, 0.52, 0.97], dtype=torch.float64)
    n_bins, nu = 4, 0.07
    counts = [sum(m / n_bins <= s < (m + 1) / n_bins for s in scores.tolist()) for m in range(n_bins)]
    found, slope = smoothed_distribution(scores, nu=nu, n_bins=n_bins)
    for place, s in enumerate(scores.tolist()):
        steps = [1 / (1 + math.exp(-(s - (m + 0.5) / n_bins) / nu)) for m in range(n_bins)]
        assert float(found[place]) == pytest.approx(
            sum(c * g for c, g in zip(counts, steps, strict=True)) / 5
        )
        expected = sum(c * g * (1 - g) for c, g in zip(counts, steps, strict=True)) / 5 / nu
        assert float(slope[place]) == pytest.approx(expected)


def test_a_large_nu_is_smoother_and_further_away():
    def values(nu):
        settings = {"samples": 500, "bins": 15, "beta": [5.0, 1.5]}
        [record] = smoothed_distribution_study({"nu": nu}, settings, 0, None)
        return record.values

    assert values(0.2)["steepest"] < values(0.01)["steepest"]
    assert values(0.2)["mean"] > values(0.01)["mean"]


def test_the_loss_of_smart_falls_and_its_gradient_is_reported_at_the_epochs_named():
    key = {"source": "cifar10", "objective": "charbonnier"}
    records = list(convergence_study(key, {"epochs": [1, 3, 12]}, 0, None))
    assert [record.labels["epoch"] for record in records] == [1, 3, 12]
    losses = [record.values["loss"] for record in records]
    assert losses[0] > losses[1] > losses[2] > 0.001
    assert records[0].values["gradient_change"] is None
    assert all(record.values["gradient_norm"] > 0 for record in records)
