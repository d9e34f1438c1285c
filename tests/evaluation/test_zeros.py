"""Probabilities of exactly 0: one rule, and so one number, in every number type, format and command."""

import math

import numpy as np
import pytest

from calibrant import Predictions, compare, evaluate, load_predictions, save_predictions
from calibrant.metrics import negative_log_likelihood
from calibrant.posthoc import TemperatureScaling
from calibrant.streams import evaluate_stream, open_stream


@pytest.fixture(scope="module")
def rounded():
    """Probabilities of three classes, rounded to sixteenths, which every number type holds exactly."""
    rng = np.random.default_rng(0)
    parts = np.diff(np.sort(rng.integers(0, 17, (200, 2)), axis=1), prepend=0, append=16)
    return parts / 16, rng.integers(0, 3, 200)


def test_zeros_give_one_number(rounded, tmp_path):
    probs, labels = rounded
    of_label = probs[np.arange(len(labels)), labels]
    assert (of_label == 0).sum() > 10
    expected = -math.fsum(math.log(max(p, 1e-12)) for p in of_label) / len(labels)
    numbers = {}
    for kind in (np.float16, np.float32, np.float64):
        p = probs.astype(kind)
        given = Predictions(probs=p, labels=labels)
        numbers["measure", kind] = negative_log_likelihood(p, labels)
        numbers["logits", kind] = negative_log_likelihood(logits=given.to_logits(), labels=labels)
        numbers["evaluate", kind] = evaluate(given, intervals=False).metrics["nll"]
        for ending in ("npz", "csv", "parquet", "jsonl", "safetensors"):
            path = tmp_path / f"{np.dtype(kind)}.{ending}"
            save_predictions(given, path)
            numbers[ending, kind] = evaluate(load_predictions(path), intervals=False).metrics["nll"]
            if ending == "parquet":
                numbers["stream", kind] = evaluate_stream(open_stream(path)).metrics["nll"]
        (uncalibrated,) = compare(given, methods=["uncalibrated"], n_folds=2).results
        numbers["calibrate", kind] = uncalibrated.metrics["nll"]
    # The logarithm of one in a trillion has seven digits in float32.
    assert numbers == pytest.approx(dict.fromkeys(numbers, expected), rel=1e-5)


def test_a_fit_is_the_same_in_every_number_type(rounded):
    probs, labels = rounded
    fits = [
        TemperatureScaling.fit(Predictions(probs=probs.astype(kind)).to_logits(), labels)
        for kind in (np.float16, np.float32, np.float64)
    ]
    assert [float(fit.temperature) for fit in fits] == pytest.approx(
        [float(fits[-1].temperature)] * 3, rel=1e-4
    )
