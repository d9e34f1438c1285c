"""Streams whose rows depend on each other: intervals and tests are those of units, wherever rows are."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.errors import FormatError, InputError
from calibrant.inference import with_interval
from calibrant.metrics.names import MEASURES
from calibrant.streams import StreamMeasures, evaluate_stream, open_stream
from calibrant.streams.evaluate import stream_group_tests
from calibrant.streams.sums import CheckedBatch
from calibrant.streams.unit_sums import UnitAccumulator, mixed
from tests.streams.stream_folders import write

CORRELATION = 0.8


def draw(n_units, *, seed, size=6, k=4, sharpen=1.3):
    """Units of 1 to 2 * size - 1 rows with similar scores and, more often than by chance, equal labels."""
    rng = np.random.default_rng(seed)
    unit = np.repeat(np.arange(n_units), rng.integers(1, 2 * size, n_units) if size > 1 else 1)
    logits = 2 * rng.normal(size=(n_units, k))[unit] + 0.3 * rng.normal(size=(len(unit), k))
    probs = torch.softmax(torch.from_numpy(logits), dim=1).numpy()
    alike = rng.random(len(unit)) < math.sqrt(CORRELATION)
    drawn = np.where(alike, rng.random(n_units)[unit], rng.random(len(unit)))
    labels = (probs.cumsum(axis=1) < drawn[:, None]).sum(axis=1).clip(max=k - 1)
    return {"logits": sharpen * logits, "labels": labels, "units": unit}


def measured(rows, *, parts=1, seed=0, **options):
    """Measures of rows that come in any order, in some parts that are merged."""
    order = np.random.default_rng(seed).permutation(len(rows["labels"]))
    whole = StreamMeasures(**options)
    for part in np.array_split(order, parts):
        own = StreamMeasures(**options)
        for batch in np.array_split(part, 3):
            own.update(Predictions(**{name: values[batch] for name, values in rows.items()}))
        if parts == 1:
            return own
        whole.merge(StreamMeasures.from_state(own.state()))
    return whole


@pytest.fixture(scope="module")
def rows():
    return draw(3000, seed=1)


@pytest.fixture(scope="module")
def result(rows):
    return measured(rows).compute(intervals=True)


def test_units_change_no_measure(rows, result):
    without = measured({name: rows[name] for name in ("logits", "labels")}).compute()
    assert dict(result.metrics) == pytest.approx(dict(without.metrics), rel=1e-12)
    assert (result.n, result.n_units, without.n_units) == (len(rows["units"]), 3000, None)
    assert "intervals" not in without.to_dict()


@pytest.mark.parametrize(
    "name", ["accuracy", "nll", "brier", "ece", "ece_equal_mass", "auroc_correct", "aurc"]
)
def test_intervals_are_those_of_units_that_are_drawn_again(rows, result, name):
    measure, predictions = MEASURES[name], Predictions(**rows)
    outcomes = predictions.outcomes()
    given = {"confidence": outcomes.confidence, "correct": outcomes.correct}
    if measure.reads != "outcomes":
        given = {"probs": predictions.to_probs(), "labels": predictions.labels}
    options = {**given, **measure.arguments(15), "n_resamples": 300}
    expected = with_interval(measure.function, **options, units=predictions.units)
    found = result.intervals[name]
    assert found.value == pytest.approx(expected.value, abs=1e-4)
    assert found.standard_error == pytest.approx(expected.standard_error, rel=0.15)
    assert (found.low, found.high) == pytest.approx(
        (expected.low, expected.high), abs=0.6 * found.standard_error
    )
    by_row = with_interval(measure.function, **options)
    assert by_row.standard_error < 0.75 * found.standard_error


def test_neither_order_nor_parts_of_the_rows_matter(rows, result):
    again = measured(rows, parts=4, seed=7).compute(intervals=True)
    assert again.n_units == 3000
    assert again.intervals.keys() == result.intervals.keys()
    for name, interval in result.intervals.items():
        assert dataclasses.astuple(again.intervals[name]) == pytest.approx(
            dataclasses.astuple(interval), rel=1e-9, abs=1e-12
        )


def test_only_the_classwise_error_has_no_interval(result):
    assert result.metrics.keys() - result.intervals.keys() == {"classwise_ece"}
    table = str(result.to_table())
    assert f"{result.n:,} predictions of 3,000 units, 4 classes" in table
    assert "no interval: classwise_ece; for these, load a file with a sample of the units" in table
    answer = result.to_dict()
    assert answer["n_units"] == 3000
    assert answer["intervals"]["ece"] == [result.intervals["ece"].low, result.intervals["ece"].high]


def test_the_interval_of_a_calibrated_model_begins_at_zero():
    found = measured(draw(1500, seed=3, sharpen=1.0)).compute(intervals=True)
    assert found.intervals["ece"].low == found.intervals["ece_equal_mass"].low == 0
    assert measured(draw(1500, seed=3, sharpen=3.0)).compute(intervals=True).intervals["ece"].low > 0.05


def test_weights_count_rows_within_units(rows):
    weights = np.random.default_rng(5).gamma(1.0, size=len(rows["labels"]))
    found = measured({**rows, "weights": weights}).compute(intervals=True)
    predictions = Predictions(**rows, weights=weights)
    expected = with_interval(
        MEASURES["brier"].function,
        predictions.to_probs(),
        predictions.labels,
        weights=weights,
        units=predictions.units,
        n_resamples=300,
    )
    assert found.intervals["brier"].value == pytest.approx(expected.value)
    assert found.intervals["brier"].standard_error == pytest.approx(expected.standard_error, rel=0.15)
    assert "aurc" not in found.intervals


def test_a_confidence_has_intervals_too(rows):
    outcomes = Predictions(**rows).outcomes()
    pairs = StreamMeasures()
    pairs.update(Predictions(confidence=outcomes.confidence, correct=outcomes.correct, units=rows["units"]))
    assert pairs.compute(intervals=True).intervals["accuracy"].low < outcomes.correct.double().mean()


def test_rows_without_units_and_a_single_unit_have_no_intervals(rows):
    without = measured({name: rows[name] for name in ("logits", "labels")})
    with pytest.raises(InputError, match="^intervals: expected units in a stream, got none; name the column"):
        without.compute(intervals=True)
    with pytest.raises(InputError, match="^units: expected at least two different ones, got 1"):
        measured({**rows, "units": np.zeros_like(rows["units"])}).compute(intervals=True)


def test_rows_with_and_without_units_are_measured_apart(rows):
    some, others = measured(rows), measured({name: rows[name] for name in ("logits", "labels")})
    with pytest.raises(
        InputError, match="^predictions: expected units as before, got none; measure them apart"
    ):
        some.merge(others)
    with pytest.raises(InputError, match="^predictions: expected no units as before, got some"):
        others.update(Predictions(**rows))


def test_many_units_are_estimated():
    accumulator = UnitAccumulator(n_bins=5, buckets=64, resolution=0, most_units=4096, terms="accuracy")
    rng = np.random.default_rng(0)
    for n_units, expected in ((4000, 4000), (200_000, pytest.approx(200_000, rel=0.05))):
        for half in np.array_split(rng.permutation(np.repeat(np.arange(n_units), 2)), 2):
            confidence, units = torch.full((len(half),), 0.5), torch.from_numpy(half)
            accumulator.add(CheckedBatch("confidence", confidence, units % 2 == 0, 5, units=units))
        assert accumulator.n_units == expected
    assert not accumulator.compute().is_counted


def test_different_units_have_different_numbers():
    numbers = np.concatenate([np.arange(-50_000, 50_000), 2**62 + np.arange(50_000)])
    assert len(np.unique(mixed(numbers))) == len(numbers)
    spread = np.bincount((mixed(numbers) >> 58) + 32, minlength=64)
    assert spread.min() > 0.9 * len(numbers) / 64


@pytest.mark.slow
def test_calibrated_groups_are_rarely_found_by_unit_and_often_by_row(tmp_path):
    """Answers to about 60 questions in each of 100 groups."""
    rows, n = draw(6000, seed=11, size=5, sharpen=1.0), 100
    group = np.random.default_rng(2).integers(0, n, 6000)[rows["units"]]
    cuts = (0, 9000, 16_000, len(group))
    stream = write(tmp_path / "x", rows, cuts=cuts, row_group=10_000, subject=group)
    by_unit = stream_group_tests(evaluate_stream(open_stream(stream), by="subject"))
    tests = list(by_unit.values())
    assert sum(test.p_value < 0.05 for test in tests) <= n * 0.05 + 2 * math.sqrt(n * 0.05 * 0.95)
    assert sum(test.gap_low <= 0 <= test.gap_high for test in tests) >= n * 0.95 - 2 * math.sqrt(n * 0.0475)
    alone = {name: values for name, values in rows.items() if name != "units"}
    stream = write(tmp_path / "y", alone, cuts=cuts, row_group=10_000, subject=group)
    by_row = stream_group_tests(evaluate_stream(open_stream(stream), by="subject"))
    assert sum(test.p_value < 0.05 for test in by_row.values()) > n * 0.2


def test_a_miscalibrated_group_is_found_by_unit_and_few_units_are_not_tested(tmp_path):
    good, bad, few = draw(300, seed=21, sharpen=1.0), draw(300, seed=22, sharpen=4.0), draw(5, seed=23)
    rows = {
        name: np.concatenate(
            [part[name] + (1000 * i if name == "units" else 0) for i, part in enumerate((good, bad, few))]
        )
        for name in good
    }
    names = np.repeat(["good", "bad", "few"], [len(part["labels"]) for part in (good, bad, few)])
    stream = write(tmp_path / "x", rows, cuts=(0, 900, 2000, len(names)), subject=names)
    tests = stream_group_tests(evaluate_stream(open_stream(stream), by="subject"))
    assert list(tests) == ["bad", "good", "few"]
    assert tests["bad"].p_corrected < 0.05 < tests["good"].p_corrected
    assert tests["bad"].gap_low > 0
    assert math.isnan(tests["few"].p_value)


def test_units_of_one_row_give_the_tests_of_rows(tmp_path):
    rows = draw(3000, seed=31, size=1)
    group = np.random.default_rng(0).integers(0, 3, 3000)
    found = [
        stream_group_tests(
            evaluate_stream(open_stream(write(tmp_path / name, given, group=group)), by="group")
        )
        for name, given in (("x", rows), ("y", {key: rows[key] for key in ("logits", "labels")}))
    ]
    assert [dataclasses.astuple(test) for test in found[0].values()] == [
        dataclasses.astuple(test) for test in found[1].values()
    ]


@pytest.mark.parametrize(
    ("columns", "unit"),
    [
        (lambda unit: {"q": unit}, "q"),
        (lambda unit: {"q": np.char.add("question ", unit.astype(str))}, "q"),
        (lambda unit: {"year": unit // 100, "state": (unit % 100).astype(str)}, ("year", "state")),
    ],
    ids=["numbers", "text", "two columns"],
)
def test_units_are_read_from_any_columns_of_files_that_share_them(rows, result, tmp_path, columns, unit):
    order = np.random.default_rng(3).permutation(len(rows["labels"]))
    given = {name: rows[name][order] for name in ("logits", "labels")}
    folder = write(
        tmp_path / "x",
        given,
        cuts=(0, 7000, 12_000, len(order)),
        row_group=2500,
        **columns(rows["units"][order]),
    )
    found = evaluate_stream(open_stream(folder, columns_unit=unit), intervals=True)
    assert found.n_units == 3000
    for name in ("accuracy", "ece"):
        # Other numbers of units make other buckets.
        assert found.intervals[name].standard_error == pytest.approx(
            result.intervals[name].standard_error, rel=0.15
        )


def test_folders_may_be_units(rows, tmp_path):
    for day in range(4):
        part = {name: rows[name][day::4][:500] for name in ("logits", "labels")}
        (tmp_path / f"day={day}").mkdir()
        write(tmp_path / f"day={day}", part, cuts=(0, 500))
    assert evaluate_stream(open_stream(tmp_path, columns_unit="day")).n_units == 4


def test_units_that_are_missing_are_named(rows, tmp_path):
    given = {name: rows[name][:3000] for name in ("logits", "labels")}
    names = np.array([None if row == 800 else f"q{row}" for row in range(3000)], dtype=object)
    folder = write(tmp_path / "x", given, q=names)
    with pytest.raises(
        InputError, match=r"2\.parquet, row group 0: q: expected a name in every row, .* row 99"
    ):
        evaluate_stream(open_stream(folder, columns_unit="q"))
    with pytest.raises(
        FormatError, match=r"0\.parquet: expected a column 'question' to be units, got logits"
    ):
        evaluate_stream(open_stream(folder, columns_unit="question"))
