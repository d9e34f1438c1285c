"""A Ray cluster of two machines finds in a stream what one process finds, whatever happens to its workers."""

import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest

from calibrant.cli import main
from calibrant.errors import CalibrantError, InputError, MissingPackageError
from calibrant.outputs import INCOMPLETE
from calibrant.posthoc import TemperatureScaling
from calibrant.streams import evaluate_stream, open_stream
from tests.conftest import at_length
from tests.streams.stream_folders import draw, to_table, write

ray = pytest.importorskip("ray", reason="Ray is in the extra scale")
pytest.importorskip("ray.data", reason="Ray is in the extra scale")

from calibrant.streams.ray import _cut, evaluate_stream_on_ray  # noqa: E402  # only where there is Ray
from tests.streams import ray_file_systems  # noqa: E402  # only where there is fsspec

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
STORE = 100 << 20


@pytest.fixture(scope="module")
def cluster():
    """Two machines with one core each, which no other process finds."""
    from ray.cluster_utils import Cluster

    # A short path: sockets lie below it.
    with TemporaryDirectory(prefix="ray", dir="/tmp") as place, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", place)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "src")]))
        started = start_cluster(Cluster)
        try:
            ray.init(address=started.address, log_to_driver=False, logging_level="ERROR")
            yield started
        finally:
            ray.shutdown()
            started.shutdown()


