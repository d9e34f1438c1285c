"""h-calibration: events of similar probability should occur as often as stated."""

import numpy as np
import pytest
import torch

from calibrant.errors import InputError
from calibrant.metrics import expected_calibration_error, negative_log_likelihood
from calibrant.posthoc import HCalibration, TemperatureScaling
from calibrant.posthoc.h_calibration import expected_by_chance, h_objective
from tests.conftest import draw, softmax


def bent(n, k=5, seed=0):
    """Logits of a calibrated model, scaled up where the margin is large."""
    logits, labels = draw(n, k, seed=seed)
    top = np.sort(logits, axis=1)
    return logits * (0.5 + top[:, -1] - top[:, -2])[:, None], labels


def clusters(values, n):
    """k-means of numbers as a plain loop, from centres at equal steps."""
    low, high = min(values), max(values)
    centres = [low + (high - low) * (c + 0.5) / n for c in range(n)]
    for _ in range(26):
        nearest = [-min((abs(v - centre), -c) for c, centre in enumerate(centres))[1] for v in values]
        for c in range(n):
            own = [v for v, at in zip(values, nearest, strict=True) if at == c]
            centres[c] = sum(own) / len(own) if own else centres[c]
    return nearest


def objective_of(probs, labels, window, tolerance, n_clusters):
    """The formula as a plain loop over events."""
    events = sorted(
        (float(p), float(c == label))
        for row, label in zip(probs, labels, strict=True)
        for c, p in enumerate(row)
    )
    errors = []
    for j in range(len(events)):
        near = events[max(0, j - window) : j + window + 1]
        errors.append(max(abs(sum(p - o for p, o in near)) / (2 * window + 1) - tolerance, 0.0))
    nearest = clusters([p for p, _ in events], n_clusters)
    means = [
        np.mean([e for e, at in zip(errors, nearest, strict=True) if at == c])
        for c in range(n_clusters)
        if c in nearest
    ]
    return float(np.mean(means))


@pytest.mark.parametrize(
    ("window", "tolerance", "n_clusters"), [(3, 0.0, 4), (10, 0.05, 15), (500, 0.0, 15), (5, 0.0, 1)]
)
def test_the_objective_is_its_formula(window, tolerance, n_clusters):
    logits, labels = draw(40, 4, sharpen=2.0)
    probs = softmax(logits)
    got = h_objective(
        torch.tensor(probs), torch.tensor(labels), window=window, tolerance=tolerance, n_clusters=n_clusters
    )
    assert float(got) == pytest.approx(objective_of(probs, labels, window, tolerance, n_clusters), abs=1e-12)
    assert float(got) > 0


def test_the_gradient_is_that_of_small_changes():
    logits, labels = (torch.tensor(x) for x in draw(60, 3, sharpen=3.0))

    def value(scale):
        return h_objective(torch.softmax(scale * logits, dim=1), labels, window=10)

    scale = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(value(scale), scale)
    step = 1e-7
    with torch.no_grad():
        assert float(slope) == pytest.approx(
            float(value(scale + step) - value(scale - step)) / (2 * step), rel=1e-3
        )


def test_a_calibrated_model_shows_what_is_expected_by_chance():
    values, expected = [], []
    for seed in range(20):
        logits, labels = (torch.tensor(x) for x in draw(1000, 5, seed=seed))
        probs = torch.softmax(logits, dim=1)
        values.append(float(h_objective(probs, labels)))
        expected.append(expected_by_chance(probs))
    # The classes of a sample exclude each other, which makes windows vary a little less.
    assert 0.85 < np.mean(values) / np.mean(expected) < 1.0


@pytest.mark.parametrize("tolerance", [0.0, 0.02])
def test_chance_is_that_of_normal_errors(tolerance):
    n, window, p = 60, 20, 0.3
    rng = np.random.default_rng(0)
    means = []
    for j in range(n):
        size = min(n, j + window + 1) - max(0, j - window)
        errors = rng.normal(size=20_000) * np.sqrt(size * p * (1 - p)) / (2 * window + 1)
        means.append(np.maximum(np.abs(errors) - tolerance, 0).mean())
    got = expected_by_chance(torch.full((n, 1), p), window=window, tolerance=tolerance)
    assert got == pytest.approx(np.mean(means), rel=0.01)


def test_a_miscalibrated_model_shows_more():
    logits, labels = (torch.tensor(x) for x in draw(1000, 5, sharpen=2.0))
    probs = torch.softmax(logits, dim=1)
    assert float(h_objective(probs, labels)) > 2 * expected_by_chance(probs)


