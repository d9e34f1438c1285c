"""Following streams: every row of every file is counted once, whatever happened between."""

import json
import subprocess
import sys
from dataclasses import asdict
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calibrant import FormatError, InputError, Predictions, load_predictions, save_predictions
from calibrant.monitoring import Monitoring, follow, gather
from tests.conftest import draw

WINDOW = 200


def rows(n, *, seed, sharpen=1.0, kind="logits"):
    logits, labels = draw(n, 4, seed=seed, sharpen=sharpen)
    logits = logits.astype(np.float32)
    if kind == "logits":
        return Predictions(logits=logits, labels=labels)
    outcomes = Predictions(logits=logits, labels=labels).outcomes()
    return Predictions(confidence=outcomes.confidence, correct=outcomes.correct)


def write(path, predictions, *, rows=slice(None), group=150, **options):
    """Write a Parquet file of small row groups."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if predictions.logits is None:
        columns = {"confidence": predictions.confidence.numpy(), "correct": predictions.correct.numpy()}
        columns = {name: column[rows] for name, column in columns.items()}
    else:
        logits = predictions.logits.numpy()
        flat = pa.FixedSizeListArray.from_arrays(pa.array(logits[rows].ravel()), logits.shape[1])
        columns = {"logits": flat, "labels": predictions.labels.numpy()[rows]}
    pq.write_table(pa.table(columns), path, row_group_size=group, **options)
    return path


@pytest.fixture(scope="module")
def reference():
    return rows(3000, seed=1)


@pytest.fixture
def monitoring(reference):
    return Monitoring(reference, window=WINDOW)


@pytest.fixture(scope="module")
def stream():
    """1,400 good rows, then 900 with logits three times as large."""
    good, bad = rows(1400, seed=2), rows(900, seed=3, sharpen=3.0)
    return Predictions(
        logits=np.concatenate([good.logits, bad.logits]), labels=np.concatenate([good.labels, bad.labels])
    )


def cut(stream, folder, cuts=(0, 430, 431, 1290, 2000, 2300)):
    """Write a stream as several files, whose names sort by time."""
    for number, (start, stop) in enumerate(pairwise(cuts)):
        write(folder / f"part-{number}.parquet", stream, rows=slice(start, stop))
    return folder


def follow_all(monitoring, source, **options):
    return [asdict(window) for step in follow(monitoring, source, **options) for window in step.windows]


def at_once(reference, stream):
    monitoring = Monitoring(reference, window=WINDOW)
    return monitoring, [asdict(window) for window in monitoring.update(stream)]


@pytest.fixture(scope="module")
def expected(reference, stream):
    return at_once(reference, stream)


def same_state(monitoring, other):
    """Whether two monitorings would go on alike, but for the files they remember."""
    assert monitoring.n == other.n
    assert (monitoring.alarm.row, monitoring.alarm.since) == (other.alarm.row, other.alarm.since)
    assert monitoring.monitor.state() == other.monitor.state()


# ---- what is read


@pytest.mark.parametrize("kind", ["folder", "pattern", "one file", "address"])
def test_windows_are_those_of_the_rows_however_they_are_spread_over_files(
    monitoring, stream, expected, kind, tmp_path
):
    cut(stream, tmp_path / "days")
    source = tmp_path / "days"
    if kind == "pattern":
        source = tmp_path / "*" / "part-?.parquet"
    elif kind == "one file":
        source = write(tmp_path / "all.parquet", stream)
    elif kind == "address":
        memory = pytest.importorskip("fsspec").filesystem("memory")
        for file in source.iterdir():
            memory.pipe(f"/calibrant-monitor/{file.name}", file.read_bytes())
        source = "memory://calibrant-monitor"
    try:
        assert follow_all(monitoring, source) == expected[1]
        assert follow_all(monitoring, source) == []
    finally:
        if kind == "address":
            memory.rm("/calibrant-monitor", recursive=True)
    same_state(monitoring, expected[0])


def test_pairs_and_files_without_rows_are_read_as_well(reference, tmp_path):
    pairs = rows(700, seed=4, kind="pairs")
    cut(pairs, tmp_path, (0, 300, 300, 700))
    monitoring = Monitoring(reference, window=WINDOW)
    assert follow_all(monitoring, tmp_path) == at_once(reference, pairs)[1]
    assert len(monitoring.files) == 3
    assert list(follow(monitoring, tmp_path)) == []


def test_a_folder_of_other_files_is_followed_as_well(monitoring, stream, expected, tmp_path):
    save_predictions(stream.take(np.arange(1000)), tmp_path / "a.npz")
    write(tmp_path / "b.parquet", stream.take(np.arange(1000, 1300)))
    (tmp_path / "notes.txt").write_text("not a prediction")
    windows = follow_all(monitoring, tmp_path)
    save_predictions(stream.take(np.arange(1300, 2300)), tmp_path / "c.safetensors")
    assert windows + follow_all(monitoring, tmp_path) == expected[1]
    same_state(monitoring, expected[0])


def test_overlapping_streams_count_each_file_once(monitoring, stream, expected, tmp_path, monkeypatch):
    cut(stream, tmp_path / "days")
    monkeypatch.chdir(tmp_path)
    assert follow_all(monitoring, "days") == expected[1]
    for again in (tmp_path / "days", "days/../days/", "days/*.parquet", tmp_path):
        assert follow_all(monitoring, again) == []


def test_the_outcomes_of_a_stream_are_those_of_one_file(reference, tmp_path):
    cut(reference, tmp_path / "days", (0, 999, 1000, 3000))
    gathered = gather(tmp_path / "days")
    assert gathered.logits is None
    assert Monitoring(gathered).reference_digest == Monitoring(reference).reference_digest


def test_a_reference_without_rows_is_refused(tmp_path):
    write(tmp_path / "a.parquet", rows(5, seed=5), rows=slice(0))
    with pytest.raises(FormatError, match="expected predictions, got files without rows"):
        gather(tmp_path)


# ---- stopping and going on


@pytest.mark.slow
def test_a_stop_after_any_step_loses_nothing_and_counts_nothing_twice(reference, stream, expected, tmp_path):
    days, state = cut(stream, tmp_path / "days"), tmp_path / "state.json"
    n_steps = len(list(follow(Monitoring(reference, window=WINDOW), days)))
    assert n_steps > 15
    for stop in range(1, n_steps):
        monitoring = Monitoring(reference, window=WINDOW)
        windows = []
        for number, step in enumerate(follow(monitoring, days), 1):
            windows += map(asdict, step.windows)
            if number == stop:
                monitoring.save(state)
                # What is read after the last save is lost with the process.
            elif number == stop + 1:
                windows = windows[: len(windows) - len(step.windows)]
                break
        later = Monitoring.load(state, reference)
        assert windows + follow_all(later, days) == expected[1]
        same_state(later, expected[0])


def test_new_files_are_read_and_old_ones_are_not_even_opened(monitoring, reference, stream, tmp_path):
    days = cut(stream, tmp_path / "days", (0, 500, 900))
    follow_all(monitoring, days)
    monitoring.save(tmp_path / "state.json")
    write(days / "part-7.parquet", stream.take(np.arange(900, 2300)))
    later = Monitoring.load(tmp_path / "state.json", reference)
    steps = list(follow(later, days))
    assert {step.file for step in steps} == {"part-7.parquet"}
    assert sum(step.rows for step in steps) == 1400
    assert later.n == 2300


def test_a_file_that_has_grown_is_read_on(monitoring, stream, expected, tmp_path):
    windows = []
    for size in (250, 1000, 1001, 2300):
        write(tmp_path / "log.parquet", stream.take(np.arange(size)), group=97 + size)
        windows += follow_all(monitoring, tmp_path)
        assert monitoring.n == size
    assert windows == expected[1]


def test_the_same_rows_written_again_are_not_counted_again(monitoring, stream, tmp_path):
    write(tmp_path / "a.parquet", stream)
    follow_all(monitoring, tmp_path)
    write(tmp_path / "a.parquet", stream, group=1000, compression="zstd")
    assert sum(step.rows for step in follow(monitoring, tmp_path)) == 0
    assert monitoring.n == 2300
    assert list(follow(monitoring, tmp_path)) == []


@pytest.mark.parametrize("n", [1000, 1500])
def test_other_rows_under_an_old_name_are_refused_however_often_one_tries(monitoring, n, tmp_path):
    old = rows(1500, seed=6)
    write(tmp_path / "a.parquet", old, rows=slice(1000))
    follow_all(monitoring, tmp_path)
    labels = old.labels.numpy().copy()
    said = old.logits[999].argmax().item()
    labels[999] = (said + 1) % 4 if labels[999] == said else said
    write(tmp_path / "a.parquet", Predictions(logits=old.logits, labels=labels), rows=slice(n))
    for _ in range(2):
        with pytest.raises(
            InputError,
            match=r"^a.parquet: expected the 1,000 rows of this file that were read before, got other rows;",
        ):
            follow_all(monitoring, tmp_path)
        assert monitoring.n == 1000


@pytest.mark.parametrize("suffix", [".parquet", ".npz"])
def test_a_file_that_has_shrunk_is_refused(monitoring, suffix, tmp_path):
    save_predictions(rows(1000, seed=7), tmp_path / f"a{suffix}")
    follow_all(monitoring, tmp_path)
    save_predictions(rows(1000, seed=7).take(np.arange(900)), tmp_path / f"a{suffix}")
    with pytest.raises(
        InputError, match=rf"^a{suffix}: expected the 1,000 rows .* only 900 rows; put the old"
    ):
        follow_all(monitoring, tmp_path)


def test_a_file_that_is_gone_before_it_was_read_to_its_end_is_refused(monitoring, stream, tmp_path):
    days = cut(stream, tmp_path / "days")
    for step in follow(monitoring, days):
        if step.file == "part-2.parquet":
            break
    (days / "part-2.parquet").unlink()
    with pytest.raises(
        InputError,
        match=r"part-2.parquet: expected this file, which was read up to row 150 of 859; it is missing",
    ):
        follow_all(monitoring, days)


def test_files_that_are_gone_after_they_were_read_are_told_once_and_stay_counted(
    monitoring, stream, expected, tmp_path
):
    days, told = cut(stream, tmp_path / "days", (0, 400, 900)), []
    windows = follow_all(monitoring, days, tell=told.append)
    assert told == []
    (days / "part-0.parquet").unlink()
    (days / "part-1.parquet").unlink()
    write(days / "part-2.parquet", stream.take(np.arange(900, 2300)))
    windows += follow_all(monitoring, days, tell=told.append)
    assert follow_all(monitoring, days, tell=told.append) == []
    (note,) = told
    assert note.startswith("2 of the files that were read are gone (part-0.parquet, part-1.parquet)")
    assert windows == expected[1]
    assert len(monitoring.files) == 1


def test_a_state_of_the_first_version_goes_on_and_remembers_files_from_then_on(
    monitoring, reference, stream, expected, tmp_path
):
    state, days = tmp_path / "state.json", tmp_path / "days"
    windows = [asdict(window) for window in monitoring.update(stream.take(np.arange(900)))]
    monitoring.save(state)
    old = json.loads(state.read_text()) | {"version": 1}
    del old["files"], old["digest"]
    state.write_text(json.dumps(old))
    later = Monitoring.load(state, reference)
    write(days / "rest.parquet", stream.take(np.arange(900, 2300)))
    assert windows + follow_all(later, days) == expected[1]
    assert follow_all(later, days) == []


# ---- what is bad


@pytest.fixture
def spoiled(stream):
    """The stream with a number that is none in row 1,250, which is row 819 of its third file."""
    logits = stream.logits.numpy().copy()
    logits[1250, 2] = np.nan
    return logits


def spoil(days, stream, logits):
    """Write the third file with these logits."""
    flat = pa.FixedSizeListArray.from_arrays(pa.array(logits[431:1290].ravel()), 4)
    table = pa.table({"logits": flat, "labels": stream.labels.numpy()[431:1290]})
    pq.write_table(table, days / "part-2.parquet", row_group_size=150)


def test_rows_before_a_bad_one_are_counted_and_the_repaired_file_is_read_on(
    monitoring, stream, spoiled, expected, tmp_path
):
    days = cut(stream, tmp_path / "days")
    spoil(days, stream, spoiled)
    windows = []
    for _ in range(2):
        with pytest.raises(InputError, match=r"^part-2.parquet, row group 5: logits: .* nan in row 819, col"):
            windows.extend(asdict(window) for step in follow(monitoring, days) for window in step.windows)
        assert monitoring.n == 431 + 5 * 150
    cut(stream, days)
    assert windows + follow_all(monitoring, days) == expected[1]
    same_state(monitoring, expected[0])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-50]), "part-2.parquet: expected a Parquet file"),
        (lambda path: write(path, rows(50, seed=8, kind="pairs")), "part-2.parquet: expected the columns"),
    ],
)
def test_files_before_a_bad_one_are_counted(monitoring, stream, damage, message, tmp_path):
    days = cut(stream, tmp_path / "days")
    damage(days / "part-2.parquet")
    with pytest.raises(FormatError, match=f"^{message}"):
        follow_all(monitoring, days)
    assert monitoring.n == 431


@pytest.mark.long
def test_memory_does_not_grow_with_the_number_of_files(tmp_path):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(10_000, 250)).astype(np.float32), rng.integers(0, 250, 10_000)
    some = Predictions(logits=logits, labels=labels)
    write(tmp_path / "0.parquet", some, group=2000)
    reference = tmp_path / "reference.npz"
    save_predictions(some.take(np.arange(5000)), reference)
    for number in range(1, 16):
        (tmp_path / f"{number}.parquet").write_bytes((tmp_path / "0.parquet").read_bytes())
    code = (
        "import resource, sys\n"
        "from calibrant import load_predictions\n"
        "from calibrant.monitoring import Monitoring, follow\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        "monitoring = Monitoring(load_predictions(sys.argv[1] + '/reference.npz'), window=50_000)\n"
        "for step in follow(monitoring, sys.argv[1] + '/0.parquet'): pass\n"
        "first = peak()\n"
        "for step in follow(monitoring, sys.argv[1] + '/*.parquet'): pass\n"
        "print(monitoring.n, peak() - first)\n"
    )
    run = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    n, growth = run.stdout.split()
    assert int(n) == 160_000
    # Fifteen more files hold 150 MB of logits.
    assert float(growth) < 40


def test_what_is_written_and_loaded_as_one_file_is_what_is_followed(monitoring, stream, expected, tmp_path):
    path = write(tmp_path / "all.parquet", stream)
    assert [asdict(window) for window in monitoring.update(load_predictions(path))] == expected[1]
