"""What a calibrated model shows by chance: exact for one bin, equal to plain loops for every error."""

import numpy as np
import pytest
from scipy import stats

from calibrant.errors import InputError
from calibrant.inference import by_chance, calibration_test
from calibrant.inference.chance import _draws, redrawn
from calibrant.inference.rows import apply_to
from calibrant.inference.units import Units
from calibrant.metrics import MEASURES, accuracy, expected_calibration_error
from calibrant.metrics.names import measure_of
from tests.conftest import draw, softmax

pytestmark = pytest.mark.usefixtures("one_thread")
ERRORS = [name for name, each in MEASURES.items() if each.noise_floor and each.max_samples is None]


def redrawn_by_hand(measure, probs, rng):
    """Draw labels or hits from the predictions by a plain loop, and measure them."""
    labels = np.array([rng.choice(probs.shape[1], p=row) for row in probs])
    if measure.reads == "outcomes":
        confidence, correct = probs.max(axis=1), labels == probs.argmax(axis=1)
        return measure.function(confidence=confidence, correct=correct, **measure.arguments(15))
    return measure.function(probs, labels, **measure.arguments(15))


def test_the_mean_and_the_percentile_of_equal_confidences_are_those_of_a_binomial():
    n, confidence = 40, 0.8
    hits = np.arange(n) < 30
    found = by_chance(expected_calibration_error, confidence=[confidence] * n, correct=hits, n_draws=4000)
    gaps = np.abs(np.arange(n + 1) / n - confidence)
    mass = stats.binom.pmf(np.arange(n + 1), n, confidence)
    assert found.mean == pytest.approx(gaps @ mass, rel=0.05)
    order = np.argsort(gaps)
    exact = gaps[order][np.searchsorted(mass[order].cumsum(), 0.95)]
    assert found.high == pytest.approx(exact, abs=1 / n + 1e-9)
    # 30 hits are two fewer than expected; draws with a gap of exactly 0.05 count too, despite rounding.
    assert found.p_value == pytest.approx(mass[gaps > 0.05 - 1e-9].sum(), abs=0.04)
    assert found.n_draws == 4000


@pytest.mark.slow
@pytest.mark.parametrize("name", ERRORS)
def test_every_calibration_error_agrees_with_a_plain_loop(name):
    measure, rng = MEASURES[name], np.random.default_rng(0)
    logits, labels = draw(150, measure.max_classes or 3, seed=4, sharpen=1.3)
    probs = softmax(logits)
    given = {"probs": probs, "labels": labels}
    if measure.reads == "outcomes":
        given = {"confidence": probs.max(axis=1), "correct": labels == probs.argmax(axis=1)}
    found = by_chance(measure.function, **given, **measure.arguments(15), n_draws=200)
    plain = np.array([redrawn_by_hand(measure, probs, rng) for _ in range(60)])
    error = plain.std(ddof=1) * np.sqrt(1 / 60 + 1 / 200)
    assert found.mean == pytest.approx(plain.mean(), abs=4 * error)
    assert (plain > found.high).mean() <= 0.2
    assert found.high > found.mean


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(
    "name", ["classwise_ece", "classwise_ece_equal_mass", "adaptive_ece", "brier_calibration"]
)
def test_labels_drawn_for_fixed_predictions_give_the_measure_itself(name, ties):
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(90, 5))
    probs = softmax(np.round(logits) if ties else logits)
    labels = rng.integers(1, 5, size=90)  # class 0 has no member
    measure, units = MEASURES[name], Units.of(None, 90)
    rows, options = {"probs": probs, "labels": labels}, measure.arguments(15)
    draws = _draws(measure.function, measure_of(measure.function), rows, options, units)
    redraw, again = redrawn(rows, units), np.random.default_rng(1)
    plain = [apply_to(measure.function, redraw(again), options) for _ in range(3)]
    assert draws.draw(3, np.random.default_rng(1)) == pytest.approx(plain, abs=1e-12)


@pytest.mark.parametrize("units", [None, np.arange(400) // 2])
@pytest.mark.parametrize("name", ["ece_sweep", "ks", "smce", "ece_debiased"])
def test_hits_of_equal_confidences_are_counted_together(name, units):
    confidence = np.random.default_rng(0).choice([0.6, 0.75, 0.9], size=400)
    measure, drawn = MEASURES[name], Units.of(units, 400)
    rows, options = {"confidence": confidence, "correct": confidence > 0.7}, measure.arguments(15)
    draws = _draws(measure.function, measure_of(measure.function), rows, options, drawn)
    redraw, again = redrawn(rows, drawn), np.random.default_rng(1)
    plain = [apply_to(measure.function, redraw(again), options) for _ in range(3)]
    assert draws.draw(3, np.random.default_rng(1)) == pytest.approx(plain, abs=1e-12)


def test_the_p_value_is_that_of_the_calibration_test():
    rng = np.random.default_rng(1)
    confidence = rng.uniform(0.5, 1, 400)
    pairs = {"confidence": confidence, "correct": rng.random(400) < confidence - 0.03}
    expected = calibration_test(**pairs, n_resamples=2000).p_value
    assert 0.01 < expected < 0.9
    found = by_chance(expected_calibration_error, **pairs, n_draws=2000)
    assert found.p_value == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("name", ["ece", "ks", "classwise_ece"])
def test_samples_of_weight_zero_count_for_nothing(name):
    logits, labels = draw(300, 3, seed=5)
    measure, probs = MEASURES[name], softmax(logits)
    weights = np.repeat([1.0, 0.0], 150)
    whole = by_chance(measure.function, probs, labels, weights=weights, **measure.arguments(15))
    half = by_chance(measure.function, probs[:150], labels[:150], **measure.arguments(15))
    assert whole.mean == pytest.approx(half.mean, rel=0.1)
    assert whole.high == pytest.approx(half.high, rel=0.15)


def test_chance_shrinks_with_the_square_root_of_the_number_of_samples():
    rng = np.random.default_rng(2)
    means = []
    for n in (1000, 16_000):
        confidence = rng.uniform(0.5, 1, n)
        hits = rng.random(n) < confidence
        means.append(by_chance(expected_calibration_error, confidence=confidence, correct=hits).mean)
    assert means[0] / means[1] == pytest.approx(4, rel=0.1)


def test_equal_seeds_give_equal_numbers_and_others_do_not(sample):
    one, same, other = (by_chance(expected_calibration_error, *sample, seed=seed) for seed in (3, 3, 4))
    assert one == same != other


def test_what_would_take_too_long_is_not_drawn(sample):
    assert by_chance(expected_calibration_error, *sample, max_work=1000) is None
    assert by_chance(MEASURES["ks"].function, *sample, max_work=800 * 8 * 50).n_draws == 50


def test_a_measure_that_is_no_calibration_error_is_refused(sample):
    with pytest.raises(InputError, match="expected a calibration error, got accuracy"):
        by_chance(accuracy, *sample)
