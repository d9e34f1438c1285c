"""Commands that write: never over their sources, whole or not at all on a full disk, nothing mixed."""

import json
import os
import re
import resource
import shutil
import subprocess
from contextlib import contextmanager

import pytest

from calibrant import Predictions, save_predictions
from calibrant.errors import InputError
from calibrant.outputs import INCOMPLETE, one_writer
from calibrant.papers.rows import Row, RowFile, finished_rows
from calibrant.posthoc import TemperatureScaling
from tests.conftest import at_length, draw
from tests.papers.small import TEXT


@contextmanager
def longest_file(size):
    """A limit of the operating system: what is longer fails while it is written, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def contents(folder):
    """Return the bytes of all files below a folder by their paths."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, run_once):
    """Predictions as a file and in folders, stated confidences, and calibrators of both."""
    place = tmp_path_factory.mktemp("inputs")
    logits, labels = draw(60, 4, sharpen=2.0)
    preds = Predictions(logits=logits, labels=labels)
    for name in (
        "x.npz",
        "x.safetensors",
        "logs/a.parquet",
        "logs/sub/a.parquet",
        "days/a.csv",
        "days/b.csv",
    ):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        save_predictions(preds, place / name)
    pairs = Predictions(confidence=[0.9, 0.6, 0.8, 0.3] * 10, correct=[1, 0, 1, 0] * 9 + [0, 1, 0, 1])
    save_predictions(pairs, place / "answers.csv")
    TemperatureScaling(2.0, n_classes=4).save(place / "c.safetensors")
    run_once("calibrate", place / "answers.csv", "--methods", "platt", "--out", place / "platt")
    return place


