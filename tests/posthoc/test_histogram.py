"""Histogram binning: the share of right answers in a bin."""

import numpy as np
import pytest

from calibrant.errors import InputError
from calibrant.metrics import expected_calibration_error
from calibrant.posthoc.histogram import HistogramBinning
from tests.conftest import draw, softmax


def binary(p, hits):
    p = np.asarray(p)
    return np.log(p) - np.log1p(-p), np.asarray(hits)


def test_equal_width_bins_are_the_definition_written_as_a_loop():
    rng = np.random.default_rng(0)
    p = np.concatenate([rng.random(500), [0.5]])
    hits = (rng.random(501) < p**2).astype(int)
    expected = np.empty(501)
    for i in range(501):
        b = next(b for b in range(8) if p[i] <= (b + 1) / 8)
        inside = (p > b / 8) & (p <= (b + 1) / 8)
        expected[i] = (hits[inside].sum() + 0.5) / (inside.sum() + 1)
    logits, labels = binary(p, hits)
    fitted = HistogramBinning.fit(logits, labels, mode="one_vs_rest", binning="width", n_bins=8)
    assert fitted.predict_proba(logits)[:, 1] == pytest.approx(expected)


def test_equal_mass_bins_hold_equally_many_samples():
    rng = np.random.default_rng(1)
    p = np.sort(rng.random(600) ** 3)
    hits = (rng.random(600) < np.sqrt(p)).astype(int)
    logits, labels = binary(p, hits)
    fitted = HistogramBinning.fit(logits, labels, mode="one_vs_rest", n_bins=6, smoothing=0)
    expected = np.repeat(hits.reshape(6, 100).mean(axis=1), 100)
    assert fitted.predict_proba(logits)[:, 1] == pytest.approx(expected)


def test_equal_scores_share_a_bin():
    logits, labels = binary([0.2] * 7 + [0.3, 0.4, 0.9], [1, 0, 1, 0, 1, 0, 1, 1, 1, 1])
    fitted = HistogramBinning.fit(logits, labels, mode="one_vs_rest", n_bins=5, smoothing=0)
    assert fitted.predict_proba(logits)[:7, 1] == pytest.approx(4 / 7)


def test_an_empty_bin_takes_its_middle():
    logits, labels = binary([0.1, 0.1, 0.9, 0.9], [0, 1, 1, 0])
    fitted = HistogramBinning.fit(logits, labels, mode="one_vs_rest", binning="width", n_bins=5, smoothing=0)
    assert fitted.predict_proba(np.zeros(1))[0, 1] == pytest.approx(0.5)
    assert fitted.predict_proba(np.array([-1.0]))[0, 1] == pytest.approx(0.3)


def test_the_confidence_is_the_accuracy_of_its_bin():
    logits, labels = draw(3000, 4, sharpen=3.0)
    fitted = HistogramBinning.fit(logits, labels, n_bins=10, smoothing=0)
    probs = fitted.predict_proba(logits)
    right = softmax(logits).argmax(axis=1) == labels
    for value in np.unique(probs.max(axis=1).round(9)):
        inside = np.abs(probs.max(axis=1) - value) < 1e-8
        if inside.sum() > 250:  # else the confidence was raised to keep the predicted class
            assert right[inside].mean() == pytest.approx(value, abs=0.02)
    assert expected_calibration_error(probs, labels) < 0.02


def test_the_number_of_bins_is_the_cube_root_of_the_number_of_samples():
    for n, bins in ((27, 3), (28, 4), (1000, 10)):
        assert HistogramBinning.fit(*draw(n, 3, sharpen=3.0)).values.shape == (1, bins)


def test_bins_that_blur_more_than_they_repair_are_not_used():
    # A calibrated model of two sorts of samples, in one bin.
    logits, labels = binary([0.05] * 100 + [0.95] * 100, [1] * 5 + [0] * 95 + [0] * 5 + [1] * 95)
    fitted = HistogramBinning.fit(logits, labels, mode="one_vs_rest", n_bins=1)
    assert not fitted.active.any()
    assert fitted.predict_proba(logits)[:, 1] == pytest.approx([0.05] * 100 + [0.95] * 100)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"binning": "log"}, "^binning: expected 'width' or 'mass', got 'log'"),
        ({"n_bins": 0}, "^n_bins: expected a whole number of at least 1, got 0"),
        ({"smoothing": -0.5}, "^smoothing: expected a number of at least 0, got -0.5"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        HistogramBinning.fit([1.0, -1.0], [1, 0], **options)
