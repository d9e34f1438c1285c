"""Spline calibration: the slope of the running error."""

import numpy as np
import pytest
from scipy.interpolate import CubicSpline

from calibrant.errors import InputError
from calibrant.metrics import classwise_calibration_error, ks_error
from calibrant.posthoc.files import describe, restore
from calibrant.posthoc.spline import SplineCalibration
from tests.conftest import draw, softmax


def by_definition(confidence, right, n_knots):
    """Corrected confidences of the fitting samples, from a spline fitted through its knots' unit vectors."""
    order = np.argsort(confidence)
    n = len(confidence)
    error = np.append(0, np.cumsum(right[order] - confidence[order])) / n
    t, knots = np.arange(n + 1) / n, np.linspace(0, 1, n_knots)
    columns = [CubicSpline(knots, unit, bc_type="natural") for unit in np.eye(n_knots)]
    matrix = np.stack([column(t) for column in columns], axis=1)
    weights = np.linalg.solve(matrix.T @ matrix, matrix.T @ error)
    slope = sum(w * column((np.arange(n) + 0.5) / n, 1) for w, column in zip(weights, columns, strict=True))
    out = np.empty(n)
    out[order] = confidence[order] + slope
    return out


@pytest.mark.parametrize("n_knots", [4, 6])
def test_it_adds_the_slope_of_the_fitted_running_error(n_knots):
    logits, labels = draw(400, 4, sharpen=2.0)
    p = softmax(logits)
    expected = by_definition(p.max(axis=1), (p.argmax(axis=1) == labels).astype(float), n_knots)
    found = SplineCalibration.fit(logits, labels, n_knots=n_knots).predict_proba(logits).max(axis=1)
    share = np.sort(p, axis=1)[:, -2] / (1 - p.max(axis=1))
    inside = (expected < 1 - 1 / 402) & (expected > share / (1 + share))
    assert inside.mean() > 0.8
    assert found[inside] == pytest.approx(expected[inside], abs=1e-5)


def test_a_calibrated_model_is_hardly_changed():
    logits, labels = draw(20_000, 4)
    assert SplineCalibration.fit(logits, labels).predict_proba(logits) == pytest.approx(
        softmax(logits), abs=0.03
    )


def test_the_kolmogorov_smirnov_error_of_new_data_falls():
    fitted = SplineCalibration.fit(*draw(3000, 5, seed=1, sharpen=3.0))
    new, truth = draw(5000, 5, seed=2, sharpen=3.0)
    assert ks_error(softmax(new), truth) > 0.15
    assert ks_error(fitted.predict_proba(new), truth) < 0.02


def test_no_confidence_is_surer_than_the_model_and_the_sample_size_allow():
    logits, labels = draw(80, 3, spread=3.0, sharpen=0.3)
    probs = SplineCalibration.fit(logits, labels).predict_proba(logits).max(axis=1)
    assert np.all(probs <= np.maximum(softmax(logits).max(axis=1), 1 - 1 / 82) + 1e-9)


def test_small_sets_have_fewer_knots():
    logits, labels = draw(60, 4, sharpen=2.0)
    chosen, four = SplineCalibration.fit(logits, labels), SplineCalibration.fit(logits, labels, n_knots=4)
    assert np.array_equal(chosen.predict_proba(logits), four.predict_proba(logits))
    logits, labels = draw(900, 4, sharpen=2.0)
    chosen, six = SplineCalibration.fit(logits, labels), SplineCalibration.fit(logits, labels, n_knots=6)
    assert np.array_equal(chosen.predict_proba(logits), six.predict_proba(logits))


def test_a_spline_has_two_ends():
    with pytest.raises(InputError, match="^n_knots: expected a whole number of at least 2, got 1"):
        SplineCalibration.fit(*draw(30, 3), n_knots=1)


@pytest.mark.parametrize("n_knots", [4, 6])
def test_every_class_can_have_a_spline_of_its_own(n_knots):
    logits, labels = draw(500, 3, sharpen=1.5)
    p = softmax(logits)
    corrected = np.stack(
        [by_definition(p[:, c], (labels == c).astype(float), n_knots) for c in range(3)], axis=1
    )
    limit = 1 / 502
    low, high = np.minimum(p, limit), np.maximum(p, 1 - limit)
    corrected = np.clip(corrected, low, high)
    expected = corrected / corrected.sum(axis=1, keepdims=True)
    fitted = SplineCalibration.fit(logits, labels, mode="one_vs_rest", n_knots=n_knots)
    assert fitted.predict_proba(logits) == pytest.approx(expected, abs=1e-4)


def test_a_spline_per_class_repairs_classes_and_may_change_the_prediction():
    logits, labels = draw(6000, 3, sharpen=1.5)
    logits[:, 0] += 1.0
    one, each = (
        SplineCalibration.fit(logits[:3000], labels[:3000], mode=mode)
        for mode in ("top_label", "one_vs_rest")
    )
    new, truth = logits[3000:], labels[3000:]
    errors = [classwise_calibration_error(m.predict_proba(new), truth) for m in (one, each)]
    assert errors[1] < errors[0] / 2
    assert (np.argmax(each.predict_proba(new), axis=1) != new.argmax(axis=1)).any()
    assert one.preserves_accuracy
    assert not each.preserves_accuracy


def test_a_class_that_never_occurs_keeps_its_own_probability_before_the_division():
    logits, labels = draw(300, 4, sharpen=2.0)
    rows = labels != 2
    fitted = SplineCalibration.fit(logits[rows], labels[rows], mode="one_vs_rest")
    assert fitted.active.tolist() == [True, True, False, True]


def test_files_keep_the_mode_and_older_ones_have_the_default(tmp_path):
    logits, labels = draw(300, 4, sharpen=2.0)
    fitted = SplineCalibration.fit(logits, labels, mode="one_vs_rest")
    fitted.save(tmp_path / "spline.safetensors")
    loaded = SplineCalibration.load(tmp_path / "spline.safetensors")
    assert loaded.mode == "one_vs_rest"
    assert not loaded.preserves_accuracy
    description = describe(SplineCalibration.fit(logits, labels))
    description["options"] = {}
    older = restore(description, dict(SplineCalibration.fit(logits, labels).named_buffers()))
    assert older.mode == "top_label"
    assert older.preserves_accuracy
