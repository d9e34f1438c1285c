"""AdaFocal: Algorithm 1, its state, and its switch."""

import io
import math

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load, save

from calibrant.bins import top_label_bins
from calibrant.errors import InputError
from calibrant.losses.adafocal import (
    AdaFocalLoss,
    CalFocalLoss,
    adafocal_loss,
    bin_of_true_class,
    calfocal_loss,
    updated_gammas,
    validation_bins,
)
from calibrant.losses.focal import FocalLoss, focal_loss
from calibrant.losses.inverse_focal import inverse_focal_loss
from calibrant.losses.loss import _EPOCH
from calibrant.losses.ols import OLSLoss
from calibrant.losses.selective_risk import SelectiveRiskLoss
from tests.losses.batches import batch, chained, gradient

RULE = {"lam": 1.0, "gamma_max": 20.0, "gamma_min": -2.0, "switch": 0.2}


def _algorithm_1(gammas, gap):
    """Lines 14 to 23, bin by bin."""
    new = []
    for gamma, error in zip(gammas, gap, strict=True):
        if gamma >= 0:
            value = min(20.0, gamma * math.exp(error))
            new.append(-0.2 if abs(value) < 0.2 else value)
        else:
            value = max(-2.0, gamma * math.exp(-error))
            new.append(0.2 if abs(value) < 0.2 else value)
    return new


def _equal_mass_gaps(logits, labels, n_bins):
    """Edges and C - A of bins of equal count, from the sorted confidences."""
    p = torch.softmax(logits, dim=1)
    samples = sorted(
        (float(row.max()), float(row.argmax() == y)) for row, y in zip(p, labels.tolist(), strict=True)
    )
    size = len(samples) // n_bins
    parts = [samples[b * size : (b + 1) * size] for b in range(n_bins)]
    edges = [samples[0][0]] + [part[-1][0] for part in parts]
    return edges, [sum(c - a for c, a in part) / size for part in parts]


def test_epochs_of_updates_follow_algorithm_1():
    loss = AdaFocalLoss(n_bins=5)
    gammas = [1.0] * 5
    for epoch in range(12):
        logits, labels = batch(60, seed=epoch, spread=1.0 + epoch / 2)
        loss.update(logits, labels)
        edges, gap = _equal_mass_gaps(logits, labels, 5)
        gammas = _algorithm_1(gammas, gap)
        assert loss.edges.tolist() == pytest.approx(edges, rel=1e-5)
        assert loss.gammas.tolist() == pytest.approx(gammas, rel=1e-5)
        assert loss.history[epoch]["gap"] == pytest.approx(gap, abs=1e-5)
    assert max(gammas) > 5


@pytest.mark.parametrize(
    ("gamma", "gap", "expected"),
    [
        (1.0, 0.5, math.exp(0.5)),  # overconfident: a stronger focal loss
        (1.0, -0.5, math.exp(-0.5)),  # underconfident: a weaker one
        (19.0, 0.9, 20.0),  # bounded
        (0.25, -0.5, -0.2),  # to inverse focal loss
        (-0.2, -0.5, -0.2 * math.exp(0.5)),  # still underconfident: a stronger inverse focal loss
        (-1.9, -0.9, -2.0),  # bounded
        (-0.25, 0.5, 0.2),  # back to focal loss
        (0.2, 0.0, 0.2),  # on the threshold, calibrated: stays
        (-0.2, 0.0, -0.2),
        (0.0, 0.0, -0.2),  # gamma 0 counts as focal loss
    ],
)
def test_each_case_of_the_gamma_update(gamma, gap, expected):
    found = updated_gammas(torch.tensor([gamma]), torch.tensor([gap]), **RULE)
    assert float(found) == pytest.approx(expected)


def test_a_bin_that_rests_on_the_threshold_does_not_flip_by_rounding():
    # 0.7 is smaller in single precision.
    loss = AdaFocalLoss(n_bins=1, gamma=0.7, switch=0.7)
    gammas = updated_gammas(loss.gammas, torch.zeros(1), **(RULE | {"switch": 0.7}))
    assert float(gammas) == pytest.approx(0.7)


def test_it_begins_as_focal_loss_with_gamma_1():
    logits, labels = batch()
    torch.testing.assert_close(AdaFocalLoss()(logits, labels), focal_loss(logits, labels, gamma=1.0))


