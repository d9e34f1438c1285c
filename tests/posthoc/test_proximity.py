"""ProCal: confidence corrected by how common a sample looks."""

import numpy as np
import pytest
import torch

from calibrant.data import load_bundled
from calibrant.errors import FitError, InputError
from calibrant.metrics import expected_calibration_error, negative_log_likelihood
from calibrant.posthoc import ProximityCalibration, TemperatureScaling, load_calibrator
from calibrant.posthoc.proximity import density_ratio, mean_shift, read_between, shifted
from tests.conftest import softmax
from tests.rounding import assert_equal_up_to_rounding

VARIANTS = ["density_ratio", "bin_mean_shift"]


def sparse_and_dense(n, seed=0):
    """Two clouds with the same confidences: 90 % right in the dense one, 60 % in the sparse one."""
    rng = np.random.default_rng(seed)
    dense = rng.random(n) < 0.5
    features = np.eye(8)[0] * 3 + rng.normal(size=(n, 8)) * np.where(dense, 0.05, 2.0)[:, None]
    confidence = rng.uniform(0.7, 0.8, n)
    logits = np.stack([np.log(confidence / (1 - confidence)), np.zeros(n)], axis=1)
    labels = (rng.random(n) > np.where(dense, 0.9, 0.6)).astype(int)
    return logits, labels, features, dense


@pytest.fixture(scope="module")
def clouds():
    return sparse_and_dense(2000)


@pytest.mark.parametrize("variant", VARIANTS)
def test_equal_confidences_come_apart_by_proximity(clouds, variant):
    logits, labels, features, _ = clouds
    calibrator = ProximityCalibration.fit(
        logits, labels, features=features, variant=variant, n_proximity_bins=4
    )
    new_logits, _, new_features, dense = sparse_and_dense(2000, seed=1)
    confidence = calibrator.predict_proba(new_logits, new_features)[:, 0]
    assert confidence[dense].mean() == pytest.approx(0.9, abs=0.04)
    assert confidence[~dense].mean() == pytest.approx(0.6, abs=0.04)


def test_proximity_is_the_mean_distance_to_the_nearest_others():
    rng = np.random.default_rng(0)
    features, new = rng.normal(size=(60, 4)), rng.normal(size=(5, 4))
    logits, labels = rng.normal(size=(60, 3)), rng.integers(3, size=60)
    calibrator = ProximityCalibration.fit(logits, labels, features=features, n_neighbours=7, normalize=False)
    for rows, skip in ((new, 0), (features[:5], 1)):  # a sample is not its own neighbour
        expected = []
        for row in rows:
            distances = sorted(np.sqrt(((row - other) ** 2).sum()) for other in features)
            expected.append(np.exp(-np.mean(distances[skip : 7 + skip])))
        got = calibrator.proximity(torch.tensor(rows)).numpy()
        assert got == pytest.approx(np.array(expected), abs=1e-5)


def test_unit_length_makes_proximity_independent_of_scale():
    rng = np.random.default_rng(0)
    logits, labels, features = rng.normal(size=(60, 3)), rng.integers(3, size=60), rng.normal(size=(60, 4))
    one = ProximityCalibration.fit(logits, labels, features=features)
    other = ProximityCalibration.fit(logits, labels, features=100 * features)
    assert one.predict_proba(logits, features) == pytest.approx(
        other.predict_proba(logits, 100 * features), abs=1e-5
    )


def test_blocks_of_samples_change_nothing(clouds, monkeypatch):
    logits, labels, features, _ = clouds
    calibrator = ProximityCalibration.fit(logits[:500], labels[:500], features=features[:500])
    whole = calibrator.proximity(torch.tensor(features[:100]))
    monkeypatch.setattr("calibrant.posthoc.fitting.neighbours._BLOCK_ENTRIES", 7 * 500)
    assert torch.allclose(calibrator.proximity(torch.tensor(features[:100])), whole, atol=1e-5)


