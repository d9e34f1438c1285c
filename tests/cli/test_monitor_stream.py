"""``calibrant monitor`` on streams: what was read is shown and kept, and never counted twice."""

import errno
import json
import os
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calibrant import Predictions, save_predictions
from calibrant.cli import main
from calibrant.monitoring import Monitoring
from calibrant.monitoring.state import state_text
from tests.conftest import draw

pytestmark = pytest.mark.slow

BATCH = 125
OPTIONS = ("--window", 250)


def arrays(n, *, seed, sharpen=1.0):
    logits, labels = draw(n, 4, seed=seed, sharpen=sharpen)
    return logits.astype(np.float32), labels


def write(path, logits, labels):
    path.parent.mkdir(parents=True, exist_ok=True)
    flat = pa.FixedSizeListArray.from_arrays(pa.array(logits.ravel()), logits.shape[1])
    pq.write_table(pa.table({"logits": flat, "labels": labels}), path, row_group_size=BATCH)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def reference(folder):
    return write(folder / "reference.parquet", *arrays(4000, seed=400))


@pytest.fixture(scope="module")
def parts():
    """Six files: 1,700 good rows in four, then 1,300 with logits three times as large in two."""
    good, bad = arrays(1700, seed=401), arrays(1300, seed=402, sharpen=3.0)
    whole = [np.concatenate(pair) for pair in zip(good, bad, strict=True)]
    cuts = [0, 310, 900, 1400, 1700, 2050, 3000]
    return [tuple(each[a:b] for each in whole) for a, b in pairwise(cuts)]


@pytest.fixture
def days(parts, tmp_path):
    for number, part in enumerate(parts):
        write(tmp_path / "days" / f"day-{number}.parquet", *part)
    return tmp_path / "days"


@pytest.fixture(scope="module")
def whole(reference, parts, folder):
    """What one run over one file says, as JSON."""
    path = write(folder / "all.parquet", *(np.concatenate(each) for each in zip(*parts, strict=True)))
    command = ["calibrant", "monitor", reference, path, *OPTIONS, "--json"]
    out = StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out):
        patch.setattr(sys, "argv", list(map(str, command)))
        with pytest.raises(SystemExit) as stopped:
            main()
    assert stopped.value.code == 3
    return json.loads(out.getvalue())


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def ends_alike(answer, whole):
    names = ("n", "waiting", "log_e_value", "alarm_at", "since")
    return [answer[name] for name in names] == [whole[name] for name in names]


# ---- what is read


@pytest.mark.parametrize("source", ["days", "days/*.parquet", "days/../days/day-?.parquet"])
def test_a_folder_or_pattern_has_the_windows_of_one_file(
    run, reference, days, whole, source, monkeypatch, tmp_path
):
    monkeypatch.chdir(days.parent)
    code, out, err = run("monitor", reference, source, *OPTIONS, "--json", "--events", "alarms.jsonl")
    assert (code, err) == (3, "")
    answer = json.loads(out)
    assert answer["windows"] == whole["windows"]
    assert ends_alike(answer, whole)
    assert lines(tmp_path / "alarms.jsonl") == answer["events"]
    assert answer["events"][0]["file"] == "day-4.parquet"


def test_an_address_is_read(run, reference, days, whole):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    for file in days.iterdir():
        memory.pipe(f"/monitored/{file.name}", file.read_bytes())
    memory.pipe("/monitored-reference/a.parquet", reference.read_bytes())
    try:
        code, out, _ = run(
            "monitor", "memory://monitored-reference", "memory://monitored", *OPTIONS, "--json"
        )
    finally:
        memory.rm("/monitored", recursive=True)
        memory.rm("/monitored-reference", recursive=True)
    assert code == 3
    assert json.loads(out)["windows"] == whole["windows"]


