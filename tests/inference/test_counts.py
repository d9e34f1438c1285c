"""Measures as functions of counts: equal to the measure of rows that are repeated that often."""

from contextvars import copy_context

import numpy as np
import pytest
import torch

from calibrant.errors import InputError
from calibrant.inference import memory
from calibrant.inference.draws import CountResampler, RowResampler, resampler_of, weighted_of
from calibrant.inference.intervals import with_interval
from calibrant.inference.memory import remembering
from calibrant.inference.paired import paired_difference
from calibrant.inference.rows import apply_to, take_rows
from calibrant.inference.units import Units
from calibrant.metrics import (
    accuracy,
    aurc,
    expected_calibration_error,
    overconfidence,
    skce,
    static_calibration_error,
    sweep_calibration_error,
)
from calibrant.metrics.names import MEASURES, measure_of

pytestmark = pytest.mark.usefixtures("one_thread")

BY_SAMPLES = [
    name
    for name, measure in MEASURES.items()
    if (measure.weighted or measure.of_bins) and measure.max_samples is None
]


def drawn_counts(n, n_resamples, rng):
    """Return how often each of the samples is in each resample."""
    return Units.of(None, n).draw_counts(n_resamples, rng)


def predictions(n, k, *, seed=0, ties=False, dtype=np.float32):
    """Class probabilities of an overconfident model, and labels; classes 0 and 1 are rare."""
    rng = np.random.default_rng(seed)
    frequency = np.where(np.arange(k) < 2, 0.02, 1.0)
    labels = rng.choice(k, size=n, p=frequency / frequency.sum())
    logits = rng.normal(size=(n, k))
    logits[np.arange(n), labels] += 2.0
    logits = np.round(logits * (1 if ties else 3)) if ties else 3 * logits
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (probs / probs.sum(axis=1, keepdims=True)).astype(dtype), labels


def rows_of(measure, probs, labels):
    """Return what a measure reads."""
    if measure.reads != "outcomes":
        return {"probs": probs, "labels": labels}
    return {"confidence": probs.max(axis=1).clip(max=1), "correct": probs.argmax(axis=1) == labels}


def classes_for(measure, k):
    """Return the number of classes to measure with: k, or two if the measure is about two."""
    return min(k, measure.max_classes or k)


def close(name):
    """Return how exactly a measure is computed for resamples."""
    return 1e-5 if name == "smece" else 1e-9


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", BY_SAMPLES)
def test_counts_give_the_measure_of_repeated_rows(name, dtype, ties):
    measure = MEASURES[name]
    probs, labels = predictions(301, classes_for(measure, 7), ties=ties, dtype=dtype)
    rows, options = rows_of(measure, probs, labels), measure.arguments(15)
    rng = np.random.default_rng(1)
    few = np.zeros((2, 301), dtype=np.int64)
    few[:, :40] = rng.integers(3, size=(2, 40))
    counts = np.concatenate([drawn_counts(301, 3, rng), rng.integers(2, size=(2, 301)), few])
    found = weighted_of(measure_of(measure.function), rows, options).values(counts)
    repeated = [
        apply_to(measure.function, {key: np.repeat(of, row, axis=0) for key, of in rows.items()}, options)
        for row in counts
    ]
    assert found == pytest.approx(repeated, abs=close(name), nan_ok=True)


@pytest.mark.parametrize("n_bins", [1, 4, 40])
@pytest.mark.parametrize("name", [name for name in BY_SAMPLES if MEASURES[name].takes_bins])
def test_any_number_of_bins_can_be_counted(name, n_bins):
    measure = MEASURES[name]
    rows, options = rows_of(measure, *predictions(97, 5)), measure.arguments(n_bins)
    counts = drawn_counts(97, 4, np.random.default_rng(1))
    found = weighted_of(measure_of(measure.function), rows, options).values(counts)
    repeated = [
        apply_to(measure.function, {key: np.repeat(of, row, axis=0) for key, of in rows.items()}, options)
        for row in counts
    ]
    assert found == pytest.approx(repeated, abs=1e-9)


@pytest.mark.parametrize(
    "name", ["aurc", "classwise_ece_equal_mass", "brier_calibration", "auroc_ovo", "ece"]
)
def test_resamples_are_those_of_rows(name):
    measure = MEASURES[name]
    rows, options = rows_of(measure, *predictions(230, 4)), measure.arguments(15)
    resampling = {"n_resamples": 40, "seed": 3}
    ours = with_interval(measure.function, **rows, **options, **resampling)

    def same_measure(*probs_and_labels, **named):
        return measure.function(*probs_and_labels, **named)

    plain = with_interval(same_measure, **rows, **options, **resampling)
    for field in ("value", "standard_error", "n_undefined"):
        assert getattr(ours, field) == pytest.approx(getattr(plain, field), abs=1e-9)