def test_the_table_holds_the_ratio_of_kernel_densities():
    rng = np.random.default_rng(3)
    confidence, other = rng.uniform(0.3, 1, 300), rng.uniform(0.2, 0.6, 300)
    correct = rng.random(300) < confidence
    maps = density_ratio(*(torch.tensor(x) for x in (confidence, other, correct)))
    for c, d in [(0.5, 0.3), (0.9, 0.55), (0.99, 0.25), (0.7, 0.4)]:
        evidence = {}
        for outcome in (True, False):
            cs, ds = confidence[correct == outcome], other[correct == outcome]
            wide_c, wide_d = (1.06 * x.std() * len(x) ** (-1 / 6) for x in (cs, ds))
            peak = 1 / (wide_c * wide_d)
            total = 0.0
            for ci, di in zip(cs, ds, strict=True):
                total += peak * np.exp(-(((c - ci) / wide_c) ** 2) / 2 - ((d - di) / wide_d) ** 2 / 2)
            evidence[outcome] = total, peak
        (right, own), (wrong, _) = evidence[True], evidence[False]
        got = read_between(torch.tensor([c]).double(), torch.tensor([d]).double(), maps)
        assert float(got) == pytest.approx((right + own * c) / (right + wrong + own), abs=1e-3)


def test_where_nothing_was_seen_confidence_stays():
    confidence = torch.full((100,), 0.95, dtype=torch.float64) + torch.linspace(0, 0.01, 100).double()
    correct = torch.arange(100) % 2 == 0
    maps = density_ratio(confidence, torch.linspace(0.4, 0.5, 100).double(), correct)
    assert float(
        read_between(torch.tensor([0.3]).double(), torch.tensor([0.45]).double(), maps)
    ) == pytest.approx(0.3, abs=1e-6)


def test_cells_move_to_their_accuracy():
    rng = np.random.default_rng(0)
    confidence, other = rng.uniform(0.4, 0.9, 2000), rng.random(2000)
    correct = rng.random(2000) < 0.2 + 0.6 * other
    maps = mean_shift(torch.tensor(confidence), torch.tensor(other), torch.tensor(correct), 4, 5)
    moved = shifted(torch.tensor(confidence), torch.tensor(other), maps).numpy()
    rows = np.digitize(other, np.quantile(other, [0.25, 0.5, 0.75]), right=True)
    for row in range(4):
        edges = np.quantile(confidence[rows == row], [0.2, 0.4, 0.6, 0.8])
        columns = np.digitize(confidence, edges, right=True)
        for column in range(5):
            cell = (rows == row) & (columns == column)
            assert moved[cell].mean() == pytest.approx(correct[cell].mean(), abs=1e-9)


