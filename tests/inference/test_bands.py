"""Bootstrap bands: what resampling rows would give, without resampling where bins suffice."""

import numpy as np
import pytest
import torch

from calibrant import InputError
from calibrant.bins import top_label_bins
from calibrant.inference import accuracy_band, curve_band
from calibrant.metrics import class_bins


def pairs(n=400, seed=0):
    rng = np.random.default_rng(seed)
    confidence = rng.random(n)
    return confidence, rng.random(n) < confidence**2


def test_the_band_of_bins_is_that_of_resampled_rows():
    confidence, correct = pairs()
    bins = top_label_bins(confidence=confidence, correct=correct, n_bins=5)
    band = accuracy_band(bins, n_resamples=4000)
    rows = curve_band(
        lambda c, a: top_label_bins(confidence=c, correct=a, n_bins=5).accuracy,
        confidence=confidence,
        correct=correct,
        n_resamples=2000,
        seed=1,
    )
    torch.testing.assert_close(band.low, rows.low, atol=0.02, rtol=0)
    torch.testing.assert_close(band.high, rows.high, atol=0.02, rtol=0)


def test_the_band_has_the_width_of_a_share():
    bins = top_label_bins(confidence=[0.5] * 400, correct=[True, False] * 200, n_bins=1)
    band = accuracy_band(bins, n_resamples=4000, level=0.9)
    half = 1.645 * 0.5 / 20
    assert float(band.low) == pytest.approx(0.5 - half, abs=0.006)
    assert float(band.high) == pytest.approx(0.5 + half, abs=0.006)
    assert band.level == 0.9


def test_an_empty_bin_has_no_band_and_one_that_never_failed_has_no_width():
    band = accuracy_band(top_label_bins(confidence=[0.9] * 8, correct=[True] * 8, n_bins=2))
    assert band.low.isnan().tolist() == [True, False]
    assert float(band.low[1]) == float(band.high[1]) == 1.0


def test_equal_seeds_give_equal_bands():
    bins = top_label_bins(confidence=[0.5] * 40, correct=[True, False] * 20, n_bins=1)
    first, again, other = (accuracy_band(bins, n_resamples=50, seed=seed) for seed in (3, 3, 4))
    assert float(first.low) == float(again.low)
    assert (float(first.low), float(first.high)) != (float(other.low), float(other.high))


def test_invalid_arguments_are_refused(sample):
    with pytest.raises(InputError, match="bins: expected the bins of one set"):
        accuracy_band(class_bins(*sample))
    bins = top_label_bins(*sample)
    with pytest.raises(InputError, match="level"):
        accuracy_band(bins, level=95)
    with pytest.raises(InputError, match="n_resamples"):
        accuracy_band(bins, n_resamples=1)