@pytest.mark.parametrize("name", ["ece", "ece_equal_mass", "aurc", "classwise_ece", "auroc_ovr"])
def test_paired_differences_are_those_of_resampled_rows(name):
    measure = MEASURES[name]
    probs, labels = predictions(150, 4)
    sharper = probs**2 / (probs**2).sum(axis=1, keepdims=True)
    ours = paired_difference(measure.function, probs, sharper, labels, n_resamples=30)
    plain = paired_difference(lambda p, y: measure.function(p, y), probs, sharper, labels, n_resamples=30)
    assert (ours.difference, ours.standard_error) == pytest.approx(
        (plain.difference, plain.standard_error), abs=1e-9
    )


def test_every_interval_of_the_catalogue_comes_from_a_summary():
    for measure in MEASURES.values():
        if measure.max_samples is None:
            assert measure.terms or measure.of_bins or measure.weighted


@pytest.mark.parametrize(
    ("metric", "options"),
    [
        (overconfidence, {"definition": "conditional"}),
        (skce, {"estimator": "biased"}),
        (lambda p, y: accuracy(p, y), {}),
    ],
)
def test_what_has_no_counts_is_resampled_by_rows(metric, options):
    probs, labels = predictions(60, 3)
    assert weighted_of(measure_of(metric), {"probs": probs, "labels": labels}, options) is None
    found = with_interval(metric, probs, labels, **options, n_resamples=10)
    assert found.low < found.high


@pytest.mark.parametrize(
    ("metric", "options"),
    [
        (static_calibration_error, {}),
        (sweep_calibration_error, {"norm": "l2"}),
        (sweep_calibration_error, {"max_bins": 3}),
        (expected_calibration_error, {"binning": "mass", "n_bins": 7}),
    ],
)
def test_options_reach_the_counts(metric, options):
    probs, labels = predictions(80, 3)
    counts = drawn_counts(80, 2, np.random.default_rng(0))
    found = weighted_of(measure_of(metric), {"probs": probs, "labels": labels}, options).values(counts)
    repeated = [metric(probs.repeat(row, axis=0), labels.repeat(row), **options) for row in counts]
    assert found == pytest.approx(repeated, abs=1e-9)


def test_a_score_is_resampled_with_its_predictions():
    probs, labels = predictions(80, 3)
    rows, score = {"probs": probs, "labels": labels}, np.random.default_rng(0).normal(size=80)
    counts = drawn_counts(80, 2, np.random.default_rng(0))
    found = weighted_of(measure_of(aurc), rows, {"score": score}).values(counts)
    repeated = [
        aurc(probs.repeat(row, axis=0), labels.repeat(row), score=score.repeat(row)) for row in counts
    ]
    assert found == pytest.approx(repeated, abs=1e-9)


def test_counts_and_rows_have_the_same_draws():
    probs, labels = predictions(450, 3)
    rows = {"probs": torch.from_numpy(probs), "labels": torch.from_numpy(labels)}
    units, value = Units.of(None, 450), apply_to(aurc, rows, {})
    plain = RowResampler(value, lambda drawn: apply_to(aurc, take_rows(rows, drawn), {}), units)
    counted = CountResampler(value, weighted_of(measure_of(aurc), rows, {}), units)
    ours = counted.replicates(25, np.random.default_rng(2))
    assert ours == pytest.approx(plain.replicates(25, np.random.default_rng(2)), abs=1e-12)


OF_OUTCOMES = [
    name
    for name, measure in MEASURES.items()
    if measure.reads == "outcomes" and measure.max_samples is None and measure.terms is None
]