def test_few_samples_get_few_cells():
    rng = np.random.default_rng(0)
    maps = mean_shift(
        torch.rand(50).double(), torch.rand(50).double(), torch.tensor(rng.random(50) < 0.5), 5, 10
    )
    assert maps["shift"].numel() == 2


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_real_predictions_get_better(variant):
    val, test = load_bundled("cifar10_val"), load_bundled("cifar10_test")
    calibrator = ProximityCalibration.fit(val.logits, val.labels, features=val.features, variant=variant)
    probs = calibrator.predict_proba(test.logits, test.features)
    assert expected_calibration_error(probs, test.labels) < 0.045  # 0.123 before


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_predicted_class_never_changes(clouds, variant):
    logits, labels, features, _ = clouds
    calibrator = ProximityCalibration.fit(logits, 1 - labels, features=features, variant=variant)
    rng = np.random.default_rng(0)
    for rows in (logits, rng.integers(0, 2, size=logits.shape).astype(float)):
        probs = calibrator.predict_proba(rows, features)
        assert (np.argmax(probs, axis=1) == rows.argmax(axis=1)).all()
        assert probs.sum(axis=1) == pytest.approx(1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_map_that_does_not_help_is_not_used(variant):
    rng = np.random.default_rng(0)
    logits = np.where(rng.random((400, 1)) < 0.9, [[40.0, 0.0]], [[0.1, 0.0]])
    labels = (logits[:, 0] < 1).astype(int)  # always right where it is sure, always wrong where it is not
    labels[logits[:, 0] < 1] = rng.integers(2, size=(logits[:, 0] < 1).sum())
    features = rng.normal(size=(400, 3))
    calibrator = ProximityCalibration.fit(logits, labels, features=features, variant=variant)
    own = np.log(np.take_along_axis(softmax(logits), labels[:, None], 1)).mean()
    got = np.log(np.take_along_axis(calibrator.predict_proba(logits, features), labels[:, None], 1)).mean()
    assert got >= own - 1e-6


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_comes_back_from_a_file_the_same(clouds, variant, tmp_path):
    logits, labels, features, _ = clouds
    calibrator = ProximityCalibration.fit(
        logits[:300], labels[:300], features=features[:300], variant=variant
    )
    calibrator.save(tmp_path / "saved.safetensors")
    loaded = load_calibrator(tmp_path / "saved.safetensors")
    assert_equal_up_to_rounding(
        loaded.predict_proba(logits, features), calibrator.predict_proba(logits, features)
    )


def test_it_follows_another_method(clouds):
    logits, labels, features, _ = clouds
    both = TemperatureScaling.then(ProximityCalibration).fit(logits, labels, features=features)
    assert both.needs_features
    assert both.predict_proba(logits, features).sum(axis=1) == pytest.approx(1)


def test_features_are_needed():
    with pytest.raises(InputError, match="^features: expected penultimate features .* ProximityCalibration"):
        ProximityCalibration.fit([[1.0, 0.0]], [0])


def test_features_are_needed_for_prediction_too(clouds):
    logits, labels, features, _ = clouds
    calibrator = ProximityCalibration.fit(logits[:100], labels[:100], features=features[:100])
    with pytest.raises(InputError, match="^features: expected penultimate features"):
        calibrator(torch.tensor(logits))


def test_right_predictions_alone_say_nothing():
    with pytest.raises(
        FitError, match="all 3 predictions are right, so right and wrong predictions cannot be compared"
    ):
        ProximityCalibration.fit(np.eye(3), [0, 1, 2], features=np.eye(3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "magic"}, "^variant: expected 'density_ratio' or 'bin_mean_shift', got 'magic'"),
        ({"n_neighbours": 0}, "^n_neighbours: expected a whole number of at least 1, got 0"),
        ({"n_proximity_bins": 0}, "^n_proximity_bins: expected a whole number"),
        ({"n_confidence_bins": 1.5}, "^n_confidence_bins: expected a whole number"),
    ],
)
def test_bad_options_are_refused(clouds, options, message):
    logits, labels, features, _ = clouds
    with pytest.raises(InputError, match=message):
        ProximityCalibration.fit(logits, labels, features=features, **options)


def certain_and_unsure():
    """A calibrated model whose sharp levels of confidence a density of finite width blurs."""
    rng = np.random.default_rng(5)
    confidence = rng.choice([1 - 1e-6, 0.9], size=1500)
    return confidence, (rng.random(1500) > confidence).astype(int), rng.normal(size=(1500, 3))


def few_and_calibrated():
    """A calibrated model of so few samples that the shift of a cell may be the wrong one."""
    rng = np.random.default_rng(6)
    confidence = 1 - 10 ** -rng.uniform(0.3, 5, 100)
    return confidence, (rng.random(100) > confidence).astype(int), rng.normal(size=(100, 3))


@pytest.mark.parametrize(
    ("variant", "made"), [("density_ratio", certain_and_unsure), ("bin_mean_shift", few_and_calibrated)]
)
def test_without_the_fallback_the_map_is_used_although_the_labels_are_no_likelier(variant, made):
    confidence, labels, features = made()
    logits = np.stack([np.log(confidence / (1 - confidence)), np.zeros(len(confidence))], axis=1)
    kept, used = (
        ProximityCalibration.fit(
            logits, labels, features=features, variant=variant, fallback=fallback
        ).predict_proba(logits, features)
        for fallback in (True, False)
    )
    assert negative_log_likelihood(used, labels) > negative_log_likelihood(softmax(logits), labels)
    assert kept == pytest.approx(softmax(logits), abs=1e-6)


def test_the_fallback_is_switched_by_true_or_false():
    with pytest.raises(InputError, match="^fallback: expected True or False, got 0"):
        ProximityCalibration.fit(*sparse_and_dense(50)[:2], features=sparse_and_dense(50)[2], fallback=0)
