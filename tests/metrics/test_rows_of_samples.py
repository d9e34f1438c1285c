"""Resampling of rows that are several samples each, such as the labels of one picture."""

import numpy as np
import pytest
import torch

from calibrant.errors import InputError
from calibrant.metrics import (
    expected_calibration_error,
    negative_log_likelihood,
    paired_difference,
    smooth_ece,
    with_interval,
)

N, PER_ROW = 60, 4
RNG = np.random.default_rng(0)
CONFIDENCE = RNG.random(N * PER_ROW)
CORRECT = RNG.random(N * PER_ROW) < CONFIDENCE**2
WEIGHTS = np.repeat(RNG.integers(1, 4, N), PER_ROW)


def own(confidence, correct):
    """A measure that is not in the catalogue."""
    return float(torch.as_tensor(confidence).mean() - torch.as_tensor(correct).double().mean())


MEASURES = [expected_calibration_error, negative_log_likelihood, smooth_ece, own]

# The log-loss is resampled in another way; the smooth error of resamples is computed less exactly.
CLOSE = {"negative_log_likelihood": 0.2, "smooth_ece": 1e-4}


@pytest.mark.parametrize("measure", MEASURES)
def test_rows_are_drawn_whole(measure):
    found = with_interval(
        measure, confidence=CONFIDENCE, correct=CORRECT, per_row=PER_ROW, n_resamples=200, seed=3
    )
    draw = np.random.default_rng(3)
    entries = [(PER_ROW * draw.integers(N, size=N)[:, None] + np.arange(PER_ROW)).ravel() for _ in range(200)]
    values = [measure(confidence=CONFIDENCE[e], correct=CORRECT[e]) for e in entries]
    assert found.standard_error == pytest.approx(
        np.std(values, ddof=1), rel=CLOSE.get(measure.__name__, 1e-9)
    )


@pytest.mark.parametrize(
    ("measure", "weighted"), [*((each, False) for each in MEASURES), *((each, True) for each in MEASURES[:3])]
)
def test_rows_of_equal_samples_are_one_sample_each(measure, weighted):
    first = slice(None, None, PER_ROW)
    c, y = np.repeat(CONFIDENCE[first], PER_ROW), np.repeat(CORRECT[first], PER_ROW)
    more = {"weights": WEIGHTS} if weighted else {}
    rows = with_interval(measure, confidence=c, correct=y, per_row=PER_ROW, n_resamples=100, **more)
    more = {"weights": WEIGHTS[first]} if weighted else {}
    one = with_interval(measure, confidence=c[first], correct=y[first], n_resamples=100, **more)
    assert rows.standard_error == pytest.approx(one.standard_error)
    given = {"correct_a": y, "correct_b": y, "n_resamples": 100}
    difference = paired_difference(measure, c, c**2, per_row=PER_ROW, **given)
    given = {"correct_a": y[first], "correct_b": y[first], "n_resamples": 100}
    expected = paired_difference(measure, c[first], c[first] ** 2, **given)
    # Hits of calibrated models, which measure the bias, are drawn for single samples.
    assert (difference.low, difference.high) == pytest.approx((expected.low, expected.high), abs=0.01)


def test_rows_must_be_whole():
    with pytest.raises(InputError, match="^per_row: expected a number that divides the 240 samples, got 7"):
        with_interval(smooth_ece, confidence=CONFIDENCE, correct=CORRECT, per_row=7)
