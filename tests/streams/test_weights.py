"""Weighted samples in streams: as all rows at once, and as rows that are repeated."""

import math

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from calibrant import InputError, Predictions, evaluate
from calibrant.evaluation import by_group
from calibrant.inference.calibration_test import cumulative_test
from calibrant.integrations.torchmetrics import CalibrationMetrics
from calibrant.metrics.cumulative import CumulativeDifference
from calibrant.metrics.names import MEASURES
from calibrant.monitoring import Monitoring
from calibrant.streams import (
    OutcomeAccumulator,
    RankSketch,
    StreamMeasures,
    evaluate_stream,
    open_stream,
    rewrite_stream,
)
from calibrant.streams.accumulators import ProperScoreAccumulator
from calibrant.streams.evaluate import stream_group_tests
from calibrant.streams.measures import streamed_measures
from tests.streams.stream_folders import draw, write

FORMS = ("logits", "probs", "confidence")
RANKED = {"ece_equal_mass", "two_bin", "auroc_correct", "augrc"}


def weighed(form, *, n=3000):
    """Arrays with weights of any size; those of a whole row group and of some other rows are 0."""
    rng = np.random.default_rng(3)
    weights = rng.gamma(0.5, size=n)
    weights[:333] = 0
    weights[rng.random(n) < 0.2] = 0
    return {**draw(form, np.float32, n=n), "weights": weights}


def rows_of(arrays, rows):
    return {key: np.asarray(array)[rows] for key, array in arrays.items()}


def measured(arrays, cuts=()):
    """The measures of all rows, read in batches that end at the cuts."""
    measures = StreamMeasures()
    for rows in np.split(np.arange(len(next(iter(arrays.values())))), cuts):
        if len(rows):
            measures.update(Predictions(**rows_of(arrays, rows)))
    return measures


def assert_equals_evaluate(result, arrays):
    truth = evaluate(Predictions(**arrays), measures=streamed_measures())
    assert (result.n, result.k) == (truth.n, truth.k)
    assert set(result.metrics) == set(truth.metrics)
    assert dict(result.skipped) == {name: truth.skipped[name] for name in ("aurc", "excess_aurc")}
    assert set(result.bounds) == RANKED
    assert result.n_effective == pytest.approx(truth.n_effective)
    for name in set(truth.metrics) - RANKED:
        assert result.metrics[name] == pytest.approx(truth.metrics[name], rel=1e-11, abs=1e-12), name
    for name in RANKED:
        bound = result.bounds[name]
        assert bound.low - 1e-11 <= truth.metrics[name] <= bound.high + 1e-11, name
        assert bound.high - bound.low < 0.05, name
    for part in ("count", "confidence_sum", "correct_sum"):
        torch.testing.assert_close(getattr(result.bins, part), getattr(truth.bins, part))


def assert_same(result, expected):
    """Compare what does not depend on the number of samples: the measures that take weights, and shares."""
    named = [name for name in expected.metrics if MEASURES[name].takes_weights]
    for name in named:
        assert result.metrics[name] == pytest.approx(expected.metrics[name], rel=1e-9, abs=1e-9), name
    torch.testing.assert_close(result.bins.weight, expected.bins.weight)


@pytest.mark.parametrize("form", FORMS)
def test_a_weighted_folder_equals_all_rows_at_once(tmp_path, form):
    arrays = weighed(form)
    version = np.array(["a", "b", "none"])[np.r_[np.full(333, 2), np.arange(2667) % 2]]
    folder = write(tmp_path / "x", arrays, version=version)
    whole = evaluate_stream(open_stream(folder))
    assert_equals_evaluate(whole, arrays)
    grouped = evaluate_stream(open_stream(folder), by="version")
    assert_equals_evaluate(grouped, arrays)
    assert list(grouped.groups) == ["a", "b"]
    for name, group in grouped.groups.items():
        assert_equals_evaluate(group, rows_of(arrays, version == name))
    tests = stream_group_tests(grouped)
    for row in by_group(Predictions(**arrays, groups=version)).rows:
        assert tests[row.name].gap == pytest.approx(row.gap)
        assert tests[row.name].gap_low == pytest.approx(row.gap_low)


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_repetitions_and_only_their_ratios_matter(form):
    arrays = draw(form, np.float64, n=400)
    rng = np.random.default_rng(0)
    times = rng.integers(0, 4, 400)
    repeated = measured({key: np.repeat(array, times, axis=0) for key, array in arrays.items()}).compute()
    for factor, cuts in ((1.0, ()), (1e-3, (1, 7, 7, 300)), (7e5, tuple(range(0, 400, 13)))):
        assert_same(measured({**arrays, "weights": factor * times}, cuts).compute(), repeated)
    absent = measured({**rows_of(arrays, times > 0), "weights": times[times > 0]}).compute()
    with_zeros = measured({**arrays, "weights": times}).compute()
    assert_same(with_zeros, absent)
    for one, other in zip(with_zeros.bounds.values(), absent.bounds.values(), strict=True):
        assert (one.low, one.high) == pytest.approx((other.low, other.high))