def test_training_lowers_the_objective_and_the_calibration_error():
    logits, labels = bent(3000)
    new_logits, new_labels = bent(8000, seed=1)
    one, curve = TemperatureScaling.fit(logits, labels), HCalibration.fit(logits, labels)

    def value(calibrator):
        return float(h_objective(calibrator.predict_log_proba(logits).exp(), torch.tensor(labels)))

    def ece(calibrator):
        return expected_calibration_error(calibrator.predict_proba(new_logits), new_labels)

    assert value(curve) < 0.8 * value(one)
    assert ece(curve) < 0.8 * ece(one)


def test_leaving_out_each_class_in_turn_is_another_objective():
    logits, labels = bent(400)
    whole, parts = (HCalibration.fit(logits, labels, leave_class_out=out, epochs=5) for out in (False, True))
    assert not torch.equal(whole.slopes, parts.slopes)
    assert (parts.slopes != 1).any()


def test_no_epoch_and_a_calibrated_model_give_temperature_scaling():
    for data, options in ((bent(500), {"epochs": 0}), (draw(500, 5, sharpen=2.0), {})):
        calibrator = HCalibration.fit(*data, **options)
        one = TemperatureScaling.fit(*data)
        np.testing.assert_allclose(calibrator.predict_proba(data[0]), one.predict_proba(data[0]), atol=1e-2)


def test_without_shrinking_it_goes_further():
    logits, labels = bent(400)
    shrunk, free = (HCalibration.fit(logits, labels, shrink=shrink) for shrink in (True, False))
    assert 0 < shrunk.slopes.log().norm() < free.slopes.log().norm()


def test_the_ranking_of_all_classes_stays():
    logits, labels = bent(1000)
    calibrator = HCalibration.fit(logits, labels, shrink=False)
    assert (calibrator.slopes != 1).any()
    new = np.round(2 * bent(500, seed=1)[0]) / 2
    log_probs = calibrator.predict_log_proba(new).numpy()
    before, after = (x[:, :, None] - x[:, None, :] for x in (new, log_probs))
    assert (np.sign(before) == np.sign(after)).all()


def test_few_samples_give_little_more_loss_than_temperature_scaling():
    new = draw(4000, 10, seed=100, sharpen=2.0)
    for seed in range(3):
        data = draw(200, 10, seed=seed, sharpen=2.0)
        one, curve = (
            negative_log_likelihood(logits=kind.fit(*data).predict_log_proba(new[0]), labels=new[1])
            for kind in (TemperatureScaling, HCalibration)
        )
        assert curve < one + 0.01


def test_many_logits_are_thinned(monkeypatch):
    monkeypatch.setattr("calibrant.posthoc.h_calibration._MOST_ENTRIES", 200 * 5)
    sizes = []

    def seen(probs, labels, **options):
        sizes.append(tuple(probs.shape))
        return h_objective(probs, labels, **options)

    monkeypatch.setattr("calibrant.posthoc.h_calibration.h_objective", seen)
    HCalibration.fit(*bent(900))
    assert set(sizes) == {(200, 5)}


HARD = {
    "separable": (4 * np.eye(3)[np.arange(60) % 3], np.arange(60) % 3),
    "no better than chance": (draw(200, 4)[0], np.random.default_rng(0).integers(4, size=200)),
    "constant logits": (np.zeros((60, 3)), np.arange(60) % 3),
    "logits of ten thousand": draw(300, 4, sharpen=1e4),
    "a thousand classes": draw(200, 1000, sharpen=2.0),
    "one sample": ([[5.0, 0.0]], [1]),
    "one class": (draw(50, 3)[0], np.zeros(50, dtype=int)),
}


@pytest.mark.parametrize("case", HARD)
@pytest.mark.parametrize("options", [{}, {"shrink": False, "epochs": 5}])
def test_hard_data_are_fitted_without_nan(case, options):
    logits, labels = HARD[case]
    calibrator = HCalibration.fit(logits, labels, **options)
    assert np.isfinite(calibrator.predict_log_proba(logits).numpy()).all()


def test_a_single_class_can_be_left_out_too():
    logits, labels = HARD["one class"]
    calibrator = HCalibration.fit(logits, labels, leave_class_out=True, epochs=3, shrink=False)
    assert torch.isfinite(calibrator.slopes).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "^window: expected a whole number of at least 1, got 0"),
        ({"tolerance": -0.1}, "^tolerance: expected a number of at least 0, got -0.1"),
        ({"epochs": -1}, "^epochs: expected a whole number of at least 0, got -1"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        HCalibration.fit(*draw(50, 3), **options)
