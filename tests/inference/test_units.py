"""Units: rows that depend on each other, such as several answers to one question, are drawn together."""

import numpy as np
import pytest
import torch

from calibrant.errors import InputError
from calibrant.inference import by_chance, calibration_test, curve_band, paired_difference, with_interval
from calibrant.inference.chance import redrawn
from calibrant.inference.intervals import mean_with_error
from calibrant.inference.units import Units
from calibrant.metrics import (
    accuracy,
    classwise_calibration_error,
    expected_calibration_error,
    negative_log_likelihood,
    smooth_ece,
)
from tests.conftest import at_length

N, PER_UNIT = 60, 4
RNG = np.random.default_rng(0)
CONFIDENCE = RNG.random(N * PER_UNIT)
CORRECT = RNG.random(N * PER_UNIT) < CONFIDENCE**2
WEIGHTS = np.repeat(RNG.integers(1, 4, N), PER_UNIT)
EQUAL = np.repeat(np.arange(N), PER_UNIT)
# Units of one to nine rows, which do not follow each other.
UNEQUAL = RNG.permutation(np.repeat(100 * np.arange(10, 52), RNG.integers(1, 10, 42)))[: N * PER_UNIT]
UNEQUAL = np.concatenate([UNEQUAL, np.full(N * PER_UNIT - len(UNEQUAL), 7)])


def own(confidence, correct):
    """A measure that is not in the catalogue."""
    return float(torch.as_tensor(confidence).mean() - torch.as_tensor(correct).double().mean())


MEASURES = [expected_calibration_error, negative_log_likelihood, smooth_ece, own]

# Terms of units of equal size are drawn in another order; the smooth error is computed less exactly.
CLOSE = {"negative_log_likelihood": 0.2, "smooth_ece": 1e-4}


def drawn_again(units, n_resamples, seed):
    """Yield the rows of units drawn with replacement, by the definition."""
    names = list(dict.fromkeys(units.tolist()))
    rng = np.random.default_rng(seed)
    for _ in range(n_resamples):
        chosen = [names[place] for place in rng.integers(len(names), size=len(names))]
        yield np.concatenate([np.flatnonzero(units == name) for name in chosen])


@pytest.mark.parametrize("units", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("measure", MEASURES)
def test_units_are_drawn_whole(measure, units):
    pairs = {"confidence": CONFIDENCE, "correct": CORRECT}
    found = with_interval(measure, **pairs, units=units, n_resamples=200, seed=3)
    values = [
        measure(confidence=CONFIDENCE[rows], correct=CORRECT[rows]) for rows in drawn_again(units, 200, 3)
    ]
    close = CLOSE.get(measure.__name__, 1e-9)
    assert found.standard_error == pytest.approx(np.std(values, ddof=1), rel=close)


@pytest.mark.parametrize("measure", MEASURES)
def test_differences_are_those_of_units_drawn_whole(measure):
    given = {"correct_a": CORRECT, "correct_b": CORRECT, "n_resamples": 200, "seed": 3}
    found = paired_difference(measure, CONFIDENCE, CONFIDENCE**2, **given, units=UNEQUAL)
    values = [
        measure(confidence=CONFIDENCE[rows], correct=CORRECT[rows])
        - measure(confidence=CONFIDENCE[rows] ** 2, correct=CORRECT[rows])
        for rows in drawn_again(UNEQUAL, 200, 3)
    ]
    close = CLOSE.get(measure.__name__, 1e-9)
    assert found.standard_error == pytest.approx(np.std(values, ddof=1), rel=close)


@pytest.mark.parametrize("measure", MEASURES)
def test_units_of_one_row_change_nothing(measure):
    pairs = {"confidence": CONFIDENCE, "correct": CORRECT, "n_resamples": 60}
    names = np.random.default_rng(1).permutation(len(CONFIDENCE)) - 50
    assert with_interval(measure, **pairs, units=names) == with_interval(measure, **pairs)
    given = {"correct_a": CORRECT, "correct_b": CORRECT, "n_resamples": 60}
    one, other = (
        paired_difference(measure, CONFIDENCE, CONFIDENCE**2, **given, units=u) for u in (names, None)
    )
    assert one == other


@pytest.mark.parametrize(
    ("measure", "weighted"), [*((each, False) for each in MEASURES), *((each, True) for each in MEASURES[:3])]
)
def test_units_of_equal_samples_are_one_sample_each(measure, weighted):
    first = slice(None, None, PER_UNIT)
    c, y = np.repeat(CONFIDENCE[first], PER_UNIT), np.repeat(CORRECT[first], PER_UNIT)
    more = {"weights": WEIGHTS} if weighted else {}
    rows = with_interval(measure, confidence=c, correct=y, units=EQUAL, n_resamples=100, **more)
    more = {"weights": WEIGHTS[first]} if weighted else {}
    one = with_interval(measure, confidence=c[first], correct=y[first], n_resamples=100, **more)
    assert rows.standard_error == pytest.approx(one.standard_error)
    given = {"correct_a": y, "correct_b": y, "n_resamples": 100}
    difference = paired_difference(measure, c, c**2, units=EQUAL, **given)
    given = {"correct_a": y[first], "correct_b": y[first], "n_resamples": 100}
    expected = paired_difference(measure, c[first], c[first] ** 2, **given)
    # Hits of calibrated models, which measure the bias, are drawn by other random numbers.
    assert (difference.low, difference.high) == pytest.approx((expected.low, expected.high), abs=0.01)


def test_a_band_draws_units_whole():
    def curve(confidence, correct):  # noqa: ARG001  # the signature of a curve
        return correct.double().mean()[None]

    found = curve_band(curve, confidence=CONFIDENCE, correct=CORRECT, units=UNEQUAL, n_resamples=100, seed=5)
    values = [CORRECT[rows].mean() for rows in drawn_again(UNEQUAL, 100, 5)]
    assert (float(found.low), float(found.high)) == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])))