def test_a_large_file_is_read_as_a_stream_and_not_counted_again(
    run, reference, whole, folder, tmp_path, monkeypatch
):
    monkeypatch.setattr("calibrant.streams.files._LARGE", 10_000)
    keep = ("--state", tmp_path / "state.json", "--json")
    first = json.loads(run("monitor", reference, folder / "all.parquet", *OPTIONS, *keep)[1])
    again = json.loads(run("monitor", reference, folder / "all.parquet", *keep)[1])
    assert first["windows"] == whole["windows"]
    assert (again["n"], again["windows"]) == (3000, [])


def test_a_reference_in_several_files_is_that_of_one(run, reference, days, tmp_path):
    logits, labels = arrays(4000, seed=400)
    for number, rows in enumerate((slice(0, 1500), slice(1500, 4000))):
        write(tmp_path / "reference" / f"{number}.parquet", logits[rows], labels[rows])
    state = ("--state", tmp_path / "state.json")
    assert run("monitor", tmp_path / "reference", days, *state)[0] == 3
    code, _, err = run("monitor", reference, days, *state)
    assert (code, err) == (3, "")


def test_new_files_of_a_folder_are_counted_and_old_ones_are_not(run, reference, parts, whole, tmp_path):
    days, keep = tmp_path / "days", ("--state", tmp_path / "state.json", "--json")
    windows = []
    for number, part in enumerate(parts):
        write(days / f"day-{number}.parquet", *part)
        for _ in range(2):
            answer = json.loads(run("monitor", reference, days, *OPTIONS, *keep)[1])
            windows += answer["windows"]
    assert windows == whole["windows"]
    assert ends_alike(answer, whole)


def test_files_that_are_gone_are_a_note_and_a_rest_that_is_gone_is_a_refusal(run, reference, days, tmp_path):
    state = tmp_path / "state.json"
    for day in (3, 4, 5):
        (days / f"day-{day}.parquet").unlink()
    run("monitor", reference, days, *OPTIONS, "--state", state)
    (days / "day-0.parquet").unlink()
    code, _, err = run("monitor", reference, days, "--state", state)
    assert code == 0
    assert err.startswith("calibrant: note: 1 of the files that were read are gone (day-0.parquet)")
    told = json.loads(state.read_text())
    name = str(days / "day-2.parquet")
    told["files"][name]["rows"] -= 100
    del told["digest"]
    state.write_text(state_text(told))
    Path(name).unlink()
    code, _, err = run("monitor", reference, days, "--state", state)
    assert code == 2
    assert "day-2.parquet: expected this file, which was read up to row 400 of 500; it is missing" in err
    assert err.count("\n") == 1


# ---- stopping and going on


@pytest.fixture
def keep_always(monkeypatch):
    """Save the state after every step."""
    monkeypatch.setattr("calibrant.monitoring.run._SAVE_SECONDS", 0.0)
    monkeypatch.setattr("calibrant.monitoring.run._SAVE_PART", 0)