def start_cluster(kind, tries=3):
    """Start two machines; Ray gives each 30 s, which on a busy machine may take a second try."""
    options = {"num_cpus": 1, "object_store_memory": STORE}
    started = kind()
    try:
        started.add_node(**options, include_dashboard=False)
        started.add_node(**options)
    except Exception:
        started.shutdown()
        if tries == 1:
            raise
        return start_cluster(kind, tries - 1)
    return started


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Some parts even of small files."""
    monkeypatch.setattr("calibrant.streams.ray._LEAST", 3000)


@pytest.fixture
def folder(tmp_path):
    """Three files of 3,000 rows with versions."""
    version = np.array(["v1", "v2", "v2", "v3"])[np.random.default_rng(1).integers(0, 4, 3000)]
    return write(tmp_path / "x", draw("probs", np.float32), version=version)


def on_file_system(folder, filesystem):
    """The stream of a folder through a file system."""
    stream = open_stream(folder)
    sources = tuple(dataclasses.replace(source, filesystem=filesystem) for source in stream.sources)
    return dataclasses.replace(stream, sources=sources)


def assert_same(result, expected):
    """Sums to 1e-12, and what is counted exactly."""
    assert (result.n, result.k, result.left_out) == (expected.n, expected.k, expected.left_out)
    assert (result.n_effective, result.skipped) == (pytest.approx(expected.n_effective), expected.skipped)
    assert list(result.metrics) == list(expected.metrics)
    for name, value in expected.metrics.items():
        assert result.metrics[name] == pytest.approx(value, rel=1e-12, abs=1e-12, nan_ok=True), name
    for name, bound in expected.bounds.items():
        assert dataclasses.astuple(result.bounds[name]) == pytest.approx(
            dataclasses.astuple(bound), rel=1e-12, abs=1e-12, nan_ok=True
        ), name
    exact = 1e-12 if expected.skipped else 0  # sums of weights are rounded
    np.testing.assert_allclose(result.bins.count, expected.bins.count, rtol=exact)
    np.testing.assert_allclose(result.bins.correct_sum, expected.bins.correct_sum, rtol=exact)
    assert list(result.groups) == list(expected.groups)
    for name, group in expected.groups.items():
        assert_same(result.groups[name], group)


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("form", at_length(["logits", "probs", "confidence"], ["logits"]))
def test_a_cluster_finds_what_one_process_finds(tmp_path, form, monkeypatch):
    monkeypatch.setattr("calibrant.streams.ray._LEAST", 3000 if form == "probs" else 600)
    folder = write(tmp_path / "x", draw(form, np.float32))
    told = []
    result = evaluate_stream_on_ray(open_stream(folder), progress=lambda *what: told.append(what))
    assert_same(result, evaluate_stream(open_stream(folder)))
    assert told[0] == ("starting Ray", 0, 3000)
    assert told[-1] == ("2.parquet", 3000, 3000)
    assert len(told) >= 5
    assert [done for _, done, _ in told] == sorted({done for _, done, _ in told})


@pytest.mark.usefixtures("cluster")
def test_a_cluster_writes_the_files_that_one_process_writes(folder, tmp_path, monkeypatch, capsys):
    TemperatureScaling(2.0).save(tmp_path / "c.safetensors")

    def apply(engine):
        words = ("apply", tmp_path / "c.safetensors", folder, "--out", tmp_path / engine, "--engine", engine)
        monkeypatch.setattr(sys, "argv", ["calibrant", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        return stopped.value.code, *capsys.readouterr()

    assert apply("local")[0] in (0, None)
    code, out, err = apply("ray")
    assert (code or 0, "3,000 predictions in 3 files calibrated" in out) == (0, True), err
    names = sorted(path.name for path in (tmp_path / "local").iterdir())
    assert sorted(path.name for path in (tmp_path / "ray").iterdir()) == names
    for name in names:
        here, there = (pq.read_table(tmp_path / place / name) for place in ("local", "ray"))
        assert here.column_names == there.column_names == pq.read_table(folder / name).column_names
        assert here["version"] == there["version"]
        assert here["labels"] == there["labels"]
        probs = [np.asarray(table["probs"].to_pylist()) for table in (here, there)]
        np.testing.assert_allclose(*probs, rtol=1e-6)
    bad = pq.read_table(folder / names[1])
    labels = bad["labels"].to_numpy().copy()
    labels[0] = 99
    pq.write_table(bad.set_column(bad.column_names.index("labels"), "labels", [labels]), folder / names[1])
    code, _, err = apply("ray")
    assert (code, err.count("\n"), f"calibrant: {names[1]}, row group 0: labels" in err) == (2, 1, True), err
    assert (tmp_path / "ray" / INCOMPLETE).exists()


@pytest.mark.usefixtures("cluster")
def test_groups_of_a_cluster_are_those_of_one_process(folder):
    result = evaluate_stream_on_ray(open_stream(folder), by="version", n_bins=10)
    assert list(result.groups) == ["v1", "v2", "v3"]
    assert_same(result, evaluate_stream(open_stream(folder), by="version", n_bins=10))


@pytest.mark.usefixtures("cluster")
def test_intervals_by_unit_of_a_cluster_are_those_of_one_process(tmp_path):
    question = np.random.default_rng(3).integers(0, 400, 3000)  # in all files
    stream = open_stream(write(tmp_path / "x", draw("probs", np.float32), q=question), columns_unit="q")
    result, expected = evaluate_stream_on_ray(stream, intervals=True), evaluate_stream(stream, intervals=True)
    assert_same(result, expected)
    assert result.n_units == expected.n_units == len(np.unique(question))
    for name, interval in expected.intervals.items():
        assert dataclasses.astuple(result.intervals[name]) == pytest.approx(dataclasses.astuple(interval))


@pytest.mark.usefixtures("cluster")
def test_weighted_samples_of_a_cluster_are_those_of_one_process(tmp_path):
    rng = np.random.default_rng(2)
    weights = np.where(np.arange(3000) < 1500, 0.0, rng.gamma(0.5, size=3000))
    arrays = {**draw("probs", np.float32), "weights": weights}
    stream = open_stream(write(tmp_path / "x", arrays, half=np.arange(3000) % 2))
    result = evaluate_stream_on_ray(stream, by="half")
    assert "aurc" in result.skipped
    assert_same(result, evaluate_stream(stream, by="half"))


@pytest.mark.usefixtures("cluster")
def test_more_groups_than_wanted_are_refused_even_if_no_worker_sees_them_all(tmp_path):
    folder = write(tmp_path / "x", draw("confidence", np.float32), id=np.arange(3000) // 100)
    with pytest.raises(InputError, match=r"^id: expected at most 25 groups, got more, such as '25'"):
        evaluate_stream_on_ray(open_stream(folder), by="id", most_groups=25)


@pytest.mark.usefixtures("cluster")
def test_a_killed_worker_changes_nothing(folder, tmp_path):
    marker = tmp_path / "killed"
    undisturbed = evaluate_stream_on_ray(open_stream(folder), by="version")
    deadly = ray_file_systems.Deadly(victim="2.parquet", marker=str(marker), spared=os.getpid())
    result = evaluate_stream_on_ray(on_file_system(folder, deadly), by="version")
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)
    assert_same(result, undisturbed)


def call(monkeypatch, *arguments):
    """Run the command line in this process, which is connected; return its exit code."""
    monkeypatch.setattr(sys, "argv", ["calibrant", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    return stopped.value.code or 0


def spoil(folder, how):
    arrays = draw("probs", np.float32)
    if how == "truncated":
        (folder / "9.parquet").write_bytes((folder / "2.parquet").read_bytes()[:-200])
    elif how == "damaged":
        whole = bytearray((folder / "2.parquet").read_bytes())
        whole[4:60] = b"\xff" * 56
        (folder / "9.parquet").write_bytes(whole)
    elif how == "column":
        pq.write_table(pq.read_table(folder / "2.parquet").drop_columns("labels"), folder / "9.parquet")
    else:
        arrays["probs"][500] = np.nan
        pq.write_table(
            to_table(arrays, slice(0, 900), version=np.full(3000, "v1")),
            folder / "9.parquet",
            row_group_size=300,
        )


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("how", "where"),
    [
        pytest.param("truncated", "9.parquet: expected a Parquet file", marks=pytest.mark.long),
        pytest.param("damaged", "9.parquet, row group 0: expected a Parquet file", marks=pytest.mark.long),
        pytest.param("column", "9.parquet: ", marks=pytest.mark.long),
        ("nan", "9.parquet, row group 1: probs: expected finite numbers, got nan in row 500"),
    ],
)
def test_bad_files_are_told_or_left_out_as_by_one_process(folder, how, where, capfd):
    spoil(folder, how)
    with pytest.raises(CalibrantError) as alone:
        evaluate_stream(open_stream(folder))
    with pytest.raises(CalibrantError) as refused:
        evaluate_stream_on_ray(open_stream(folder))
    assert (type(refused.value), str(refused.value)) == (type(alone.value), str(alone.value))
    assert str(refused.value).startswith(where)
    result = evaluate_stream_on_ray(open_stream(folder), skip_bad=True)
    assert len(result.left_out) == 1
    assert_same(result, evaluate_stream(open_stream(folder), skip_bad=True))
    assert capfd.readouterr() == ("", "")


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_a_file_that_workers_do_not_see_is_named_and_counted_once(folder):
    blind = ray_file_systems.Blind(hidden="2.parquet", spared=os.getpid())
    with pytest.raises(CalibrantError, match=r"^2\.parquet: expected a Parquet file, .*No such file"):
        evaluate_stream_on_ray(on_file_system(folder, blind))
    result = evaluate_stream_on_ray(on_file_system(folder, blind), skip_bad=True)
    assert result.n == 701
    assert [(left.file, left.row_group, left.rows) for left in result.left_out] == [("2.parquet", None, 2299)]


@pytest.mark.usefixtures("cluster")
def test_workers_without_a_package_or_with_another_release_are_one_sentence(folder, monkeypatch, capfd):
    with pytest.raises(
        CalibrantError,
        match=r"^ray: expected the workers .*ModuleNotFoundError: No module named 'someones_store'; they",
    ):
        evaluate_stream_on_ray(on_file_system(folder, ray_file_systems.Unknown()))
    monkeypatch.setattr("calibrant.streams.ray.__version__", "0.0.0")
    with pytest.raises(CalibrantError, match=r"^ray: expected Calibrant 0\.0\.0 on every worker"):
        evaluate_stream_on_ray(open_stream(folder))
    assert capfd.readouterr() == ("", "")


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_a_client_has_the_cluster_merge(folder, monkeypatch):
    monkeypatch.setattr("calibrant.streams.ray.is_client", lambda _: True)
    assert_same(evaluate_stream_on_ray(open_stream(folder)), evaluate_stream(open_stream(folder)))
    spoil(folder, "nan")
    with pytest.raises(InputError, match=r"^9\.parquet, row group 1: probs: .* nan in row 500"):
        evaluate_stream_on_ray(open_stream(folder))


@pytest.mark.usefixtures("cluster")
def test_the_command_line_prints_the_same_numbers(folder, monkeypatch, capfd):
    assert call(monkeypatch, "evaluate", folder, "--by", "version", "--json") == 0
    alone = json.loads(capfd.readouterr().out)
    assert call(monkeypatch, "evaluate", folder, "--by", "version", "--engine", "ray", "--json") == 0
    out, err = capfd.readouterr()
    result = json.loads(out)
    assert err == ""
    for told in (alone, result):
        del told["seconds"], told["rows_per_second"]
    assert result["metrics"] == pytest.approx(alone["metrics"], rel=1e-12, abs=1e-12)
    assert result["groups"]["v2"]["metrics"] == pytest.approx(
        alone["groups"]["v2"]["metrics"], rel=1e-12, abs=1e-12
    )
    assert {key: result[key] for key in ("n", "k", "left_out")} == {
        key: alone[key] for key in ("n", "k", "left_out")
    }


@pytest.mark.usefixtures("cluster")
def test_the_command_line_names_a_bad_row_in_one_sentence_or_counts_it(folder, monkeypatch, capfd):
    spoil(folder, "nan")
    before = sorted(folder.iterdir())
    assert call(monkeypatch, "evaluate", folder, "--engine", "ray") == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(
        "calibrant: 9.parquet, row group 1: probs: expected finite numbers, got nan in row 500"
    )
    assert call(monkeypatch, "evaluate", folder / "9.parquet", "--engine", "ray", "--skip-bad", "--json") == 0
    result = json.loads(capfd.readouterr().out)
    assert (result["n"], [left["row_group"] for left in result["left_out"]]) == (600, [1])
    assert sorted(folder.iterdir()) == before


def test_what_ray_says_of_dead_workers_is_not_part_of_the_result(folder, monkeypatch, capsys):
    def noisy(stream, **options):
        print("(raylet) A worker died or was killed")
        return evaluate_stream(stream, **options)

    monkeypatch.setattr("calibrant.streams.ray.evaluate_stream_on_ray", noisy)
    assert call(monkeypatch, "evaluate", folder, "--engine", "ray", "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["n"] == 3000
    assert err == "(raylet) A worker died or was killed\n"


@pytest.mark.usefixtures("cluster")
def test_an_address_beside_a_connection_is_refused(folder):
    with pytest.raises(
        InputError, match=r"^address: expected none, since Ray is connected already, got auto"
    ):
        evaluate_stream_on_ray(open_stream(folder), address="auto")


@pytest.mark.parametrize("form", ["{}", "ray://{}"])
def test_an_address_where_nobody_answers_is_one_sentence(folder, monkeypatch, form):
    with socket.socket() as unused:
        # Bound but not listening: nobody else can have the port, and whoever calls is refused.
        unused.bind(("127.0.0.1", 0))
        address = form.format(f"127.0.0.1:{unused.getsockname()[1]}")
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        with pytest.raises(InputError, match=rf"^address: .* got {address}, where none answers"):
            evaluate_stream_on_ray(open_stream(folder), address=address)
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(InputError, match=rf"^address: .* got {address}, where none answers"):
            evaluate_stream_on_ray(open_stream(folder))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--engine", "spark"), "--engine: expected 'local' or 'ray', got 'spark'"),
        (("--engine", "ray", "--intervals"), "--intervals: expected a file that is loaded as a whole"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_one_sentence(folder, monkeypatch, capsys, options, sentence):
    assert call(monkeypatch, "evaluate", folder, *options) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"calibrant: {sentence}")


def test_without_ray_the_extra_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(MissingPackageError, match=r"^ray: .*pip install 'calibrant\[scale\]'$"):
        evaluate_stream_on_ray(open_stream(folder))


def test_a_stream_without_any_row_groups_needs_no_cluster(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(CalibrantError, match="expected at least two rows, got 0 with 1 files"):
        evaluate_stream_on_ray(open_stream(tmp_path), skip_bad=True)


def test_parts_are_neighbours_of_about_the_same_size_and_hold_every_row_group_once(folder, monkeypatch):
    stream = open_stream(folder)
    groups = stream.row_groups(stream.layouts())
    for least in (1, 3000, 10**9):
        monkeypatch.setattr("calibrant.streams.ray._LEAST", least)
        parts = _cut(groups, by=None)
        assert [group for part in parts for group in part] == groups
        sizes = [sum(group.rows for group in part) for part in parts]
        assert max(sizes) <= max(least / 7, 333) + 333
    assert len(parts) == 1


def run_a_task_on(node):
    """Wait until a machine of the cluster has run a task, which on a busy machine takes a while."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node, soft=False)
    task = ray.remote(lambda: ray.get_runtime_context().get_node_id())
    assert ray.get(task.options(scheduling_strategy=there).remote()) == node