@pytest.fixture
def here(inputs, tmp_path, monkeypatch):
    """A copy of the inputs as the current folder."""
    shutil.copytree(inputs, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


SOURCES = {
    "below a folder of tables": "apply c.safetensors days --out days/honest",
    "over a file below": "apply c.safetensors logs --out logs/sub",
    "below a folder": "apply c.safetensors logs --out logs/honest",
    "in a folder": "apply c.safetensors logs --out logs/all.npz",
    "through a link": "apply c.safetensors logs --out link/honest",
    "where a pattern finds it": "apply c.safetensors logs/**/*.parquet --out logs/honest",
    "over the file": "apply c.safetensors x.npz --out ./x.npz",
    "over a stream": "apply c.safetensors logs/ --out logs/",
    "over the calibrator": "apply c.safetensors x.safetensors --out c.safetensors",
    "a graph over the calibrator": "export c.safetensors --out c.safetensors",
    "a page over predictions": "report x.npz --out x.npz",
    "a page over shifted predictions": "report logs/a.parquet --shift x.npz --out x.npz",
    "results below a folder": "calibrate days --methods temperature --out days/calibrated",
    "repaired answers over answers": "calibrate honest/repaired.csv --methods platt --out honest",
}


@pytest.mark.parametrize("words", SOURCES.values(), ids=SOURCES)
def test_no_command_writes_over_or_below_what_it_reads(run, here, words):
    (here / "link").symlink_to("logs")
    (here / "honest").mkdir()
    (here / "honest" / "repaired.csv").write_bytes((here / "answers.csv").read_bytes())
    before = contents(here)
    code, out, err = run(*words.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "out: expected a place apart from" in err
    assert contents(here) == before


FULL = {
    **{f"apply{suffix}": f"apply c.safetensors x.npz --out new/x{suffix}" for suffix in
       (".npz", ".parquet", ".csv", ".tsv", ".safetensors", ".jsonl")},
    "answers": "apply platt/calibrator.safetensors answers.csv --out new/x.jsonl",
    "stream": "apply c.safetensors logs --out new",
    "tables": "apply c.safetensors days --out new",
    "plot": "plot reliability x.npz --out new/x.pdf",
    "report": "report x.npz --out new/x.html",
    "calibrate": "calibrate answers.csv --methods platt --out new",
    "monitor": "monitor x.npz x.npz --state new/state.json --window 20",
}  # fmt: skip


@pytest.mark.parametrize("words", FULL.values(), ids=FULL)
def test_a_full_disk_is_one_sentence_and_leaves_the_old_files(run, here, words):
    (here / "new").mkdir()
    assert run(*words.split())[0] == 0
    before = contents(here)
    # Half of each: the times in some files have more digits in one run than in another.
    for size in sorted({0, *(len(content) // 2 for path, content in before.items() if "new" in path.parts)}):
        with longest_file(size):
            code, out, err = run(*words.split())
        assert (code, out, err.count("\n")) == (2, "", 1), (size, err)
        assert os.strerror(27) in err
        assert contents(here) == before


@contextmanager
def small_disk(place):
    """A disk of 16 MB, in memory; the test is skipped where mounting one is not permitted."""
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no command that mounts a disk")
    if mounted.returncode:
        pytest.skip(f"mounting a disk is not permitted: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        if subprocess.run(["umount", str(place)], check=False).returncode:
            subprocess.run(["umount", "--lazy", str(place)], check=True)
            pytest.fail("a file on the disk was left open, so its room would not become free")


def fill(disk, *, free):
    """Leave so many bytes of a disk free, to within a page."""
    (disk / "filler").unlink(missing_ok=True)
    (disk / "filler").write_bytes(bytes(shutil.disk_usage(disk).free - free))


ON_A_DISK = {
    **FULL,
    "export": "export c.safetensors --out new/x.onnx",
    "bench": "bench run mine.toml --seeds 1 --out new",
}


@pytest.mark.slow
@pytest.mark.usefixtures("jobs_in_this_process")
@pytest.mark.parametrize("name", at_length(ON_A_DISK, ON_A_DISK.keys() - {"export"}))
def test_a_disk_without_room_is_one_sentence_and_leaves_the_old_files(run, here, name):
    words = ON_A_DISK[name]
    (here / "mine.toml").write_text(TEXT.replace('"temperature", "smart"]', '"temperature"]'))
    with small_disk(here / "new") as disk:
        assert run(*words.split())[0] == 0
        written = sum(len(content) for content in contents(disk).values())
        for free in (0, written // 2):
            fill(disk, free=free)
            before = contents(here)
            code, out, err = run(*words.replace("--seeds 1", "--seeds 2").split())
            assert (code, out, err.count("\n")) == (2, "", 1), (free, err)
            assert os.strerror(28) in err
            assert contents(here) == before


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("words", FULL.values(), ids=FULL)
def test_a_place_that_cannot_be_written_is_one_sentence(run, words):
    for place in ("/proc", "c.safetensors"):
        code, out, err = run(*words.replace("new", place).split())
        assert (code, out, err.count("\n")) == (2, "", 1), err


TO_ADDRESSES = {
    **{
        name: FULL[name]
        for name in ("apply.csv", "apply.npz", "stream", "tables", "plot", "calibrate", "monitor")
    },
    "decide": "decide x.npz --coverage 0.8 --out new/x.safetensors",
    "sets": "sets x.npz --alpha 0.3 --out new/x.safetensors",
    "gate": "gate x.npz --require accuracy>0 --junit new/x.xml",
    "metrics": "monitor x.npz x.npz --window 20 --prometheus new/x.prom",
}


@pytest.mark.parametrize("words", TO_ADDRESSES.values(), ids=TO_ADDRESSES)
def test_a_command_writes_to_an_address_what_it_writes_to_a_folder(run, here, words):
    memory = pytest.importorskip("fsspec", reason="fsspec is in the extra scale").filesystem("memory")
    memory.rm("/", recursive=True)
    before = contents(here)
    code, _, err = run(*words.replace("new", "memory://bucket/new").split())
    assert code == 0, err
    assert contents(here) == before
    found = {file.removeprefix("/bucket/"): len(memory.cat(file)) for file in memory.find("/")}
    (here / "new").mkdir()
    assert run(*words.split())[0] == 0
    assert found.keys() == {str(path.relative_to(here)) for path in contents(here / "new")}
    assert all(found.values())


FROM_ADDRESSES = {
    **{
        f"apply{suffix}": f"apply FROM/c.safetensors FROM/x.npz --out new/x{suffix}"
        for suffix in (".npz", ".csv")
    },
    "answers": "apply FROM/platt/calibrator.safetensors FROM/answers.csv --out new/x.csv",
    "stream": "apply FROM/c.safetensors FROM/logs --out new",
    "calibrate": "calibrate FROM/answers.csv --methods platt --out new",
    "calibrate with a test set": "calibrate x.npz --test FROM/x.npz --methods temperature --out new",
    "calibrate a table": "calibrate FROM/logs/a.parquet --methods temperature --out new",
    "report": "report FROM/x.npz --shift FROM/x.npz --out new/x.html",
    "report of a stream": "report x.npz --shift FROM/logs --out new/x.html",
    "decide": "decide FROM/x.npz --coverage 0.8 --out new/x.safetensors",
    "monitor": "monitor FROM/x.npz FROM/x.npz --window 20 --state new/state.json",
    "gate": "gate FROM/x.npz --require accuracy>0 --junit new/x.xml",
    "plot": "plot reliability FROM/x.npz --out new/x.svg",
}


@pytest.mark.parametrize("words", FROM_ADDRESSES.values(), ids=FROM_ADDRESSES)
def test_a_command_reads_at_an_address_what_it_reads_in_a_folder(run, here, words):
    memory = pytest.importorskip("fsspec", reason="fsspec is in the extra scale").filesystem("memory")
    memory.rm("/", recursive=True)
    for path, content in contents(here).items():
        memory.pipe(f"/bucket/{path.relative_to(here)}", content)
    written = []
    for place in ("memory://bucket", "."):
        (here / "new").mkdir()
        code, _, err = run(*words.replace("FROM", place).split())
        assert code == 0, err
        written.append([path.relative_to(here) for path in contents(here / "new")])
        shutil.rmtree(here / "new")
    assert written[0] == written[1]


@pytest.mark.usefixtures("here")
def test_a_state_at_an_address_is_continued(run):
    pytest.importorskip("fsspec", reason="fsspec is in the extra scale").filesystem("memory").rm("/", True)
    words = ["monitor", "x.npz", "x.npz", "--window", "20", "--state", "memory://bucket/state.json", "--json"]
    assert [json.loads(run(*words)[1])["n"] for _ in range(2)] == [60, 120]


TO_NO_ADDRESS = {
    **{name: words.replace("new", "nope://bucket/new") for name, words in TO_ADDRESSES.items()},
    "export": "export c.safetensors --out nope://bucket/x.onnx",
    "demo": "demo --out nope://bucket/demo",
    "train": "train --out memory://bucket/run",
    "predict": "predict photos --network runs/mine --out nope://bucket/p.npz",
    "bench": "bench run posthoc --out memory://bucket/run",
    "events": "monitor x.npz x.npz --events memory://bucket/x.jsonl",
}


@pytest.mark.parametrize("words", TO_NO_ADDRESS.values(), ids=TO_NO_ADDRESS)
def test_an_address_that_cannot_be_written_is_refused_before_any_work(run, here, words):
    pytest.importorskip("fsspec", reason="fsspec is in the extra scale")
    for file in here.iterdir():  # nothing is there to work on
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    code, out, err = run(*words.split())
    assert (code, out, err.count("\n"), list(here.iterdir())) == (2, "", 1, [])
    assert re.search(r"^calibrant: --(out|state|junit|prometheus|events): expected a .*://bucket", err), err


def test_a_row_of_a_benchmark_that_has_no_room_is_one_sentence(tmp_path):
    row = Row("posthoc", "quick", {"method": "smart"}, 0, (), 1.0, {})
    file = RowFile(tmp_path)
    file.add(row)
    with longest_file(file.path.stat().st_size + 5), pytest.raises(InputError, match="expected room for"):
        file.add(row)
    assert finished_rows(tmp_path) == [row]
    RowFile(tmp_path).add(row)
    assert file.path.read_bytes().count(b"\n") == 2


def test_a_folder_that_another_process_writes_to_is_refused(run, here):
    with one_writer(here / "busy"):
        for words in (
            "calibrate x.npz --methods temperature --out busy",
            "apply c.safetensors logs --out busy",
            "apply c.safetensors days --out busy",
            "bench run posthoc --out busy",
        ):
            code, out, err = run(*words.split())
            assert (code, out, "into which another process is writing" in err) == (2, "", True)


def test_a_half_applied_folder_of_tables_is_refused_until_it_is_whole(run, here):
    whole = (here / "days" / "b.csv").read_text()
    (here / "days" / "b.csv").write_text(whole + "1,2\n")
    assert run("apply", "c.safetensors", "days", "--out", "new")[0] == 2
    assert sorted(path.name for path in (here / "new").iterdir()) == [INCOMPLETE, "a.csv"]
    for source in ("new", "new/*.csv", "."):
        code, out, err = run("evaluate", source)
        assert (code, out, "whose writing has not ended" in err) == (2, "", True)
    (here / "days" / "b.csv").write_text(whole)
    assert run("apply", "c.safetensors", "days", "--out", "new")[0] == 0
    assert run("evaluate", "new")[0] == 0


def test_results_beside_the_calibrator_of_another_run_are_refused(run, here):
    for name in ("one", "two"):
        method = "temperature" if name == "one" else "vector"
        assert run("calibrate", "x.npz", "--methods", method, "--out", name)[0] == 0
    assert run("report", "one")[0] == 0
    digest = json.loads((here / "two" / "results.json").read_text())["calibrator_digest"]
    assert f"SHA-256 of its numbers {digest[:16]}" in (here / "two" / "report.html").read_text()
    # A process that was killed between the files leaves the new calibrator beside old results.
    (here / "two" / "calibrator.safetensors").replace(here / "one" / "calibrator.safetensors")
    for words in (
        "report one",
        "report one --shift x.npz",
        "apply one/calibrator.safetensors x.npz --out new.npz",
        "export one/calibrator.safetensors --out new.onnx",
    ):
        code, out, err = run(*words.split())
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "got a calibrator that the results are not about" in err
    (here / "one" / "calibrator.safetensors").rename(here / "alone.safetensors")
    assert run("apply", "alone.safetensors", "x.npz", "--out", "new.npz")[0] == 0


def test_an_empty_name_is_no_folder(run):
    for words in (["evaluate", ""], ["calibrate", "x.npz", "--out", ""], [""]):
        code, out, err = run(*words)
        assert (code, out, err.count("\n"), "got an empty text" in err) == (2, "", 1, True)


def test_suffixes_in_capitals_are_read_from_folders(run, here):
    (here / "logs" / "sub" / "a.parquet").rename(here / "logs" / "sub" / "b.PARQUET")
    assert json.loads(run("evaluate", "logs", "--json")[1])["n"] == 120
    assert run("apply", "c.safetensors", "logs", "--out", "new")[0] == 0
    assert json.loads(run("evaluate", f"file://{here}/new", "--json")[1])["n"] == 120