def test_gamma_0_is_cross_entropy():
    logits, labels = batch()
    torch.testing.assert_close(AdaFocalLoss(gamma=0.0)(logits, labels), F.cross_entropy(logits, labels))


def test_value_and_gradient_are_piecewise_those_of_focal_and_inverse_focal_loss():
    logits, labels = batch(60, spread=3.0)
    edges, gammas = torch.tensor([0.1, 0.3, 0.8, 0.9]), torch.tensor([4.0, -1.5, 0.5])
    p = torch.softmax(logits, dim=1)[torch.arange(60), labels]
    place = (p[:, None] > torch.tensor([0.3, 0.8])).sum(dim=1)
    assert set(place.tolist()) == {0, 1, 2}
    pieces = [
        lambda z, y: focal_loss(z, y, gamma=4.0, reduction="none"),
        lambda z, y: inverse_focal_loss(z, y, gamma=1.5, reduction="none"),
        lambda z, y: focal_loss(z, y, gamma=0.5, reduction="none"),
    ]

    def found(z, y):
        return adafocal_loss(z, y, edges=edges, gammas=gammas, reduction="none")

    rows = torch.arange(60)
    values = torch.stack([piece(logits, labels) for piece in pieces])[place, rows]
    slopes = torch.stack([gradient(piece, logits, labels) for piece in pieces])[place, rows]
    torch.testing.assert_close(found(logits, labels), values)
    torch.testing.assert_close(gradient(found, logits, labels), slopes)


def test_training_samples_are_placed_by_the_true_class_not_by_the_top_one():
    loss = AdaFocalLoss(n_bins=2)
    loss.gammas.copy_(torch.tensor([5.0, 0.0]))
    logits, label = torch.tensor([[0.0, 3.0]]), torch.tensor([0])  # p_y = 0.05, top 0.95
    assert float(loss(logits, label)) == pytest.approx(float(focal_loss(logits, label, gamma=5.0)))


def test_forward_alone_learns_nothing():
    loss = AdaFocalLoss()
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    logits, labels = batch()
    loss(logits.requires_grad_(), labels).backward()
    for name, value in loss.state_dict().items():
        assert torch.equal(value, before[name])


def test_an_empty_bin_keeps_its_exponent():
    loss = AdaFocalLoss(n_bins=3)
    loss.gammas.copy_(torch.tensor([1.0, 3.0, -0.5]))
    loss.update(torch.zeros(6, 2), torch.tensor([0, 0, 0, 1, 1, 1]))  # one confidence for all
    assert loss.gammas.tolist() == [1.0, 3.0, -0.5]


def test_overconfidence_is_answered_until_the_bound():
    loss = AdaFocalLoss(n_bins=1)
    logits = torch.tensor([[9.0, 0.0]] * 4)
    for _ in range(10):
        loss.update(logits, torch.tensor([0, 1, 1, 1]))
    assert loss.gammas.tolist() == [20.0]
    assert len(loss.history) == 10


def test_training_resumes_from_a_checkpoint():
    loss = AdaFocalLoss(n_bins=5)
    for epoch in range(3):
        loss.update(*batch(60, seed=epoch))
    file = io.BytesIO()
    torch.save(loss.state_dict(), file)
    file.seek(0)
    by_torch, by_safetensors = AdaFocalLoss(n_bins=5), AdaFocalLoss(n_bins=5)
    by_torch.load_state_dict(torch.load(file, weights_only=True))
    by_safetensors.load_state_dict(load(save(loss.state_dict())))
    logits, labels = batch(seed=9)
    for restored in (by_torch, by_safetensors):
        assert restored.history == loss.history
        assert restored(logits, labels) == loss(logits, labels)
        restored.update(logits, labels)
    assert torch.equal(by_torch.gammas, by_safetensors.gammas)


def test_an_update_without_validation_data_is_refused():
    with pytest.raises(InputError, match="^update: expected the logits and labels of the validation set"):
        AdaFocalLoss().update()


def test_a_switch_beyond_the_bounds_is_refused():
    with pytest.raises(InputError, match="^switch: expected a positive number within"):
        AdaFocalLoss(switch=3.0)


