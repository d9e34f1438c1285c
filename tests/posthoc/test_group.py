"""Group calibration: temperatures for learned groups."""

import numpy as np
import pytest
import torch
from scipy.optimize import check_grad

from calibrant.data import load_bundled
from calibrant.errors import InputError
from calibrant.metrics import expected_calibration_error, negative_log_likelihood
from calibrant.posthoc import GroupCalibration, TemperatureScaling, load_calibrator
from calibrant.posthoc.group import PartitionLikelihood
from calibrant.posthoc.names import METHODS
from tests.conftest import draw
from tests.rounding import assert_equal_up_to_rounding


def two_groups(n, seed=0, k=4):
    """Logits that are right in one half of feature space and five times too large in the other."""
    logits, labels = draw(n, k, seed=seed)
    features = np.random.default_rng(seed + 100).normal(size=(n, 3))
    bold = features[:, 0] > 0
    return np.where(bold[:, None], 5 * logits, logits), labels, features * [4, 1, 1] + [1, 0, 0], bold


@pytest.fixture(scope="module")
def halves():
    return two_groups(3000)


def test_the_groups_that_spoiled_the_logits_are_found(halves):
    logits, labels, features, _ = halves
    calibrator = GroupCalibration.fit(logits, labels, features=features)
    assert np.sort(calibrator.temperature.numpy(), axis=1).mean(axis=0) == pytest.approx([1, 5], rel=0.15)
    new_logits, new_labels, new_features, _ = two_groups(3000, seed=1)
    grouped = negative_log_likelihood(calibrator.predict_proba(new_logits, new_features), new_labels)
    common = TemperatureScaling.fit(logits, labels).predict_proba(new_logits)
    oracle = draw(3000, 4, seed=1)
    best = negative_log_likelihood(logits=oracle[0], labels=oracle[1])
    assert grouped - best < 0.25 * (negative_log_likelihood(common, new_labels) - best)


def test_the_output_is_the_mean_of_mixtures():
    weight, bias = torch.randn(2, 3, 4), torch.randn(2, 3)
    temperature = torch.tensor([[0.5, 1.0, 2.0], [3.0, 1.5, 0.8]])
    calibrator = GroupCalibration(weight, bias, temperature, on_features=True)
    z, h = torch.randn(6, 5), torch.randn(6, 4)
    expected = torch.zeros(6, 5)
    for i in range(6):
        for u in range(2):
            share = torch.softmax(weight[u] @ h[i] + bias[u], dim=0)
            for g in range(3):
                expected[i] += share[g] * torch.softmax(z[i] / temperature[u, g], dim=0) / 2
    assert torch.allclose(calibrator(z, h).exp(), expected, atol=1e-5)


@pytest.mark.parametrize("with_features", [True, False])
def test_hard_groups_have_the_temperature_of_their_own_samples(halves, with_features):
    """The paper: each sample in its likeliest group, a temperature for each, the mean over partitions."""
    logits, labels, features, _ = (part[:600] for part in halves)
    seen = features if with_features else logits
    options = {"features": features} if with_features else {}
    soft = GroupCalibration.fit(logits, labels, n_partitions=3, **options)
    hard = GroupCalibration.fit(logits, labels, n_partitions=3, hard=True, **options)
    assert torch.equal(soft.weight, hard.weight)
    expected = np.zeros_like(logits)
    for u in range(3):
        places = seen @ soft.weight[u].numpy().T + soft.bias[u].numpy()
        group = places.argmax(axis=1)
        for g in range(2):
            if (group == g).any():
                one = TemperatureScaling.fit(logits[group == g], labels[group == g])
                expected[group == g] += one.predict_proba(logits[group == g]) / 3
    assert hard.predict_proba(logits, features) == pytest.approx(expected, abs=2e-5)


def test_a_group_without_samples_has_the_common_temperature():
    logits, labels = draw(200, 3, sharpen=2.0)
    common = float(TemperatureScaling.fit(logits, labels).temperature)
    constant = np.ones((200, 2))  # nothing to separate groups by
    fitted = GroupCalibration.fit(logits, labels, features=constant, hard=True, n_partitions=1)
    assert fitted.temperature.flatten().tolist() == pytest.approx([common, common])


def test_hard_groups_come_back_from_a_file(halves, tmp_path):
    logits, labels, features, _ = halves
    fitted = METHODS["group_paper"].fit(logits[:300], labels[:300], features=features[:300])
    assert fitted.temperature.shape == (20, 2)
    fitted.save(tmp_path / "hard.safetensors")
    loaded = load_calibrator(tmp_path / "hard.safetensors")
    assert loaded.hard is True
    assert_equal_up_to_rounding(
        loaded.predict_proba(logits, features), fitted.predict_proba(logits, features)
    )


