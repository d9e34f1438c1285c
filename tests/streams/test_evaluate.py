"""Streams are evaluated as all their rows at once would be, by group too, in memory that does not grow."""

import json
import pickle
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from calibrant import InputError, Predictions, evaluate
from calibrant.errors import FormatError
from calibrant.streams import StreamMeasures, evaluate_stream, open_stream
from calibrant.streams.measures import STREAMED

RANKED = {"ece_equal_mass", "aurc", "auroc_correct", "excess_aurc", "augrc"}


def draw(form, dtype, *, n=3000, k=7, seed=0):
    """Arrays by key, with ties, certain rows and probabilities of exactly zero among them."""
    rng = np.random.default_rng(seed)
    logits = (3 * rng.normal(size=(n, k))).astype(dtype)
    logits[:50] = 0
    logits[50:80, 2] = logits[50:80, 4] = 9
    probs = torch.softmax(torch.from_numpy(logits.astype(np.float64)), dim=1).numpy()
    labels = (probs.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    labels[60:70] = 4
    if form == "logits":
        return {"logits": logits, "labels": labels}
    if form == "probs":
        probs[100:140] = np.eye(k)[labels[100:140]]
        return {"probs": probs.astype(dtype), "labels": labels}
    return {"confidence": probs.max(axis=1).astype(dtype), "correct": probs.argmax(axis=1) == labels}


def to_table(arrays, rows=slice(None), *, spread=False, **others):
    columns = {}
    for key, array in arrays.items():
        part = np.ascontiguousarray(array[rows])
        if part.ndim == 1:
            columns[key] = pa.array(part)
        elif spread:
            columns |= {
                f"{key}_{c}": pa.array(np.ascontiguousarray(part[:, c])) for c in range(part.shape[1])
            }
        else:
            columns[key] = pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), part.shape[1])
    return pa.table(columns | {key: pa.array(value[rows]) for key, value in others.items()})


def write(folder, arrays, *, cuts=(0, 700, 701, 3000), row_group=333, **options):
    """Write files of uneven length, in row groups that do not divide them."""
    folder.mkdir(exist_ok=True)
    for number, (start, end) in enumerate(pairwise(cuts)):
        table = to_table(arrays, slice(start, end), **options)
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=row_group)
    return folder


def assert_equals_evaluate(result, arrays):
    """Compare with the measures of all rows at once: exact ones to 1e-12, others by their bounds."""
    truth = evaluate(Predictions(**arrays), measures=sorted(STREAMED))
    expected = dict(truth.metrics)
    assert (result.n, result.k) == (truth.n, truth.k)
    assert set(result.metrics) == set(expected)
    assert set(result.bounds) == RANKED
    for name in set(expected) - RANKED:
        assert result.metrics[name] == pytest.approx(expected[name], rel=1e-12, abs=1e-12), name
    for name in RANKED:
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


def test_an_impossible_event_has_an_infinite_surprise_and_no_warning():
    measures = StreamMeasures()
    measures.update(Predictions(probs=[[1.0, 0.0], [0.5, 0.5]], labels=[1, 0]))
    assert measures.compute().metrics["nll"] == np.inf


@pytest.mark.parametrize("form", ["logits", "probs", "confidence"])
def test_groups_equal_separate_evaluations(tmp_path, form, monkeypatch):
    monkeypatch.setattr("calibrant.streams.groups._ENTRIES", 4096)  # several rounds of gathering
    arrays = draw(form, np.float32)
    version = np.array(["v1", "v2", "v2", "v3"])[np.random.default_rng(1).integers(0, 4, 3000)]
    folder = write(tmp_path / "x", arrays, version=version)
    result = evaluate_stream(open_stream(folder), by="version")
    assert list(result.groups) == ["v1", "v2", "v3"]
    for name, group in result.groups.items():
        assert_equals_evaluate(group, {key: array[version == name] for key, array in arrays.items()})
    assert_equals_evaluate(result, arrays)


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
    for text in ("{}", "[1]", "nonsense", '{"outcomes": 3}'):
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


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is told by Linux")
def test_memory_does_not_grow_with_the_number_of_files(tmp_path):
    arrays = draw("probs", np.float32, n=100_000, k=50)
    folders = {"few": 3, "many": 30}
    for name, count in folders.items():
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
        "n = evaluate_stream(open_stream(sys.argv[1])).n\n"
        "lines = Path('/proc/self/status').read_text().splitlines()\n"
        "print(n, *(int(line.split()[1]) // 1024 for line in lines if line.startswith('VmHWM')))\n"
    )
    peaks = {}
    for name, count in folders.items():
        command = [sys.executable, "-c", code, tmp_path / name]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        n, peaks[name] = map(int, run.stdout.split())
        assert n == count * 100_000
    # The other 27 files hold 540 MB of probabilities.
    assert peaks["many"] - peaks["few"] < 100