@pytest.mark.parametrize("form", FORMS)
def test_merged_saved_and_mixed_parts_equal_the_whole(form):
    arrays = weighed(form, n=900)
    arrays["weights"][600:] = 1.0
    whole = measured({key: array[:600] for key, array in arrays.items()}, (100, 350))
    plain = {key: array[600:] for key, array in arrays.items() if key != "weights"}
    whole = StreamMeasures.from_state(whole.state())
    whole.merge(measured(plain))
    assert_equals_evaluate(whole.compute(), arrays)
    # Batches with and without weights may wait for each other.
    together = measured({key: array[:600] for key, array in arrays.items()})
    together.update(Predictions(**plain))
    assert_same(together.compute(), whole.compute())


def test_the_bounds_of_weighted_ranks_hold():
    rng = np.random.default_rng(5)
    for resolution, n_bins in ((1, 3), (2, 15), (64, 7)):
        arrays = {
            "confidence": rng.choice([rng.random(), *rng.random(20)], 60),
            "correct": rng.random(60) < 0.6,
            "weights": rng.gamma(0.3, size=60) * (rng.random(60) < 0.8),
        }
        sketch = RankSketch(resolution=resolution)
        for rows in np.split(np.arange(60), (10, 40)):
            sketch.update(**rows_of(arrays, rows))
        found = sketch.compute(n_bins=n_bins)
        truth = evaluate(Predictions(**arrays), measures=sorted(RANKED), n_bins=n_bins).metrics
        for name in RANKED:
            bound = getattr(found, MEASURES[name].of_ranks)
            assert bound.low - 1e-9 <= truth[name] <= bound.high + 1e-9, name
        assert math.isnan(found.aurc.value)


def test_a_test_of_weighted_bins_keeps_its_level():
    p_values = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        confidence = rng.random(60)
        bins = OutcomeAccumulator()
        weights = np.exp(4 * confidence) * rng.gamma(1, size=60)
        bins.update(confidence=confidence, correct=rng.random(60) < confidence, weights=weights)
        cells = CumulativeDifference.from_bins(bins.compute(), bins.sizes)
        p_values.append(cumulative_test(cells, n_resamples=99, rng=rng).p_value)
    assert 0.05 < np.mean(np.array(p_values) <= 0.1) < 0.15


def test_a_metric_of_torchmetrics_collects_weights():
    arrays = {key: torch.as_tensor(array) for key, array in weighed("probs", n=900).items()}
    metric = CalibrationMetrics(reads="probs", n_classes=7, resolution=8192)
    for rows in torch.arange(900).split(97):
        metric(arrays["probs"][rows], arrays["labels"][rows], weights=arrays["weights"][rows])
    values = {name: float(value) for name, value in metric.compute().items()}
    truth = evaluate(Predictions(**arrays), measures=streamed_measures()).metrics
    exact = {name: value for name, value in truth.items() if name not in RANKED}
    assert {name: values[name] for name in exact} == pytest.approx(exact, abs=1e-11)
    for name in RANKED:
        assert values[f"{name}_low"] - 1e-11 <= truth[name] <= values[f"{name}_high"] + 1e-11
    assert math.isnan(values["aurc"])
    assert math.isnan(values["excess_aurc"])


def test_rewriting_keeps_weights(tmp_path):
    arrays = weighed("probs")
    seen = []

    def halved(predictions):
        seen.append(predictions.weights)
        return predictions.to_logits() / 2

    rewrite_stream(open_stream(write(tmp_path / "in", arrays)), halved, tmp_path / "out")
    written = pq.read_table(tmp_path / "out").column("weights").to_numpy()
    np.testing.assert_array_equal(written, arrays["weights"])
    np.testing.assert_array_equal(torch.cat(seen), arrays["weights"])


def test_bad_weights_are_one_sentence_and_monitoring_takes_none():
    pairs = {"confidence": [0.9, 0.8], "correct": [True, False]}
    for weights, match in (
        ([1.0, -1.0], "^weights: expected numbers of at least 0, got -1 in row 1"),
        ([1.0, math.nan], "^weights: expected finite"),
        ([1.0, 1e200], r"^weights: expected at most 1e\+100 in a stream, got 1e\+200; divide them"),
    ):
        with pytest.raises(InputError, match=match):
            measured({**pairs, "weights": weights})
    for weights, match in (
        ([0.0, 0.0], "^weights: expected a weight above 0 for some sample, got only zeros"),
        ([1e-200, 0.0], "^weights: expected a sum of at least 1e-100 in a stream, got 1e-200; divide them"),
    ):
        measures = measured({**pairs, "weights": weights})
        with pytest.raises(InputError, match=match):
            measures.compute()
    with pytest.raises(InputError, match="^weights: expected 2 entries"):
        ProperScoreAccumulator().update(**pairs, weights=[1.0])
    with pytest.raises(InputError, match="^weights: expected none for monitoring, got some"):
        Monitoring(Predictions(**pairs, weights=[1, 2]))
