"""Streams are evaluated as all their rows at once would be, by group too, in memory that does not grow."""

import dataclasses
import json
import pickle
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from calibrant import InputError, Predictions, evaluate
from calibrant.errors import FormatError
from calibrant.evaluation import by_group
from calibrant.metrics.accuracy import top_k_error, top_k_misses
from calibrant.metrics.binned import expected_calibration_error
from calibrant.metrics.classwise import class_bins
from calibrant.metrics.measure import Measure
from calibrant.metrics.names import MEASURES
from calibrant.metrics.proper import log_losses, negative_log_likelihood
from calibrant.streams import StreamMeasures, evaluate_stream, open_stream
from calibrant.streams.evaluate import stream_group_tests
from calibrant.streams.measures import streamed_measures
from tests.streams.stream_folders import draw, to_table, write

RANKED = {"ece_equal_mass", "aurc", "auroc_correct", "excess_aurc", "augrc", "two_bin"}


def squared_gaps(confidence, correct):
    return (confidence - correct.double()) ** 2


def squared_gap(confidence, correct):
    return float(squared_gaps(confidence, correct).mean())


def half_ece(**arguments):
    return expected_calibration_error(**arguments) / 2


def largest_class_ece(probs, labels, n_bins):
    return float(class_bins(probs, labels, n_bins=n_bins).expected_gap().amax())


def assert_equals_evaluate(result, arrays, *, ranked=RANKED):
    """Compare with the measures of all rows at once: exact ones to 1e-12, others by their bounds."""
    truth = evaluate(Predictions(**arrays), measures=streamed_measures())
    expected = dict(truth.metrics)
    assert (result.n, result.k) == (truth.n, truth.k)
    assert set(result.metrics) == set(expected)
    assert set(result.bounds) == ranked
    for name in set(expected) - ranked:
        assert result.metrics[name] == pytest.approx(expected[name], rel=1e-12, abs=1e-12), name
    for name in ranked:
        bound = result.bounds[name]
        assert bound.low - 1e-12 <= expected[name] <= bound.high + 1e-12, name
        assert bound.high - bound.low < 0.05, name
        assert bound.value == result.metrics[name]
    np.testing.assert_array_equal(result.bins.count, truth.bins.count)
    np.testing.assert_array_equal(result.bins.correct_sum, truth.bins.correct_sum)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("form", ["logits", "probs", "confidence"])
def test_a_folder_equals_all_rows_at_once(tmp_path, form, dtype):
    arrays = draw(form, dtype)
    assert_equals_evaluate(evaluate_stream(open_stream(write(tmp_path / "x", arrays))), arrays)


@pytest.mark.parametrize("form", ["logits", "probs"])
def test_one_column_per_class_equals_all_rows_at_once(tmp_path, form):
    arrays = draw(form, np.float32)
    assert_equals_evaluate(evaluate_stream(open_stream(write(tmp_path / "x", arrays, spread=True))), arrays)


@pytest.mark.parametrize("k", [2, 5, 6, 40])
def test_any_number_of_classes_equals_all_rows_at_once(tmp_path, k):
    arrays = draw("probs", np.float32, k=max(k, 5))
    if k == 2:
        two = arrays["probs"][:, :2] + np.float32(1e-3)
        arrays = {"probs": two / two.sum(axis=1, keepdims=True), "labels": arrays["labels"] % 2}
    assert_equals_evaluate(evaluate_stream(open_stream(write(tmp_path / "x", arrays))), arrays)


def test_a_binary_problem_may_be_a_vector(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"probs": rng.random(3000), "labels": rng.integers(0, 2, 3000)}
    assert_equals_evaluate(evaluate_stream(open_stream(write(tmp_path / "x", arrays))), arrays)