@pytest.mark.parametrize("k", [4, 40])
def test_the_likelihood_is_that_of_the_definition_and_has_its_slope(k):
    logits, labels = draw(50, k, seed=2)
    z, y, h = torch.tensor(logits), torch.tensor(labels), torch.randn(50, 3, dtype=torch.float64)
    likelihood = PartitionLikelihood(z, y, h, n_groups=2, weight_decay=0.5)
    x = np.random.default_rng(0).normal(size=8)
    weight, beta = x[:6].reshape(2, 3), np.exp(x[6:])
    expected = 0.5 * 3 / (2 * 50) * (weight**2).sum()
    for i in range(50):
        share = np.exp(weight @ h[i].numpy())
        p = [torch.softmax(b * z[i], dim=0)[y[i]].item() for b in beta]
        expected -= np.log(share @ p / share.sum()) / 50
    assert likelihood._loss(x)[0] == pytest.approx(expected, abs=2e-5)
    assert check_grad(lambda x: likelihood._loss(x)[0], lambda x: likelihood._loss(x)[1], x) < 1e-5


@pytest.mark.parametrize("with_features", [True, False])
@pytest.mark.parametrize("n", [12, 50, 400])
def test_the_fitting_set_is_never_less_likely_than_by_temperature_scaling(with_features, n):
    logits, labels = draw(n, 4, seed=n, sharpen=2.0)
    features = np.random.default_rng(n).normal(size=(n, 20)) if with_features else None
    calibrator = GroupCalibration.fit(logits, labels, features=features)
    grouped = negative_log_likelihood(calibrator.predict_proba(logits, features), labels)
    common = TemperatureScaling.fit(logits, labels).predict_proba(logits)
    assert grouped <= negative_log_likelihood(common, labels) + 2e-5


def test_real_predictions_get_better():
    val, test = load_bundled("cifar10_val"), load_bundled("cifar10_test")
    calibrator = GroupCalibration.fit(val.logits, val.labels, features=val.features, n_partitions=2)
    probs = calibrator.predict_proba(test.logits, test.features)
    common = TemperatureScaling.fit(val.logits, val.labels).predict_proba(test.logits)
    assert expected_calibration_error(probs, test.labels) < expected_calibration_error(common, test.labels)
    assert negative_log_likelihood(probs, test.labels) < negative_log_likelihood(common, test.labels)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_the_scale_of_the_logits_does_not_matter(halves, scale):
    logits, labels, _, _ = halves
    base = GroupCalibration.fit(logits[:300], labels[:300], n_partitions=1)
    other = GroupCalibration.fit(scale * logits[:300], labels[:300], n_partitions=1)
    assert other.predict_proba(scale * logits[:300]) == pytest.approx(
        base.predict_proba(logits[:300]), abs=1e-4
    )


def test_the_predicted_class_never_changes(halves):
    logits, labels, features, _ = halves
    calibrator = GroupCalibration.fit(logits, labels, features=features)
    ties = np.random.default_rng(0).integers(0, 2, size=logits.shape).astype(np.float32)
    for rows in (logits, logits.astype(np.float32), ties, 1e4 * logits):
        probs = calibrator.predict_proba(rows, features)
        assert (np.argmax(probs, axis=1) == rows.argmax(axis=1)).all()
        assert probs.sum(axis=1) == pytest.approx(1, abs=1e-5)


def test_a_seed_gives_the_same_result_again(halves):
    logits, labels, features, _ = halves
    one, same, other = (
        GroupCalibration.fit(logits[:200], labels[:200], features=features[:200], seed=s) for s in (1, 1, 2)
    )
    assert torch.equal(one.weight, same.weight)
    assert not torch.equal(one.weight, other.weight)


@pytest.mark.parametrize("with_features", [True, False])
def test_it_comes_back_from_a_file_the_same(halves, with_features, tmp_path):
    logits, labels, features, _ = halves
    h = features if with_features else None
    calibrator = GroupCalibration.fit(logits, labels, features=h, n_partitions=1)
    calibrator.save(tmp_path / "saved.safetensors")
    loaded = load_calibrator(tmp_path / "saved.safetensors")
    assert loaded.on_features is with_features
    assert_equal_up_to_rounding(loaded.predict_proba(logits, h), calibrator.predict_proba(logits, h))


def test_features_are_needed_only_if_there_were_features(halves):
    logits, labels, features, _ = halves
    by_logits = GroupCalibration.fit(logits[:100], labels[:100], n_partitions=1)
    assert np.array_equal(by_logits.predict_proba(logits), by_logits.predict_proba(logits, features))
    calibrator = GroupCalibration.fit(logits[:100], labels[:100], features=features[:100])
    with pytest.raises(
        InputError, match="^features: expected penultimate features .* GroupCalibration needs"
    ):
        calibrator.predict_proba(logits)


def test_a_constant_feature_is_harmless(halves):
    logits, labels, features, _ = halves
    features = np.concatenate([features, np.full((len(features), 1), 7.0)], axis=1)
    calibrator = GroupCalibration.fit(logits[:300], labels[:300], features=features[:300], n_partitions=1)
    features[:, 3] = -1e6
    assert np.isfinite(calibrator.predict_proba(logits, features)).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_groups": 0}, "^n_groups: expected a whole number of at least 1, got 0"),
        ({"n_partitions": -1}, "^n_partitions: expected a whole number of at least 1, got -1"),
        ({"hard": 1}, "^hard: expected True or False, got 1"),
        ({"weight_decay": -0.1}, "^weight_decay: expected a number of at least 0, got -0.1"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        GroupCalibration.fit([[1.0, 0.0], [0.0, 1.0]], [0, 0], **options)
