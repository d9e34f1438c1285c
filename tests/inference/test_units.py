"""Units: rows that depend on each other, such as several answers to one question, are drawn together."""

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.errors import InputError
from calibrant.evaluation.groups import by_group
from calibrant.inference import by_chance, calibration_test, curve_band, paired_difference, with_interval
from calibrant.inference.chance import redrawn
from calibrant.inference.intervals import effective_rows, mean_with_error
from calibrant.inference.units import Spread, Units
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
    low, high = np.quantile(values, [0.025, 0.975])
    ratio = Units.of(UNEQUAL, len(UNEQUAL)).spread(CORRECT - CONFIDENCE).ratio(0.95)
    assert 1.02 < ratio < 1.3
    assert float(found.high) - float(found.low) == pytest.approx(ratio * (high - low), rel=0.03)
    assert found.low < low
    assert found.high > high


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
    # Copies of one answer are copies in most draws; the observed ones leave a bit open.
    assert (drawn == drawn[..., :1]).mean() > 0.97
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


@pytest.mark.slow
def test_random_pairs_are_pairs_of_units():
    rng, rejected = np.random.default_rng(1), [0, 0]
    for seed in range(60):
        pairs, units = copies(40, 30, rng)
        for place, given in enumerate((None, units)):
            found = calibration_test(**pairs, units=given, statistic="skce", seed=seed)
            rejected[place] += found.p_value <= 0.05
    assert rejected[1] <= 8  # at a size of 5 %, more have a probability below 1 in 100
    assert rejected[0] > 12
    pairs, units = copies(300, 6, rng, slope=0.6)
    assert calibration_test(**pairs, units=units, statistic="skce").p_value < 0.001
    with pytest.raises(InputError, match="^units: expected at least four, for two pairs, got 2"):
        calibration_test(
            confidence=CONFIDENCE, correct=CORRECT, statistic="skce", units=np.arange(240) // 120
        )


def test_units_of_equal_size_have_the_variance_and_the_quantiles_of_a_t_test():
    spread = Units.of(EQUAL, len(EQUAL)).spread(CONFIDENCE)
    assert spread.degrees == pytest.approx(N - 1)
    assert spread.scale == pytest.approx(np.sqrt(N / (N - 1)))
    assert spread.ratio(0.95) == pytest.approx(spread.scale * 2.000995 / 1.959964, rel=1e-6)


def test_the_degrees_of_unequal_units_are_those_of_the_covariance_of_their_sums():
    sizes, variances = np.array([1.0, 2.0, 7.0, 30.0]), np.array([1.0, 3.0, 20.0, 300.0])
    away = np.eye(4) - np.outer(sizes / sizes.sum(), np.ones(4))
    covariance = away @ np.diag(variances) @ away.T
    found = Spread.of(sizes, variances)
    trace, squares = np.trace(covariance), np.trace(covariance @ covariance)
    assert found.degrees == pytest.approx(trace**2 / squares)
    assert found.scale == pytest.approx(np.sqrt(variances.sum() / trace))


def test_intervals_of_few_unequal_units_are_wider_than_the_percentiles_of_their_resamples():
    units = np.repeat(np.arange(24), [60] * 2 + [5] * 20 + [10] * 2)
    hits = np.random.default_rng(5).random(24)[units] < 0.6
    found = with_interval(own, confidence=CONFIDENCE, correct=hits, units=units, n_resamples=400, seed=3)
    values = [own(CONFIDENCE[rows], hits[rows]) for rows in drawn_again(units, 400, 3)]
    low, high = np.quantile(values, [0.025, 0.975])
    assert found.high - found.low > 1.2 * (high - low)


def test_the_ratio_of_many_units_is_resampled_like_their_rows():
    rng = np.random.default_rng(6)
    units = np.repeat(np.arange(40_000), rng.integers(1, 4, 40_000))
    hits = rng.random(40_000)[units] < 0.7
    found = with_interval(accuracy, confidence=np.full(len(units), 0.5), correct=hits, units=units)
    mean, error = mean_with_error(hits.astype(float), units=units)
    assert found.value == pytest.approx(mean)
    assert found.standard_error == pytest.approx(error, rel=0.1)


def test_forecasts_of_opposite_events_are_drawn_as_opposites():
    rng = np.random.default_rng(7)
    confidence = rng.uniform(0.5, 0.95, 300)
    hits = rng.random(300) < confidence
    both = {
        "confidence": np.stack([confidence, 1 - confidence], axis=1).ravel(),
        "correct": np.stack([hits, ~hits], axis=1).ravel(),
    }
    redraw = redrawn(both, Units.of(np.repeat(np.arange(300), 2), 600))
    drawn = np.stack([redraw(rng)["correct"] for _ in range(30)]).reshape(-1, 2)
    assert (drawn[:, 0] != drawn[:, 1]).mean() > 0.95


@pytest.mark.parametrize(("per_unit", "expected"), [(1, 600), (6, 100)])
def test_copies_count_like_one_row(per_unit, expected):
    hits = np.repeat(np.random.default_rng(8).random(600 // per_unit) < 0.8, per_unit).astype(float)
    units = np.arange(600) // per_unit
    assert effective_rows(hits, units=units) == pytest.approx(expected, rel=0.05)
    assert effective_rows(hits, units=units, weights=np.full(600, 3)) == pytest.approx(expected, rel=0.05)
    assert effective_rows(np.ones(600), units=units) == pytest.approx(expected)


def test_a_group_of_copied_answers_is_tested_by_unit():
    rng, rejected = np.random.default_rng(9), [0, 0]
    for seed in range(40):
        pairs, units = copies(40, 8, rng)
        for place, given in enumerate((None, units)):
            predictions = Predictions(**pairs, units=given, groups=["one"] * 320)
            (row,) = by_group(predictions, measures=["ece"], seed=seed).rows
            rejected[place] += row.p_value <= 0.05
    assert rejected[1] <= 6
    assert rejected[0] > 15


def test_a_group_with_rows_of_one_unit_is_not_tested():
    pairs, units = copies(40, 8, np.random.default_rng(10))
    groups = np.where(units == 3, "single", "others")
    rows = {row.name: row for row in by_group(Predictions(**pairs, units=units, groups=groups)).rows}
    assert np.isnan(rows["single"].p_value)
    assert rows["single"].gap_high - rows["single"].gap_low > 0.7
    assert rows["others"].p_value > 0


@pytest.mark.parametrize("statistic", ["ece", "kuiper", "skce", smooth_ece])
def test_units_of_one_row_change_no_test(statistic):
    pairs = {"confidence": CONFIDENCE, "correct": CORRECT}
    names = np.random.default_rng(1).permutation(len(CONFIDENCE)) - 50
    given = {"statistic": statistic, "n_resamples": 39}
    assert calibration_test(**pairs, units=names, **given) == calibration_test(**pairs, **given)
    assert by_chance(smooth_ece, **pairs, units=names) == by_chance(smooth_ece, **pairs)
    assert effective_rows(CONFIDENCE, units=names, weights=WEIGHTS) == effective_rows(
        CONFIDENCE, weights=WEIGHTS
    )