def test_rows_wait_for_labels_that_come_in_later_runs(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    stated = rng.uniform(0.5, 1.0, 1500)
    hits = rng.random(1500) < stated
    save_predictions(Predictions(confidence=stated[:1000], correct=hits[:1000]), "before.csv")
    (tmp_path / "days").mkdir()
    (tmp_path / "labels").mkdir()
    for day, start in enumerate((1000, 1250)):
        rows = np.arange(start, start + 250)
        save_predictions(Predictions(confidence=stated[rows], ids=rows), tmp_path / f"days/{day}.parquet")
    command = ["monitor", "before.csv", "days", "--labels", "labels", "--id", "ids", "--state", "s.json"]

    def label(rows):
        text = "".join(f"{row},{hits[row]}\n" for row in rows)
        (tmp_path / "labels" / f"{rows[0]}.csv").write_text(f"ids,correct\n{text}")
        code, out, err = run(*command, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    found = label(range(1400, 1499))  # of the second day first
    assert (found["n"], found["labels"]["waiting_rows"]) == (99, 401)
    found = label(range(1000, 1390))
    assert (found["n"], found["labels"]["waiting_rows"]) == (489, 11)
    code, out, _ = run(*command, "--patience", "1d")
    assert "11 rows wait for their labels, the first of them since " in out
    code, _, err = run("monitor", "before.csv", "days", "--state", "s.json")
    assert (code, "--labels: expected them, as rows in s.json wait" in err) == (2, True)


# Forked after the imports, which take longer than the test; each child kills itself after some saves.
KILLED = """
import os, signal, sys
from calibrant import Predictions, save_predictions
from calibrant.cli import main
from calibrant.monitoring import Monitoring, run

run._SAVE_SECONDS = run._SAVE_PART = 0
save, saved = Monitoring.save, []

def save_or_die(self, path):
    save(self, path)
    saved.append(path)
    if len(saved) == kills:
        os.kill(os.getpid(), signal.SIGKILL)

Monitoring.save = save_or_die
place, *arguments = sys.argv[1:]
for kills in (1, 9):
    child = os.fork()
    if child == 0:
        os.chdir(os.path.join(place, str(kills)))
        sys.argv = ["calibrant", *arguments]
        os.dup2(os.open("shown.txt", os.O_CREAT | os.O_WRONLY), 1)
        main()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.fixture(scope="module")
def killed(reference, parts, tmp_path_factory):
    """Folders of runs that were killed after one save and after nine, with a file for each day of stream."""
    place = tmp_path_factory.mktemp("killed")
    for kills in (1, 9):
        for number, part in enumerate(parts):
            write(place / str(kills) / "days" / f"day-{number}.parquet", *part)
    command = ["monitor", reference, "days", *OPTIONS, "--state", "state.json", "--events", "alarms.jsonl"]
    ran = subprocess.run(
        [sys.executable, "-c", KILLED, place, *map(str, command)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert ran.stdout.split() == [str(-signal.SIGKILL)] * 2, ran.stderr
    return place


@pytest.mark.slow
@pytest.mark.parametrize("kills", ["1", "9"])
def test_a_killed_run_goes_on_where_it_was_and_has_shown_what_it_kept(
    run, reference, killed, whole, kills, monkeypatch
):
    monkeypatch.chdir(killed / kills)
    state, alarms = Path("state.json"), Path("alarms.jsonl")
    command = ["monitor", reference, "days", *OPTIONS, "--state", state, "--events", alarms]
    kept = json.loads(state.read_text())["monitor"]["n"]
    assert 0 < kept < 3000
    shown = [line for line in Path("shown.txt").read_text().splitlines() if " to " in line]
    assert len(shown) == kept // 250
    code, out, _ = run(*command, "--json")
    answer = json.loads(out)
    assert code == 3
    assert answer["windows"] == whole["windows"][kept // 250 :]
    assert ends_alike(answer, whole)
    assert len(lines(alarms)) == 1


@pytest.fixture
def harmless_signals():
    """Let a signal that nobody takes fail the test instead of ending all of them."""

    def untaken(number, _):
        pytest.fail(f"signal {number} was not taken")

    before = {number: signal.signal(number, untaken) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("harmless_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_asked_to_stop_keeps_and_tells_what_it_has_read(
    run, reference, days, whole, number, tmp_path, monkeypatch
):
    keep = ("--state", tmp_path / "state.json", "--json")
    read, calls = Monitoring.read, []

    def ask(self, rows, *others):
        calls.append(rows)
        if len(calls) == 9:
            signal.raise_signal(number)
        return read(self, rows, *others)

    with monkeypatch.context() as asked:
        asked.setattr(Monitoring, "read", ask)
        code, out, _ = run("monitor", reference, days, *OPTIONS, *keep)
    first = json.loads(out)
    assert code == 128 + number
    assert first["n"] == sum(call.shape[1] for call in calls) < 1700
    code, out, _ = run("monitor", reference, days, *keep)
    second = json.loads(out)
    assert code == 3
    assert first["windows"] + second["windows"] == whole["windows"]
    assert ends_alike(second, whole)


@pytest.mark.usefixtures("harmless_signals")
def test_a_run_is_asked_again_by_the_handler_of_before(run, reference, days, monkeypatch):
    # Other tests may have left other handlers; this one is what Python begins with.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    run("monitor", reference, days, *OPTIONS)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before

    def ask_twice(*_):
        # In this thread, so that none is pending when the next one comes.
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the second signal did not stop the run")

    monkeypatch.setattr(Monitoring, "read", ask_twice)
    assert run("monitor", reference, days, *OPTIONS)[0] not in (0, 2, 3)


@pytest.mark.usefixtures("keep_always")
def test_a_table_that_is_shown_in_parts_is_one_table(run, reference, days, whole):
    _, out, _ = run("monitor", reference, days, *OPTIONS)
    rows = [line for line in out.splitlines() if " to " in line and "Alarm" not in line]
    assert len(rows) == len(whole["windows"]) == 12
    assert out.count("verdict") == 1
    assert len({line.index("alarm" if "alarm" in line else "stable") for line in rows}) == 1


# ---- what is bad


@pytest.mark.parametrize("as_json", [False, True])
def test_windows_before_a_bad_row_are_shown_and_kept(run, reference, days, parts, whole, as_json, tmp_path):
    logits, labels = parts[2][0].copy(), parts[2][1]
    logits[300, 1] = np.inf
    write(days / "day-2.parquet", logits, labels)
    state = tmp_path / "state.json"
    how = ["--json"] if as_json else []
    code, out, err = run("monitor", reference, days, *OPTIONS, "--state", state, *how)
    assert code == 2
    assert err.startswith("calibrant: day-2.parquet, row group 2: logits: expected")
    assert "row 300" in err
    assert err.count("\n") == 1
    assert json.loads(state.read_text())["monitor"]["n"] == 900 + 2 * BATCH
    if as_json:
        assert json.loads(out)["windows"] == whole["windows"][:4]
    else:
        assert "751 to 1,000" in out
    write(days / "day-2.parquet", *parts[2])
    code, out, _ = run("monitor", reference, days, "--state", state, "--json")
    assert code == 3
    assert json.loads(out)["windows"] == whole["windows"][4:]
    assert ends_alike(json.loads(out), whole)


def test_an_alarm_before_a_bad_file_is_told_once(run, reference, days, parts, tmp_path):
    keep = ("--state", tmp_path / "state.json", "--events", tmp_path / "alarms.jsonl")
    (days / "day-5.parquet").write_bytes(b"PAR1 and nothing else")
    code, out, err = run("monitor", reference, days, *OPTIONS, *keep)
    assert code == 2
    assert err.startswith("calibrant: day-5.parquet: expected a Parquet file")
    assert "Alarm at row" in out
    assert len(lines(tmp_path / "alarms.jsonl")) == 1
    write(days / "day-5.parquet", *parts[5])
    assert run("monitor", reference, days, *keep)[0] == 3
    assert len(lines(tmp_path / "alarms.jsonl")) == 1


@pytest.mark.parametrize("content", [None, b"not a Parquet file"])
def test_a_run_that_is_refused_before_it_read_anything_says_only_that(run, reference, content, tmp_path):
    (tmp_path / "days").mkdir()
    if content is not None:
        (tmp_path / "days" / "a.parquet").write_bytes(content)
    code, out, err = run(
        "monitor", reference, tmp_path / "days", "--state", tmp_path / "state.json", "--json"
    )
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert not (tmp_path / "state.json").exists()


def test_a_run_that_names_files_as_well_keeps_nothing_when_it_is_refused(run, reference, days, tmp_path):
    np.savez(tmp_path / "unlabelled.npz", logits=np.zeros((3, 4)))
    keep = ("--state", tmp_path / "state.json", "--events", tmp_path / "alarms.jsonl")
    code, out, err = run("monitor", reference, days, tmp_path / "unlabelled.npz", *keep)
    assert (code, out) == (2, "")
    assert "unlabelled.npz: expected labels" in err
    assert not (tmp_path / "state.json").exists()
    assert not (tmp_path / "alarms.jsonl").exists()


# ---- places that cannot be written


def refused(run, *arguments):
    code, out, err = run("monitor", *arguments)
    assert code == 2
    assert err.count("\n") == 1
    return out, err


@pytest.mark.parametrize("option", ["--state", "--events"])
def test_a_folder_in_the_place_of_a_file_is_refused_before_anything_is_read(run, reference, option, tmp_path):
    out, err = refused(run, reference, tmp_path / "absent", option, tmp_path)
    assert out == ""
    assert err.startswith(f"calibrant: {option}: expected the name of a file, got the folder {tmp_path}")


@pytest.mark.parametrize("option", ["--state", "--events"])
def test_a_folder_without_permission_is_refused_before_anything_is_read(
    run, reference, option, tmp_path, monkeypatch
):
    def fail(**_):  # tests may run as root, who has all rights
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("calibrant.monitoring.run.TemporaryFile", fail)
    out, err = refused(run, reference, tmp_path / "absent", option, tmp_path / "file")
    assert out == ""
    assert err.startswith(f"calibrant: {tmp_path / 'file'}: expected a file that can be written, got an err")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a file system that takes no files")
def test_a_file_system_that_takes_no_files_is_one_sentence(run, reference, days):
    _, err = refused(run, reference, days, *OPTIONS, "--state", "/proc/calibrant-state.json")
    assert err.startswith("calibrant: /proc/calibrant-state.json: expected a file that can be written, got")


@pytest.mark.parametrize("option", ["--state", "--events"])
def test_devices_and_files_with_another_use_are_refused(run, reference, days, option, tmp_path):
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    for device in (fifo, Path("/dev/full")):  # a pipe waits for ever, and this device never ends
        _, err = refused(run, reference, days, option, device)
        assert err == f"calibrant: {option}: expected the name of a file, got the device or pipe {device}\n"
    before = reference.read_bytes()
    _, err = refused(run, reference, days, option, reference)
    assert "expected a file of its own" in err
    np.savez(tmp_path / "other.npz", logits=[[0.0, 1.0]])
    _, err = refused(run, reference, days, "--events", tmp_path / "other.npz")
    assert "expected a file of JSON lines" in err
    both = ("--state", tmp_path / "a", "--events", tmp_path / "." / "a")
    assert "expected a file of its own" in refused(run, reference, days, *both)[1]
    assert reference.read_bytes() == before


def test_a_full_disk_for_events_is_one_sentence_and_keeps_the_state_of_before(
    run, reference, days, tmp_path, monkeypatch
):
    state, events, fsync = tmp_path / "state.json", tmp_path / "alarms.jsonl", os.fsync

    def fail(number):
        if os.fstat(number).st_ino == events.stat().st_ino:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(number)

    events.touch()
    monkeypatch.setattr(os, "fsync", fail)
    _, err = refused(run, reference, days, *OPTIONS, "--events", events, "--state", state)
    reason = os.strerror(errno.ENOSPC)
    assert err == f"calibrant: {events}: expected a file that can be written, got an error: {reason}\n"
    if state.exists():
        assert json.loads(state.read_text())["alarm"] is None


@pytest.mark.parametrize("source", ["stream", "file"])
def test_a_full_disk_for_the_state_is_one_sentence_and_leaves_the_old_state(
    run, reference, days, source, tmp_path, monkeypatch
):
    state = tmp_path / "state.json"
    keep = (*OPTIONS, "--state", state)
    assert run("monitor", reference, days / "day-0.parquet", *keep)[0] == 0
    before = state.read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    _, err = refused(run, reference, days if source == "stream" else days / "day-1.parquet", *keep)
    assert err.startswith(f"calibrant: {state}: expected room for")
    assert "No space left" in err
    assert state.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["days", "state.json"]
