"""Bootstrap intervals: against the plain bootstrap, scipy, and truths known by construction."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from calibrant.data import load_bundled
from calibrant.errors import InputError
from calibrant.inference.chance import could_be_calibrated
from calibrant.inference.draws import weighted_of
from calibrant.inference.intervals import corrected_ends, two_sided_p_value, with_interval
from calibrant.metrics import (
    accuracy,
    auroc_correctness,
    brier_score,
    classwise_calibration_error,
    expected_calibration_error,
    mean_confidence,
    negative_log_likelihood,
    top_label_bins,
)
from calibrant.metrics.names import MEASURES

pytestmark = pytest.mark.usefixtures("one_thread")


def outcomes(n, *, seed=0, slope=0.9, dtype=np.float64):
    """Confidences between 0 and 1, some of them equal, some of them 1, and hits of a miscalibrated model."""
    rng = np.random.default_rng(seed)
    confidence = rng.beta(3, 1, size=n).astype(dtype)
    confidence[: n // 10] = 0.8
    confidence[n // 10 : n // 8] = 1.0
    return confidence, rng.random(n) < slope * confidence


@pytest.mark.parametrize("metric", [brier_score, negative_log_likelihood])
def test_the_interval_of_a_mean_is_that_of_scipy(sample, metric):
    probs, labels = 0.99 * sample[0][:150] + 0.0025, sample[1][:150]
    terms = [metric(probs[i : i + 1], labels[i : i + 1]) for i in range(150)]
    draws = {"n_resamples": 4000, "method": "percentile", "rng": np.random.default_rng(1)}
    theirs = stats.bootstrap((terms,), np.mean, **draws)
    ours = with_interval(metric, probs, labels, n_resamples=4000)
    assert ours.value == pytest.approx(metric(probs, labels), abs=1e-12)
    error = theirs.standard_error
    assert ours.standard_error == pytest.approx(error, rel=0.05)
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=0.15 * error)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=0.15 * error)


def squared_error(confidence, correct):
    """Compute a measure that is not in the catalogue."""
    return float(np.mean((confidence - correct) ** 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "truth"), [(mean_confidence, 1 / 2), (accuracy, 1 / 2), (squared_error, 1 / 6)]
)
def test_intervals_cover_the_truth_with_their_level(metric, truth):
    rng = np.random.default_rng(0)
    covered, n_sets = 0, 150
    for seed in range(n_sets):
        confidence = rng.random(100)
        correct = rng.random(100) < confidence
        found = with_interval(
            metric,
            confidence=confidence,
            correct=correct,
            n_resamples=200,
            level=0.9,
            seed=seed,
        )
        covered += found.low <= truth <= found.high
    # The bootstrap covers slightly less than its level; the rest is about three standard deviations.
    assert 0.81 * n_sets <= covered <= 0.96 * n_sets


def test_no_interval_of_the_catalogue_excludes_its_estimate():
    bundled = load_bundled("cifar10_test").take(np.arange(500))
    probs, labels = bundled.to_probs().double().numpy(), bundled.labels.numpy()
    right = probs.argmax(axis=1) == labels
    for name, measure in MEASURES.items():
        if measure.max_samples is not None or measure.max_classes is not None:
            continue
        rows = {"confidence": probs.max(axis=1).clip(max=1), "correct": right}
        rows = rows if measure.reads == "outcomes" else {"probs": probs, "labels": labels}
        found = with_interval(measure.function, **rows, **measure.arguments(15), n_resamples=30)
        assert 0 <= found.low <= found.value <= found.high, name


@pytest.mark.parametrize("gap", [0.0, 0.15])
@pytest.mark.parametrize("name", ["ece", "ece_equal_mass", "rmsce", "ks", "mmce"])
def test_the_interval_of_a_biased_error_covers_that_of_the_population(name, gap):
    measure, rng, n_sets = MEASURES[name], np.random.default_rng(0), 40
    grid = np.linspace(0.3, 1.0, 20_001)
    many = np.round(1e6 * np.concatenate([grid - gap, 1 - grid + gap])).astype(np.int64)
    everyone = {"confidence": np.tile(grid, 2), "correct": np.repeat([True, False], len(grid))}
    truth = weighted_of(measure, everyone, measure.arguments(15)).values(many[None])[0]
    assert name == "mmce" or truth == pytest.approx(gap, abs=1e-3)
    covered = 0
    for seed in range(n_sets):
        confidence = rng.uniform(0.3, 1.0, 200)
        pairs = {"confidence": confidence, "correct": rng.random(200) < confidence - gap}
        drawn = {**pairs, **measure.arguments(15), "n_resamples": 60, "seed": seed}
        found = with_interval(measure.function, **drawn)
        covered += found.low <= truth + 1e-9 and truth <= found.high
    # At a level of 95 %, fewer than 34 of 40 have a probability below 1 in 100.
    assert covered >= 34


def test_ends_are_percentiles_moved_by_the_step_and_extended_by_the_largest_bias():
    drawn = np.arange(1001) / 1000  # percentiles are known, the mean is 0.5
    largest = 1 + math.sqrt(2)
    assert corrected_ends(0.5, drawn, level=0.9) == pytest.approx((0.05, 0.95))
    assert corrected_ends(0.3, drawn, level=0.9, biased=False) == pytest.approx((0.05, 0.95))
    assert corrected_ends(0.3, drawn, level=0.9) == pytest.approx((-0.15 - 0.2 * largest, 0.75))
    assert corrected_ends(0.7, drawn, level=0.9) == pytest.approx((0.25, 1.15 + 0.2 * largest))
    assert corrected_ends(0.3, drawn, level=0.9, floor=2.0) == pytest.approx((-2.15, 0.75))
    assert corrected_ends(-1.0, drawn, level=0.9, biased=False) == pytest.approx((-1.0, 0.95))
    assert two_sided_p_value(0.5, drawn) == pytest.approx(4 / 1002)
    assert two_sided_p_value(0.3, drawn) == 1.0
    assert two_sided_p_value(-0.5, drawn, biased=False) == 1.0


def test_a_value_that_calibrated_models_reach_by_chance_has_an_interval_from_0():
    drawn = iter(range(100))
    assert could_be_calibrated(30.0, lambda: next(drawn), level=0.95)
    assert next(drawn) == 31  # no more are drawn than needed
    undefined = iter([0.0, 1.0, 2.0, 3.0, 4.0, math.nan])
    assert could_be_calibrated(6.0, lambda: next(undefined), level=0.95)
    drawn = iter(range(100))
    assert not could_be_calibrated(40.0, lambda: next(drawn), level=0.95)
    assert next(drawn) == 5  # eight ranges above the first five
    drawn = iter(range(100))
    assert not could_be_calibrated(38.5, lambda: next(drawn) / 1, level=0.9)


def test_means_are_drawn_as_rows_are(sample):
    probs, labels = sample
    fast = with_interval(brier_score, probs, labels, n_resamples=50)
    plain = with_interval(lambda p, y: brier_score(p, y), probs, labels, n_resamples=50)
    same = ("value", "standard_error", "n_resamples")
    assert [getattr(fast, name) for name in same] == pytest.approx(
        [getattr(plain, name) for name in same], abs=1e-12
    )


def test_equal_seeds_give_equal_intervals():
    for n, metric in (
        (200, expected_calibration_error),
        (20_000, expected_calibration_error),
        (200, accuracy),
    ):
        confidence, correct = outcomes(n)
        one, same, other = (
            with_interval(metric, confidence=confidence, correct=correct, n_resamples=50, seed=seed)
            for seed in (7, 7, 8)
        )
        assert one == same
        assert one != other


def test_a_sample_without_variation_has_an_interval_of_one_point():
    for n in (20, 40_000):
        found = with_interval(accuracy, confidence=[0.9] * n, correct=[True] * n)
        assert (found.value, found.low, found.high, found.standard_error) == (1.0, 1.0, 1.0, 0.0)


def test_undefined_resamples_are_dropped_and_counted():
    confidence, correct = np.linspace(0.5, 1, 30), np.arange(30) > 0
    found = with_interval(auroc_correctness, confidence=confidence, correct=correct)
    assert found.n_resamples + found.n_undefined == 1000
    assert found.n_undefined == pytest.approx(1000 * (1 - 1 / 30) ** 30, abs=80)
    assert 0 <= found.low <= found.high <= 1


def test_a_measure_that_is_mostly_undefined_is_refused():
    def only_on_the_sample(confidence, correct):  # noqa: ARG001  # the signature of a measure
        return 1.0 if len(np.unique(confidence)) == 30 else math.nan

    with pytest.raises(
        InputError, match="^metric: expected a finite value on most resamples, got none on 50 of 50;"
    ):
        with_interval(only_on_the_sample, confidence=np.linspace(0, 1, 30), correct=[1] * 30, n_resamples=50)
    with pytest.raises(InputError, match="^metric: expected a finite value on the whole sample, got nan$"):
        with_interval(auroc_correctness, confidence=[0.5, 0.6], correct=[1, 1])
    with pytest.raises(InputError, match="^metric: expected a finite value on the whole sample, got inf$"):
        with_interval(lambda confidence, correct: math.inf, confidence=[0.5, 0.6], correct=[1, 1])  # noqa: ARG005  # as above


def test_the_measure_receives_the_kind_of_array_that_was_given():
    seen = set()

    def note(probs, labels):
        seen.add((type(probs), type(labels), len(probs)))
        return 0.0

    with_interval(note, [0.1, 0.2, 0.3], torch.tensor([0, 1, 0]), n_resamples=2)
    assert seen == {(np.ndarray, torch.Tensor, 3)}


def test_logits_and_options_reach_the_measure(overconfident):
    logits, labels = overconfident
    found = with_interval(negative_log_likelihood, logits=logits, labels=labels, n_resamples=20)
    assert found.value == pytest.approx(negative_log_likelihood(logits=logits, labels=labels), abs=1e-12)
    assert found.low < found.value < found.high
    widest = with_interval(
        lambda p, y, *, n_bins: float(top_label_bins(p, y, n_bins=n_bins).count.max()),
        torch.softmax(torch.tensor(logits), dim=1),
        labels,
        n_bins=1,
        n_resamples=3,
    )
    assert widest.value == widest.low == len(labels)


@pytest.mark.parametrize("n", [100, 20_000])
@pytest.mark.parametrize("metric", [expected_calibration_error, accuracy, auroc_correctness])
def test_progress_ends_at_the_total(metric, n):
    confidence, correct = outcomes(n)
    steps = []
    with_interval(
        metric,
        confidence=confidence,
        correct=correct,
        n_resamples=5,
        progress=lambda _, done, total: steps.append((done, total)),
    )
    assert steps[-1] == (5, 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"level": 95}, "^level: expected a number between 0 and 1, got 95; 95 % is 0.95"),
        ({"level": 0.0}, "^level: expected a number between 0 and 1, got 0.0"),
        ({"n_resamples": 1}, "^n_resamples: expected a whole number of at least 2, got 1"),
        ({"seed": -1}, "^seed: expected a whole number of at least 0, got -1"),
        ({"metric": top_label_bins}, "^metric: expected a function that returns one number, got Bins; wrap"),
        (
            {"confidence": [0.5], "correct": [1]},
            "^confidence: expected at least two samples, got 1; one sample",
        ),
        ({"confidence": 0.5}, "^confidence: expected one entry per sample, got a single number"),
        ({"correct": [1]}, "^correct: expected 3 entries, one per prediction, got 1"),
        (
            {"correct": None},
            "^arguments: expected probs with labels or logits with labels or conf.* got confidence$",
        ),
        ({"confidence": [0.5, 2.0, 0.1]}, "^confidence: expected numbers between 0 and 1, got 2 in row 1"),
        (
            {"metric": expected_calibration_error, "binning": "log"},
            "^binning: expected 'width' or 'mass', got 'log'",
        ),
    ],
)
def test_wrong_input_is_refused_in_one_sentence(change, message):
    arguments = {"metric": accuracy, "confidence": [0.5, 0.6, 0.7], "correct": [1, 0, 1]} | change
    with pytest.raises(InputError, match=message):
        with_interval(**arguments)


def test_an_argument_that_the_measure_does_not_take_is_refused():
    with pytest.raises(TypeError, match="n_bins"):
        with_interval(accuracy, confidence=[0.5, 0.6], correct=[1, 0], n_bins=3)
    with pytest.raises(TypeError, match="confidence"):
        with_interval(classwise_calibration_error, confidence=[0.5, 0.6], correct=[1, 0])
    with pytest.raises(TypeError, match="bins"):
        with_interval(expected_calibration_error, confidence=[0.5] * 20_000, correct=[1] * 20_000, bins=3)
