"""Running experiments, and going on after a kill."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from calibrant.bench.experiment import load_experiment, parse_experiment
from calibrant.bench.rows import read_rows
from calibrant.bench.runner import run_experiment, run_job, versions
from calibrant.errors import InputError
from tests.bench.small import TEXT, small_experiment


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    told = []
    rows = list(run_experiment(small_experiment(), folder, told=lambda *each: told.append(each)))
    return folder, rows, told


def without_time(rows):
    found = []
    for row in sorted(rows, key=lambda row: row.identity):
        values = [
            {name: value for name, value in record.values.items() if "seconds" not in name}
            for record in row.records
        ]
        found.append((row.identity, [dict(record.labels) for record in row.records], values))
    return found


def test_every_job_gives_a_row_that_is_on_disk(finished):
    folder, rows, told = finished
    assert len(rows) == 6
    assert without_time(read_rows(folder)) == without_time(rows)
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


def test_two_processes_find_the_same_numbers_as_one(finished, tmp_path):
    _, rows, _ = finished
    again = list(run_experiment(small_experiment(), tmp_path, jobs=2))
    assert without_time(again) == without_time(rows)


def test_a_job_in_this_process_finds_the_same_numbers(finished):
    _, rows, _ = finished
    job = next(iter(small_experiment().jobs("quick")))
    same = [row for row in rows if row.key == job.key and row.seed == job.seed]
    assert without_time([run_job(job, None)]) == without_time(same)


def test_data_that_is_missing_is_said_before_anything_runs(tmp_path):
    experiment = load_experiment("losses_cifar10")
    with pytest.raises(InputError, match="--data: expected a folder that holds cifar10.*got none"):
        next(run_experiment(experiment, tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_an_unknown_worker_is_refused(tmp_path):
    experiment = parse_experiment("x", TEXT.replace('worker = "posthoc"', 'worker = "magic"'))
    with pytest.raises(InputError, match="worker: expected one of .*got 'magic'"):
        next(run_experiment(experiment, tmp_path))


def test_a_failing_job_stops_with_its_reason_and_keeps_what_is_done(tmp_path):
    text = TEXT.replace('"smart"]', '"no_such_method"]')
    with pytest.raises(InputError, match="no_such_method"):
        list(run_experiment(parse_experiment("small", text), tmp_path))
    assert {row.key["method"] for row in read_rows(tmp_path)} <= {"uncalibrated", "temperature"}


def test_after_a_kill_the_rest_is_run_and_the_numbers_are_the_same(finished, tmp_path):
    _, rows, _ = finished
    file = tmp_path / "small.toml"
    file.write_text(TEXT)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "calibrant", "bench", "run", str(file), "--out", str(out)]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and len(_lines(out)) < 2:
            time.sleep(0.02)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    before = _lines(out)
    assert before
    subprocess.run(command, check=True, timeout=300, stdout=subprocess.DEVNULL)
    assert _lines(out)[: len(before)] == before
    assert without_time(read_rows(out)) == without_time(rows)


def test_workers_end_when_whoever_started_them_is_killed(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(
        "import os, sys, time\n"
        "from concurrent.futures import ProcessPoolExecutor\n"
        "import multiprocessing\n"
        "from calibrant.bench.runner import _prepare\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    pool = ProcessPoolExecutor(1, mp_context=context, initializer=_prepare)\n"
        "    print(pool.submit(os.getpid).result(), flush=True)\n"
        "    time.sleep(120)\n"
    )
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    try:
        worker = int(parent.stdout.readline())
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and _runs(worker):
        time.sleep(0.1)
    assert not _runs(worker)


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