@pytest.mark.parametrize("units", [None, np.arange(500) // 3])
@pytest.mark.parametrize("name", OF_OUTCOMES)
def test_resamples_of_tied_confidences_measure_kinds_and_equal_those_of_rows(name, units):
    rng = np.random.default_rng(0)
    confidence = rng.choice([0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95], size=500)
    measure, drawn = MEASURES[name], Units.of(units, 500)
    rows = {"confidence": confidence, "correct": rng.random(500) < confidence}
    options = measure.arguments(15)
    resampler = resampler_of(measure.function, rows, options, drawn)
    assert isinstance(resampler, CountResampler)
    # Bins of equal width of units are summed once; all others see seven confidences, right or wrong.
    assert resampler.weighted.n <= 14 or (units is not None and measure.of_bins is not None)
    plain = RowResampler(
        0.0, lambda index: apply_to(measure.function, take_rows(rows, index), options), drawn
    ).replicates(12, np.random.default_rng(1))
    assert resampler.replicates(12, np.random.default_rng(1)) == pytest.approx(plain, abs=close(name))


@pytest.mark.parametrize("name", ["ece_sweep", "mmce", "smece", "aurc"])
def test_weighted_resamples_of_tied_confidences_equal_those_of_rows(name):
    rng = np.random.default_rng(0)
    rows = {
        "confidence": rng.choice([0.5, 0.7, 0.8, 0.95], size=300),
        "correct": rng.random(300) < 0.7,
        "weights": rng.random(300),
    }
    measure, units = MEASURES[name], Units.of(None, 300)
    if not measure.takes_weights:
        rows.pop("weights")
    found = resampler_of(measure.function, rows, {}, units).replicates(10, np.random.default_rng(1))
    plain = RowResampler(0.0, lambda index: apply_to(measure.function, take_rows(rows, index), {}), units)
    assert found == pytest.approx(plain.replicates(10, np.random.default_rng(1)), abs=close(name))


def test_measures_of_equally_many_rows_share_one_set_of_draws():
    probs, labels = predictions(400, 3)
    with remembering():
        for name in ("aurc", "accuracy", "classwise_ece_equal_mass", "ks"):
            measure = MEASURES[name]
            given = {**rows_of(measure, probs, labels), **measure.arguments(15), "n_resamples": 30}
            found = with_interval(measure.function, **given)
            assert found == copy_context().run(with_interval, measure.function, **given)
            assert sum(str(key).startswith("(('counts'") for key in memory._kept.get()) == 1


@pytest.mark.parametrize("name", [name for name, measure in MEASURES.items() if measure.smooth])
@pytest.mark.parametrize("slope", [1.0, 1.6])
def test_resamples_of_smooth_measures_need_few_points(name, slope):
    rng = np.random.default_rng(0)
    confidence = 0.5 + 0.5 * rng.random(6000)
    rows = {"confidence": confidence, "correct": rng.random(6000) < confidence**slope}
    measure, units = MEASURES[name], Units.of(None, 6000)
    few, all_rows = (resampler_of(measure.function, rows, {}, units, exact=exact) for exact in (False, True))
    assert isinstance(few, CountResampler)
    assert isinstance(all_rows, CountResampler)
    assert few.weighted.n <= 2 * 512 < all_rows.weighted.n
    ours, exact = (each.replicates(100, np.random.default_rng(1)) for each in (few, all_rows))
    hundredth = exact.std() / 100
    assert ours.mean() == pytest.approx(exact.mean(), abs=hundredth)
    assert ours.std() == pytest.approx(exact.std(), abs=hundredth)


def weighed(measure, probs, labels, weights):
    """Return a measure of weighted samples."""
    rows, options = rows_of(measure, probs, labels), measure.arguments(15)
    return measure.function(**rows, **options, weights=weights)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("name", [name for name, measure in MEASURES.items() if measure.takes_weights])
def test_a_weight_of_three_is_three_rows_and_only_ratios_matter(name, ties):
    measure = MEASURES[name]
    probs, labels = predictions(301, classes_for(measure, 7), ties=ties)
    times = np.random.default_rng(1).integers(4, size=301)  # some of them 0
    repeated = rows_of(measure, probs.repeat(times, axis=0), labels.repeat(times))
    expected = measure.function(**repeated, **measure.arguments(15))
    for factor in (1, 0.3, 1e6):
        assert weighed(measure, probs, labels, factor * times) == pytest.approx(expected, abs=1e-9)
    assert weighed(measure, probs, labels, np.full(301, 0.7)) == pytest.approx(
        measure.function(**rows_of(measure, probs, labels), **measure.arguments(15)), abs=1e-9
    )


@pytest.mark.parametrize("name", [name for name, measure in MEASURES.items() if not measure.takes_weights])
def test_what_depends_on_the_number_of_samples_refuses_weights(name):
    probs, labels = predictions(50, 7)
    with pytest.raises(InputError, match=r"^weights: expected none for .*; it needs whole samples"):
        weighed(MEASURES[name], probs, labels, np.arange(50))


@pytest.mark.parametrize("name", ["accuracy", "brier", "ece", "ece_equal_mass", "auroc_ovr", "smece"])
def test_resamples_keep_the_weights_of_their_rows(name):
    measure = MEASURES[name]
    probs, labels = predictions(120, 7)
    weights = np.random.default_rng(0).random(120)
    rows, options = rows_of(measure, probs, labels), measure.arguments(15)
    ours = with_interval(measure.function, **rows, **options, weights=weights, n_resamples=50)

    def same_measure(*probs_and_labels, **named):
        return measure.function(*probs_and_labels, **named)

    plain = with_interval(same_measure, **rows, **options, weights=weights, n_resamples=50)
    assert ours.value == pytest.approx(weighed(measure, probs, labels, weights), abs=1e-12)
    assert (ours.low, ours.high) == pytest.approx((plain.low, plain.high), abs=close(name))
    sharper = probs**2 / (probs**2).sum(axis=1, keepdims=True)
    if measure.reads == "probs":
        paired = paired_difference(measure.function, probs, sharper, labels, weights=weights, n_resamples=50)
        expected = ours.value - weighed(measure, sharper, labels, weights)
        assert paired.difference == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, -2.0, 3.0], r"^weights: expected numbers of at least 0, got -2 in row 1"),
        ([0.0, 0.0, 0.0], r"^weights: expected a weight above 0 for some sample"),
        ([1.0, np.nan, 1.0], r"^weights: expected finite numbers, got nan in row 1"),
        ([1.0, 1.0], r"^weights: expected 3 entries"),
    ],
)
def test_bad_weights_are_refused(weights, message):
    with pytest.raises(InputError, match=message):
        expected_calibration_error(confidence=[0.9, 0.8, 0.7], correct=[1, 1, 0], weights=weights)