@pytest.mark.long
def test_a_machine_lost_half_way_changes_nothing(cluster, folder, tmp_path):
    # The last test on the cluster: Ray complains of the loss on the terminal for a while.
    undisturbed = evaluate_stream_on_ray(open_stream(folder))
    doomed = cluster.add_node(num_cpus=1, object_store_memory=STORE)
    run_a_task_on(doomed.node_id)
    marker, ended = tmp_path / "begun", threading.Event()

    def lose():
        # The others wait for the doomed machine, so it gets a task, however late.
        while not marker.exists() and not ended.wait(0.05):
            pass
        cluster.remove_node(doomed, allow_graceful=False)

    thread = threading.Thread(target=lose)
    thread.start()
    try:
        stuck = ray_file_systems.Stuck(node=doomed.node_id, marker=str(marker), spared=os.getpid())
        result = evaluate_stream_on_ray(on_file_system(folder, stuck))
    finally:
        ended.set()
        thread.join()
    assert marker.exists()
    assert_same(result, undisturbed)


def test_a_process_without_a_cluster_starts_one_on_loopback_and_takes_it_down(folder):
    with TemporaryDirectory(prefix="ray", dir="/tmp") as place:
        run = subprocess.Popen(
            [sys.executable, "-m", "calibrant", "evaluate", folder, "--engine", "ray", "--json"],
            env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
            | {"RAY_TMPDIR": place},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        commands, listening, called = set(), set(), set()
        until = time.monotonic() + 600
        while time.monotonic() < until:
            try:
                out, err = run.communicate(timeout=1)
                break
            except subprocess.TimeoutExpired:
                for process, connection in connections_of(run.pid):
                    commands.add(process)
                    ends = listening if connection.status == psutil.CONN_LISTEN else called
                    ends.add((connection.raddr or connection.laddr).ip.removeprefix("::ffff:"))
        assert (run.returncode, err.strip()) == (0, "")  # Ray 2.40 ends with an empty line
        assert json.loads(out)["n"] == 3000
        assert listening == {"127.0.0.1"}
        assert called <= {"127.0.0.1", "::1"}
        assert any("gcs_server" in command for command in commands)
        # It would ask the metadata servers of clouds, and could report usage.
        assert not any("dashboard.py" in command for command in commands)
        (session,) = {path.resolve() for path in Path(place).glob("ray/session_*")}
        assert processes_of(session) == []


def connections_of(pid):
    """Pairs of a command line and an open Internet socket, for a process and those that it started."""
    found = []
    with suppress(psutil.NoSuchProcess):
        started = psutil.Process(pid)
        for process in [started, *started.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                command = " ".join(process.cmdline())
                found += [(command, connection) for connection in process.net_connections("inet")]
    return found


def processes_of(session, *, seconds=120):
    """Processes whose command line names the session of a cluster, once those that are ending have ended."""
    until = time.monotonic() + seconds
    while found := [
        path.parent.name for path in Path("/proc").glob("[0-9]*/cmdline") if session.name in read(path)
    ]:
        if time.monotonic() > until:
            break
        time.sleep(0.2)
    return found


def read(path):
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