@pytest.mark.parametrize("form", ["logits", "probs", "confidence"])
@pytest.mark.parametrize("cuts", [(0, 3000), (0, 1, 2, 1999, 3000)])
def test_it_does_not_matter_how_rows_are_batched(form, cuts):
    arrays = draw(form, np.float32)
    parts = [
        Predictions(**{key: array[start:end] for key, array in arrays.items()})
        for start, end in pairwise(cuts)
    ]
    whole = StreamMeasures()
    for part in parts:
        whole.update(part)
    assert_equals_evaluate(whole.compute(), arrays)


def test_a_state_is_read_before_it_is_merged():
    measures = StreamMeasures()
    with pytest.raises(InputError, match="merge: expected StreamMeasures, got str; read a state with"):
        measures.merge(measures.state())


def test_several_blocks_of_a_batch_equal_one(monkeypatch):
    arrays = draw("probs", np.float64)
    monkeypatch.setattr("calibrant.streams.sums._BLOCK", 7 * 100)
    measures = StreamMeasures()
    measures.update(Predictions(**arrays))
    assert_equals_evaluate(measures.compute(), arrays)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_probabilities_rounded_above_one_belong_to_the_last_bin(dtype):
    arrays = draw("probs", dtype)
    arrays["probs"][200:260] = np.eye(7)[arrays["labels"][200:260]] * 1.0005
    measures = StreamMeasures()
    measures.update(Predictions(**arrays))
    assert_equals_evaluate(measures.compute(), arrays)


def test_what_happens_to_a_batch_afterwards_changes_nothing():
    arrays = draw("confidence", np.float32)
    expected = {key: array.copy() for key, array in arrays.items()}
    measures = StreamMeasures()
    measures.update(Predictions(**arrays))
    arrays["confidence"][:] = 0.5
    arrays["correct"][:] = False
    assert_equals_evaluate(measures.compute(), expected)


@pytest.mark.parametrize("form", ["logits", "probs", "confidence"])
def test_groups_equal_separate_evaluations(tmp_path, form, monkeypatch):
    for module in ("files", "evaluate"):  # several rounds of gathering
        monkeypatch.setattr(f"calibrant.streams.{module}.ENTRIES", 4096)
    arrays = draw(form, np.float32)
    version = np.array(["v1", "v2", "v2", "v3"])[np.random.default_rng(1).integers(0, 4, 3000)]
    folder = write(tmp_path / "x", arrays, version=version)
    result = evaluate_stream(open_stream(folder), by="version")
    assert list(result.groups) == ["v1", "v2", "v3"]
    for name, group in result.groups.items():
        assert_equals_evaluate(group, {key: array[version == name] for key, array in arrays.items()})
    assert_equals_evaluate(result, arrays)


def test_groups_of_a_stream_are_tested_at_the_edges_of_bins(tmp_path):
    rng = np.random.default_rng(7)
    power = np.repeat([1.0, 4.0, 1.3], [1500, 700, 800])
    arrays = {"confidence": rng.random(3000)}
    arrays["correct"] = rng.random(3000) < arrays["confidence"] ** power
    names = np.repeat(["fair", "bold", "a bit bold"], [1500, 700, 800])
    result = evaluate_stream(open_stream(write(tmp_path / "x", arrays, subject=names)), by="subject")
    tests = stream_group_tests(result)
    table = by_group(Predictions(**arrays, groups=names))
    assert list(tests) == [row.name for row in table.rows] == ["bold", "a bit bold", "fair"]
    for row in table.rows:
        found = tests[row.name]
        assert (found.n, found.gap, found.gap_low) == pytest.approx((row.n, row.gap, row.gap_low))
        assert 0.6 * row.statistic < found.statistic < row.statistic
        assert (found.p_corrected <= 0.05) == (row.p_corrected <= 0.05)


def test_folders_named_by_key_and_value_are_groups(tmp_path):
    arrays = draw("probs", np.float32)
    for day, rows in (("day=1", slice(0, 1000)), ("day=2", slice(1000, 3000))):
        (tmp_path / day).mkdir()
        pq.write_table(to_table(arrays, rows), tmp_path / day / "part.parquet")
    result = evaluate_stream(open_stream(tmp_path, columns_by="day"))
    assert {name: group.n for name, group in result.groups.items()} == {"1": 1000, "2": 2000}
    assert_equals_evaluate(result.groups["2"], {key: array[1000:] for key, array in arrays.items()})