def test_the_bins_are_the_library_s_bins_of_equal_mass():
    logits, labels = batch(100)
    found = validation_bins(logits, labels, n_bins=7)
    expected = top_label_bins(torch.softmax(logits, dim=1), labels, n_bins=7, binning="mass")
    torch.testing.assert_close(found.edges, expected.edges)
    assert torch.equal(found.count, expected.count)
    assert torch.equal(found.correct_sum, expected.correct_sum)


def test_ignored_and_dense_samples_are_counted_as_rows():
    logits, labels = batch(24)
    labels[5] = -100
    dense = logits.view(4, 6, 5).movedim(-1, 1)
    found = validation_bins(dense, labels.view(4, 6), n_bins=3)
    assert found.n == 23
    torch.testing.assert_close(found.edges, validation_bins(logits, labels, n_bins=3).edges)


def test_probabilities_are_placed_as_a_loop_would():
    edges = torch.tensor([0.2, 0.4, 0.4, 0.9, 1.0], dtype=torch.float64)
    p = torch.tensor([1e-30, 0.1, 0.2, 0.3, 0.4, 0.41, 0.9, 0.95, 1.0], dtype=torch.float64)

    def place(value):
        return next((b for b in range(3) if value <= edges[b + 1]), 3)

    nll = -torch.log(p)
    expected = [place(value) for value in torch.exp(-nll)]
    assert bin_of_true_class(nll, edges).tolist() == expected
    assert set(expected) == {0, 2, 3}


def test_missing_validation_data_are_named():
    with pytest.raises(InputError, match="^update: expected the logits and labels of the validation set"):
        validation_bins(None, None, n_bins=5)
    logits, labels = batch()
    with pytest.raises(InputError, match="^labels: expected validation samples that are not ignored"):
        validation_bins(logits, torch.full_like(labels, -100), n_bins=5)


def test_scores_that_have_diverged_are_refused():
    logits, labels = batch()
    logits[3, 2] = torch.nan
    with pytest.raises(InputError, match="^logits: expected finite validation scores"):
        validation_bins(logits, labels, n_bins=5)


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


@pytest.mark.parametrize(
    "make",
    [
        AdaFocalLoss,
        CalFocalLoss,
        lambda: OLSLoss(5),
        lambda: 0.5 * OLSLoss(5),
        lambda: SelectiveRiskLoss(warmup=2),
        lambda: FocalLoss() + SelectiveRiskLoss(warmup=1),
    ],
)
def test_training_without_updates_is_noticed_once_after_an_epochs_worth_of_batches(make, monkeypatch):
    monkeypatch.setattr("calibrant.losses.loss._EPOCH", 3)
    logits, labels = batch()
    leaf = logits.clone().requires_grad_()
    loss, updated, looped, evaluated = make(), make(), make(), make().eval()
    updated.update(logits, labels)
    looped.expect_updates()
    for _ in range(5):  # none of these warns, which would be an error
        updated(leaf, labels)
        looped(leaf, labels)
        evaluated(leaf, labels)
        loss(logits, labels)  # without a gradient: no training
    loss(leaf, labels)
    loss(leaf, labels)
    with pytest.warns(
        UserWarning, match=r"Loss\(.*trained on 3 batches without an update.*call loss.update\("
    ):
        loss(leaf, labels)
    loss(leaf, labels)


def test_the_number_of_batches_that_is_an_epochs_worth_is_documented():
    assert f"{_EPOCH:,} batches" in AdaFocalLoss.__doc__


@pytest.mark.parametrize(
    "loss",
    [
        lambda z, y, **options: adafocal_loss(
            z, y, edges=torch.tensor([0, 0.2, 0.6, 1]), gammas=torch.tensor([5.0, 1.0, -2.0]), **options
        ),
        lambda z, y, **options: calfocal_loss(
            z, y, edges=torch.tensor([0, 0.5, 1]), accuracy=torch.tensor([0.1, 0.8]), **options
        ),
    ],
)
def test_the_loss_of_soft_labels_is_the_mixture_of_those_of_the_classes(loss):
    logits, _ = batch()
    soft = torch.softmax(batch(seed=3)[0], dim=1)
    of_class = [loss(logits, torch.full((12,), c), reduction="none") for c in range(5)]
    expected = (soft * torch.stack(of_class, dim=1)).sum(dim=1)
    torch.testing.assert_close(loss(logits, soft, reduction="none"), expected)
