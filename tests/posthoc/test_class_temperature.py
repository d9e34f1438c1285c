"""Class-based temperature scaling: the greedy search, done fast."""

import math

import numpy as np
import pytest

from calibrant.errors import InputError
from calibrant.metrics import expected_calibration_error
from calibrant.posthoc.class_temperature import ClassTemperatureScaling
from calibrant.posthoc.names import METHODS
from calibrant.posthoc.temperature import TemperatureScaling
from tests.conftest import draw, softmax

GRID = [step / 10 for step in range(1, 101)]


def state(logits, labels, temperatures):
    scaled = logits / temperatures
    hits = int((scaled.argmax(axis=1) == labels).sum())
    return expected_calibration_error(softmax(scaled), labels), hits


def plain_search(logits, labels, *, sweeps, keep_accuracy):
    """The greedy search as it is written down: everything anew for each class and candidate."""
    k = logits.shape[1]
    common = min(GRID, key=lambda t: (state(logits, labels, np.full(k, t))[0], abs(math.log(t))))
    best = np.full(k, common)
    error, fewest = state(logits, labels, best)
    for _ in range(sweeps):
        before = best.copy()
        for c in range(k):
            tried = [state(logits, labels, np.where(np.arange(k) == c, t, best)) for t in GRID]
            errors = np.array([e if h >= fewest or not keep_accuracy else np.inf for e, h in tried])
            if errors.min() < error - 1e-12:
                chosen = int((errors <= errors.min() + 1e-12).argmax())
                best[c], error = GRID[chosen], errors[chosen]
        if (before == best).all():
            break
    return best


@pytest.mark.slow
@pytest.mark.parametrize("keep_accuracy", [True, False])
@pytest.mark.parametrize(("seed", "k"), [(0, 2), (1, 3), (2, 5)])
def test_the_result_is_that_of_the_plain_search(seed, k, keep_accuracy):
    logits, labels = draw(120, k, seed=seed, sharpen=2.0)
    logits[:10, 0] = logits[:10, 1]  # ties
    expected = plain_search(logits, labels, sweeps=2, keep_accuracy=keep_accuracy)
    fitted = ClassTemperatureScaling.fit(logits, labels, max_sweeps=2, keep_accuracy=keep_accuracy)
    assert fitted.temperature.tolist() == expected.tolist()


def test_blocks_of_candidates_change_nothing(monkeypatch):
    logits, labels = draw(300, 4, seed=3, sharpen=2.0)
    whole = ClassTemperatureScaling.fit(logits, labels)
    monkeypatch.setattr("calibrant.posthoc.class_temperature._BLOCK_ENTRIES", 1000)
    assert ClassTemperatureScaling.fit(logits, labels).temperature.equal(whole.temperature)


def test_the_error_falls_and_the_accuracy_does_not_on_the_fitting_set():
    logits, labels = draw(2000, 8, seed=4, sharpen=np.linspace(1, 4, 8))
    fitted, common = (
        ClassTemperatureScaling.fit(logits, labels),
        TemperatureScaling.fit(logits, labels, objective="ece"),
    )
    errors = [expected_calibration_error(m.predict_proba(logits), labels) for m in (fitted, common)]
    assert errors[0] < errors[1] <= expected_calibration_error(softmax(logits), labels)
    hits = (np.argmax(fitted.predict_proba(logits), axis=1) == labels).sum()
    assert hits >= (logits.argmax(axis=1) == labels).sum()


def test_the_output_is_the_softmax_of_each_logit_over_its_temperature():
    logits, labels = draw(200, 3, seed=5, sharpen=2.0)
    fitted = ClassTemperatureScaling.fit(logits, labels)
    expected = softmax(logits / fitted.temperature.numpy())
    assert fitted.predict_proba(logits) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_bins": 0}, "n_bins: expected a whole number of at least 1, got 0"),
        ({"max_sweeps": 1.5}, "max_sweeps: expected a whole number of at least 1, got 1.5"),
        ({"keep_accuracy": 1}, "keep_accuracy: expected True or False, got 1"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InputError, match=f"^{message}"):
        ClassTemperatureScaling.fit([[1.0, 0.0]], [0], **options)


@pytest.mark.slow
def test_five_sweeps_without_a_look_at_the_accuracy_are_those_of_the_plain_search():
    logits, labels = draw(80, 4, seed=4, sharpen=2.0)
    expected = plain_search(logits, labels, sweeps=5, keep_accuracy=False)
    fitted = METHODS["class_temperature_paper"].fit(logits, labels)
    assert fitted.temperature.tolist() == expected.tolist()
    fewer = ClassTemperatureScaling.fit(logits, labels, max_sweeps=1, keep_accuracy=False)
    assert fewer.temperature.tolist() != expected.tolist()