def test_too_many_groups_are_refused_with_one_of_them(tmp_path):
    arrays = draw("confidence", np.float32)
    folder = write(tmp_path / "x", arrays, id=np.arange(3000))
    with pytest.raises(InputError, match=r"^id: expected at most 20 groups, got more, such as '20'"):
        evaluate_stream(open_stream(folder), by="id", most_groups=20)


def test_bad_parts_are_refused_or_left_out_and_told(tmp_path):
    arrays = draw("probs", np.float32)
    good = write(tmp_path / "x", arrays)
    spoilt = {**arrays, "probs": arrays["probs"].copy()}
    spoilt["probs"][500] = np.nan
    pq.write_table(to_table(spoilt, slice(0, 900)), good / "9.parquet", row_group_size=300)
    with pytest.raises(InputError, match=r"^9\.parquet, row group 1: probs: .* nan in row 500"):
        evaluate_stream(open_stream(good))
    result = evaluate_stream(open_stream(good), skip_bad=True)
    assert [(left.file, left.row_group, left.rows) for left in result.left_out] == [("9.parquet", 1, 300)]
    kept = np.r_[0:3000, 0:300, 600:900]
    assert_equals_evaluate(result, {key: array[kept] for key, array in arrays.items()})


def test_a_file_that_is_gone_after_its_footer_was_read_is_left_out_once(tmp_path, monkeypatch):
    arrays = draw("probs", np.float32)
    folder = write(tmp_path / "x", arrays)
    stream = open_stream(folder)
    layouts = stream.layouts()
    monkeypatch.setattr(type(stream), "layouts", lambda *_, **__: layouts)
    (folder / "2.parquet").unlink()
    result = evaluate_stream(stream, skip_bad=True)
    assert result.n == 701
    assert [(left.file, left.row_group, left.rows) for left in result.left_out] == [("2.parquet", None, 2299)]


