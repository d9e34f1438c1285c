"""Running experiments, and resuming them after a kill."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from calibrant.data import load_predictions, save_predictions
from calibrant.errors import CalibrantError, InputError, MissingPackageError
from calibrant.papers.experiment import load_experiment, parse_experiment
from calibrant.papers.model_predictions import load_model_predictions
from calibrant.papers.rows import finished_rows, identity
from calibrant.papers.runner import WORKERS, _interrupts_blocked, run_experiment, run_job, versions
from tests.papers.small import TEXT, small_experiment

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    told = []
    rows = list(run_experiment(small_experiment(), folder, progress=lambda *each: told.append(each)))
    return folder, rows, told


def without_time(rows):
    found = []
    for row in sorted(rows, key=lambda row: identity(row)):
        values = [
            {name: value for name, value in record.values.items() if "seconds" not in name}
            for record in row.records
        ]
        found.append((identity(row), [dict(record.labels) for record in row.records], values))
    return found


def test_every_job_gives_a_row_that_is_on_disk(finished):
    folder, rows, told = finished
    assert len(rows) == 6
    assert without_time(finished_rows(folder)) == without_time(rows)
    assert told[-1][1:] == (6, 6)


def test_rows_say_which_versions_made_them(finished):
    _, rows, _ = finished
    assert rows[0].versions == versions()
    assert {"calibrant", "torch", "numpy"} <= set(rows[0].versions)


def test_finished_rows_are_not_run_again(finished):
    folder, _, _ = finished
    assert list(run_experiment(small_experiment(), folder)) == []
    more = list(run_experiment(small_experiment(), folder, seeds=3))
    assert {row.seed for row in more} == {2}


@pytest.mark.usefixtures("jobs_in_this_process")
def test_a_row_goes_stale_with_its_files_and_settings(tmp_path):
    text = TEXT.replace('["digits"]', '["files:{data}/a.npz,{data}/b.npz"]').replace("seeds = 2", "seeds = 1")
    text = text.replace('"temperature", "smart"', '"temperature"')
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()

    def run(text):
        return len(list(run_experiment(parse_experiment("small", text), out, data=data)))

    digits = load_model_predictions("digits", seed=0)
    save_predictions(digits.validation, data / "a.npz")
    save_predictions(digits.tests["test"], data / "b.npz")
    assert (run(text), run(text)) == (2, 0)
    before = finished_rows(out)
    os.utime(data / "b.npz")  # touched, not changed
    assert run(text) == 0
    save_predictions(load_predictions(data / "b.npz").take(range(300)), data / "b.npz")
    assert (run(text), run(text)) == (2, 0)
    after = finished_rows(out)
    assert [identity(row) for row in after] == [identity(row) for row in before]
    assert without_time(after) != without_time(before)
    assert run(text.replace("[quick.grid]", "[quick.settings]\nn_bins = 7\n[quick.grid]")) == 2


def test_a_job_in_this_process_finds_the_same_numbers(finished):
    _, rows, _ = finished
    job = next(iter(small_experiment().jobs("quick")))
    same = [row for row in rows if row.key == job.key and row.seed == job.seed]
    assert without_time([run_job(job, None)]) == without_time(same)


def test_data_that_is_missing_is_said_before_anything_runs(tmp_path):
    experiment = load_experiment("losses_cifar10")
    with pytest.raises(InputError, match="data: expected a folder that holds cifar10.*got none"):
        next(run_experiment(experiment, tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_an_unknown_worker_is_refused(tmp_path):
    experiment = parse_experiment("x", TEXT.replace('worker = "posthoc"', 'worker = "magic"'))
    with pytest.raises(InputError, match="worker: expected one of .*got 'magic'"):
        next(run_experiment(experiment, tmp_path))


@pytest.mark.usefixtures("jobs_in_this_process")
def test_a_failing_job_stops_with_its_reason_and_keeps_what_is_done(tmp_path):
    text = TEXT.replace('"smart"]', '"no_such_method"]')
    with pytest.raises(InputError, match="no_such_method"):
        list(run_experiment(parse_experiment("small", text), tmp_path))
    assert {row.key["method"] for row in finished_rows(tmp_path)} <= {"uncalibrated", "temperature"}


def _fails(error):
    def worker(*_):
        raise error

    return worker


class _Unreadable(Exception):  # noqa: N818
    """As some libraries have them: it needs more arguments than it stores."""

    def __init__(self, what, why):
        super().__init__(f"{what}: {why}")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MissingPackageError("training", "lightning-fabric", "train"), "pip install 'calibrant\\[train\\]'$"),
        (_Unreadable("disk", "full"), "^_Unreadable: disk: full$"),
    ],
)
def test_the_error_of_a_worker_process_arrives_as_what_it_is(error, message, monkeypatch):
    monkeypatch.setitem(WORKERS, "posthoc", _fails(error))
    job = next(iter(small_experiment().jobs("quick", seeds=1)))
    with pytest.raises(CalibrantError, match=message) as raised:
        run_job(job, None)
    sent = pickle.loads(pickle.dumps(raised.value))
    assert (type(sent), str(sent)) == (type(raised.value), str(raised.value))


@pytest.mark.long
def test_after_a_kill_two_processes_run_the_rest_and_find_the_numbers_of_one(finished, tmp_path):
    _, rows, _ = finished
    file = tmp_path / "small.toml"
    file.write_text(TEXT)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "calibrant", "bench", "run", str(file), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 3000
        while time.monotonic() < deadline and not _lines(out):
            time.sleep(0.02)
        workers = _children(process.pid)
    finally:
        process.kill()
        process.wait()
    assert workers
    # Workers end when the process that started them is killed.
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and any(map(_runs, workers)):
        time.sleep(0.1)
    assert not any(map(_runs, workers))
    before = _lines(out)
    assert before
    list(run_experiment(small_experiment(), out, jobs=2))
    assert _lines(out)[: len(before)] == before
    assert without_time(finished_rows(out)) == without_time(rows)


def _children(process):
    """Return the ids of the processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def _runs(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _lines(folder):
    path = folder / "rows.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


@pytest.mark.skipif(sys.platform == "win32", reason="no signals of threads")
def test_an_interrupt_waits_until_all_processes_are_started():
    steps = []

    def start():
        with _interrupts_blocked():
            # Another thread, which does not block the signal, gets it for the main thread.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            signal.raise_signal(signal.SIGINT)
            steps.append("all started")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            start()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert steps == ["all started"]