def copies(n_units, per_unit, rng, *, slope=1.0):
    """Return answers that are given several times: the same confidence and the same hit in each unit."""
    confidence = rng.uniform(0.5, 1.0, n_units)
    hits = rng.random(n_units) < slope * confidence
    pairs = {"confidence": np.repeat(confidence, per_unit), "correct": np.repeat(hits, per_unit)}
    return pairs, np.repeat(np.arange(n_units), per_unit)


def test_outcomes_are_drawn_with_the_correlation_that_they_have():
    rng = np.random.default_rng(0)
    pairs, units = copies(200, 3, rng)
    redraw = redrawn(pairs, Units.of(units, 600))
    drawn = np.stack([redraw(rng)["correct"] for _ in range(50)]).reshape(50, 200, 3)
    assert (drawn == drawn[..., :1]).all()  # copies of one answer are copies in every draw
    assert drawn.mean(axis=(0, 2)) == pytest.approx(pairs["confidence"][::3], abs=0.3)
    alone = {"confidence": pairs["confidence"], "correct": rng.random(600) < pairs["confidence"]}
    redraw = redrawn(alone, Units.of(units, 600))
    drawn = np.stack([redraw(rng)["correct"] for _ in range(50)]).reshape(50, 200, 3)
    error = drawn - pairs["confidence"].reshape(200, 3)
    assert (error[..., 0] * error[..., 1]).mean() / (error**2).mean() == pytest.approx(0, abs=0.1)


def test_labels_are_drawn_with_their_probabilities_also_if_they_depend_on_each_other():
    rng = np.random.default_rng(0)
    probs = np.repeat([[0.2, 0.5, 0.3]], 400, axis=0)
    labels = np.repeat(rng.choice(3, size=100, p=probs[0]), 4)
    redraw = redrawn({"probs": probs, "labels": labels}, Units.of(np.repeat(np.arange(100), 4), 400))
    drawn = np.concatenate([redraw(rng)["labels"] for _ in range(200)])
    assert np.bincount(drawn, minlength=3) / len(drawn) == pytest.approx(probs[0], abs=0.02)


@pytest.mark.parametrize("statistic", at_length(["ece", "kuiper", "ks", smooth_ece], ["ece"]))
def test_the_test_of_copied_answers_has_its_size_only_with_units(statistic):
    rng, rejected = np.random.default_rng(1), [0, 0]
    for seed in range(40):
        pairs, units = copies(60, 6, rng)
        for place, given in enumerate((None, units)):
            found = calibration_test(**pairs, units=given, statistic=statistic, n_resamples=39, seed=seed)
            rejected[place] += found.p_value <= 0.05
    # At a size of 5 %, more than 6 of 40 have a probability below 1 in 100.
    assert rejected[1] <= 6
    assert rejected[0] > 20