def test_a_stream_of_nothing_but_bad_files_is_refused(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(FormatError, match="expected at least two rows, got 0 with 1 files"):
        evaluate_stream(open_stream(tmp_path), skip_bad=True)


def test_progress_tells_file_rows_and_total(tmp_path):
    told = []
    folder = write(tmp_path / "x", draw("probs", np.float32))
    evaluate_stream(open_stream(folder), progress=lambda *what: told.append(what))
    assert told[0] == ("0.parquet", 333, 3000)
    assert told[-1] == ("2.parquet", 3000, 3000)


@pytest.mark.parametrize("form", ["probs", "confidence"])
def test_bundles_travel_as_text_or_pickle_and_merge_to_the_whole(form):
    arrays = draw(form, np.float32)
    whole = StreamMeasures(n_bins=15)
    for rows, travel in (
        (slice(0, 1100), lambda bundle: StreamMeasures.from_state(bundle.state())),
        (slice(1100, 3000), lambda bundle: pickle.loads(pickle.dumps(bundle))),
        (slice(0, 0), lambda bundle: bundle),
    ):
        part = StreamMeasures(n_bins=15)
        if rows.stop:
            part.update(Predictions(**{key: array[rows] for key, array in arrays.items()}))
        whole.merge(travel(part))
    assert_equals_evaluate(whole.compute(), arrays)


def test_a_state_is_strict_json_and_something_else_is_refused():
    bundle = StreamMeasures()
    json.loads(bundle.state(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    for text in (
        "{}",
        "[1]",
        "nonsense",
        '{"outcomes": 3}',
        "[" * 10**5,
        '{"outcomes": {"n_bins": {"data": "?"}}}',
    ):
        with pytest.raises(InputError, match="^state: expected that of StreamMeasures"):
            StreamMeasures.from_state(text)


def test_bundles_of_different_classes_or_settings_do_not_merge():
    three, pairs = StreamMeasures(), StreamMeasures()
    three.update(Predictions(probs=[[0.5, 0.3, 0.2]], labels=[0]))
    pairs.update(Predictions(confidence=[0.5], correct=[True]))
    with pytest.raises(InputError, match="expected 3 classes as before, got pairs"):
        three.merge(pairs)
    other = StreamMeasures(n_bins=3)
    other.update(Predictions(confidence=[0.5], correct=[True]))
    with pytest.raises(InputError, match="n_bins=15"):
        pairs.merge(other)
    assert pairs.n == 1


@pytest.mark.parametrize("form", ["logits", "probs", "confidence"])
def test_measures_added_to_the_catalogue_are_streamed(form, monkeypatch):
    added = {
        "top_2_error": Measure(top_k_error, "top-2", "top-2", "probs", options={"k": 2}, terms=top_k_misses),
        "nll_of_probs": Measure(
            negative_log_likelihood, "NLL of probabilities", "NLL", "probs", terms=log_losses
        ),
        "brier_of_outcomes": Measure(squared_gap, "squared gap", "gap", terms=squared_gaps),
        "half_ece": Measure(
            half_ece, "half of the ECE", "half", takes_bins=True, of_bins=lambda b: b.expected_gap() / 2
        ),
        "largest_class_ece": Measure(
            largest_class_ece,
            "largest classwise ECE",
            "largest",
            "probs",
            takes_bins=True,
            of_class_bins=lambda b: b.expected_gap().amax(),
        ),
    }
    for name, measure in added.items():
        monkeypatch.setitem(MEASURES, name, measure)
    monkeypatch.setitem(MEASURES, "risk", dataclasses.replace(MEASURES["aurc"], title="risk"))
    assert {*added, "risk"} <= set(streamed_measures())
    arrays = draw(form, np.float64)
    whole = StreamMeasures()
    for rows in (slice(0, 1000), slice(1000, 3000)):
        part = StreamMeasures()
        part.update(Predictions(**{key: array[rows] for key, array in arrays.items()}))
        whole.merge(StreamMeasures.from_state(part.state()))
    result = whole.compute()
    assert result.bounds["risk"] == result.bounds["aurc"]
    assert_equals_evaluate(result, arrays, ranked={*RANKED, "risk"})


def test_measures_of_different_catalogues_do_not_merge(monkeypatch):
    ours = StreamMeasures()
    monkeypatch.setitem(MEASURES, "gap", Measure(squared_gap, "squared gap", "gap", terms=squared_gaps))
    theirs = StreamMeasures()
    theirs.update(Predictions(confidence=[0.5], correct=[True]))
    with pytest.raises(InputError, match="^merge: expected the same measures, got some .* in mean_gap; add"):
        ours.merge(theirs)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is told by Linux")
@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_files(tmp_path):
    arrays = draw("probs", np.float32, n=100_000, k=50)
    counts = {"few": 3, "many": 15}
    for name, count in counts.items():
        (tmp_path / name).mkdir()
        first = tmp_path / name / "0.parquet"
        pq.write_table(to_table(arrays), first, row_group_size=25_000)
        for number in range(1, count):
            first.with_name(f"{number}.parquet").hardlink_to(first)
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from calibrant.streams import open_stream\n"
        "from calibrant.streams import evaluate_stream\n"
        "for name in ('few', 'many'):\n"
        "    n = evaluate_stream(open_stream(f'{sys.argv[1]}/{name}')).n\n"
        "    lines = Path('/proc/self/status').read_text().splitlines()\n"
        "    print(n, *(int(line.split()[1]) // 1024 for line in lines if line.startswith('VmHWM')))\n"
    )
    run = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    (n_few, peak), (n_many, later_peak) = (map(int, line.split()) for line in run.stdout.splitlines())
    assert (n_few, n_many) == (300_000, 1_500_000)
    # The other 12 files hold 240 MB of probabilities.
    assert later_peak - peak < 100