def test_what_chance_shows_is_larger_for_copied_answers():
    pairs, units = copies(60, 6, np.random.default_rng(2))
    alone = by_chance(expected_calibration_error, **pairs)
    together = by_chance(expected_calibration_error, **pairs, units=units)
    assert together.mean > 1.8 * alone.mean
    assert together.p_value > alone.p_value
    probs = np.stack([pairs["confidence"], 1 - pairs["confidence"]], axis=1)
    labels = 1 - pairs["correct"].astype(int)
    errors = [by_chance(classwise_calibration_error, probs, labels, units=u).mean for u in (None, units)]
    assert errors[1] > 1.8 * errors[0]


def dependent(rng, *, n_units=60, correlation=0.6):
    """Return answers of which those to one question are alike: units of one to nine rows."""
    units = np.repeat(np.arange(n_units), rng.integers(1, 10, n_units))
    shared = rng.random(len(units)) < np.sqrt(correlation)
    uniform = np.where(shared, rng.random(n_units)[units], rng.random(len(units)))
    confidence = rng.uniform(0.5, 1.0, len(units))
    return {"confidence": confidence, "correct": uniform < confidence - 0.1}, units


@pytest.mark.slow
@pytest.mark.parametrize("measure", [accuracy, negative_log_likelihood, expected_calibration_error])
def test_intervals_by_unit_cover_where_those_by_row_do_not(measure):
    rng, n_sets = np.random.default_rng(3), 60
    truth = {
        accuracy: 0.65,
        expected_calibration_error: 0.1,
        negative_log_likelihood: np.mean(
            [-(c - 0.1) * np.log(c) - (1.1 - c) * np.log1p(-c) for c in np.linspace(0.5, 1, 20_001)[:-1]]
        ),
    }[measure]
    covered = [0, 0]
    for seed in range(n_sets):
        pairs, units = dependent(rng)
        for place, given in enumerate((None, units)):
            found = with_interval(measure, **pairs, units=given, n_resamples=200, seed=seed)
            covered[place] += found.low <= truth <= found.high
    # At a level of 95 %, fewer than 52 of 60 have a probability below 1 in 100.
    assert covered[1] >= 52
    assert covered[0] <= covered[1]
    assert measure is not accuracy or covered[0] < 50


@pytest.mark.slow
def test_equal_models_differ_by_unit_no_more_often_than_the_level():
    rng, rejected = np.random.default_rng(4), [0, 0]
    for seed in range(60):
        first, units = dependent(rng, correlation=0.9)
        other = {"confidence": first["confidence"], "correct": np.empty(len(units), dtype=bool)}
        shared = rng.random(60)[units]
        other["correct"] = shared < first["confidence"] - 0.1
        for place, given in enumerate((None, units)):
            found = paired_difference(
                accuracy,
                first["confidence"],
                other["confidence"],
                correct_a=first["correct"],
                correct_b=other["correct"],
                units=given,
                n_resamples=199,
                seed=seed,
            )
            rejected[place] += found.p_value <= 0.05
    assert rejected[1] <= 8
    assert rejected[0] > 12


def test_the_error_of_a_mean_is_that_of_resampled_units():
    terms = CONFIDENCE - CORRECT
    mean, error = mean_with_error(terms, units=UNEQUAL)
    values = [terms[rows].mean() for rows in drawn_again(UNEQUAL, 4000, 1)]
    assert mean == pytest.approx(terms.mean())
    assert error == pytest.approx(np.std(values), rel=0.1)


@pytest.mark.parametrize(
    ("units", "message"),
    [
        ([0, 1, 1], "^units: expected 240 integers, one per row, got int64 of shape \\(3,\\)"),
        (CONFIDENCE, "^units: expected 240 integers, one per row, got float64"),
        (np.zeros(240, dtype=int), "^units: expected at least two different ones, got 1; one unit has no"),
    ],
)
def test_wrong_units_are_refused(units, message):
    with pytest.raises(InputError, match=message):
        with_interval(smooth_ece, confidence=CONFIDENCE, correct=CORRECT, units=units)


def test_random_pairs_of_rows_cannot_have_units():
    with pytest.raises(InputError, match="^units: expected none with the statistic 'skce', got some"):
        calibration_test(confidence=CONFIDENCE, correct=CORRECT, statistic="skce", units=EQUAL)
