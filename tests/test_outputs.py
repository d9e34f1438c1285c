"""Outputs: never over or below what is read, one writer of a folder at a time, complete or marked."""

import multiprocessing
import os
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from calibrant.errors import FormatError, InputError, MissingPackageError
from calibrant.files import _TIDY, address_of, atomic_path, write_file
from calibrant.outputs import INCOMPLETE, check_complete, check_place, check_targets, filling, one_writer
from calibrant.streams.files import find_stream_files


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of logs, links to it and to one of its files, and a file beside it."""
    for name in ("logs/a.csv", "logs/sub/a.csv", "elsewhere/b.csv", "raw.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "link").symlink_to("logs")
    (tmp_path / "raw-link.csv").symlink_to("raw.csv")
    (tmp_path / "logs" / "b.csv").symlink_to("../elsewhere/b.csv")
    (tmp_path / "logs" / "loop").symlink_to("loop")
    os.link(tmp_path / "raw.csv", tmp_path / "raw-twin.csv")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("raw.csv", "raw.csv"),
        ("raw.csv", "./logs/../raw.csv"),
        ("raw.csv", "{here}/raw.csv"),
        ("raw.csv", "raw-link.csv"),
        ("raw-link.csv", "raw.csv"),
        ("raw.csv", "raw-twin.csv"),
        ("file://{here}/raw.csv", "raw.csv"),
        ("logs", "logs/new.csv"),
        ("logs", "logs/new/deep/a.csv"),
        ("logs/", "link/new/a.csv"),
        ("link", "logs/sub/a.csv"),
        ("file://{here}/logs", "logs/new/a.csv"),
        (".", "logs/../new/a.csv"),
        ("logs/*.csv", "logs/a.csv"),
        ("logs/*.csv", "elsewhere/b.csv"),
        ("logs/*.csv", "link/new.csv"),
        ("link/**/*.csv", "logs/new/deep/a.csv"),
        ("**", "new/a.csv"),
        ("l?gs/s[u]b/*", "logs/sub/new.csv"),
    ],
)
def test_a_place_that_is_read_is_refused(here, source, target):
    source, target = (each.format(here=here) for each in (source, target))
    with pytest.raises(InputError, match=r"^out: expected a place apart from .*; name another one$"):
        check_targets(["apart.csv", target], [source])


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("raw.csv", "new.csv"),
        ("raw.csv", "logs/raw.csv"),
        ("logs", "logs-honest/a.csv"),
        ("logs/sub", "logs/a.csv"),
        ("logs/*.csv", "logs/new/a.csv"),
        ("*.csv", "honest/a.csv"),
        ("logs/**/*.csv", "honest/sub/a.csv"),
        ("logs/loop", "new.csv"),
        ("s3://bucket/raw.csv", "raw.csv"),
        ("", "new.csv"),
    ],
)
def test_a_place_apart_is_accepted(here, source, target):
    check_targets([target, here / target], [source])


def test_a_rewritten_file_keeps_its_permissions_also_while_it_is_written(tmp_path):
    target = tmp_path / "secret.json"
    for mode in (0o600, 0o644, 0o440):
        target.write_text("old")
        target.chmod(mode)
        with atomic_path(target) as temporary:
            assert stat.S_IMODE(temporary.stat().st_mode) == mode | 0o200
            temporary.write_text("new")
        assert stat.S_IMODE(target.stat().st_mode) == mode
        target.chmod(0o600)


def test_devices_and_pipes_are_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/null")
    for target in (tmp_path / "pipe", tmp_path / "link"):
        before = target.lstat()
        with pytest.raises(InputError, match="expected the name of a file, got a device or a pipe"):
            write_file(target, "text")
        assert target.lstat() == before


def test_temporary_files_of_killed_processes_are_removed_and_no_others(tmp_path):
    write = (
        "import os, sys; from calibrant.files import atomic_path\n"
        "with atomic_path(sys.argv[1]) as temporary: os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", write, tmp_path / "a.txt"], check=False)
    (left,) = tmp_path.iterdir()
    other_machine = tmp_path / ".calibrant-00000000-1-00000000.txt"
    other_machine.write_text("theirs")
    with atomic_path(tmp_path / "c.txt") as alive:
        assert not left.exists()
        _TIDY.clear()  # as in another process
        write_file(tmp_path / "b.txt", "text")
        assert alive.exists()
    assert {each.name for each in tmp_path.iterdir()} == {"b.txt", "c.txt", other_machine.name}


def _hold(folder, ready, end):
    with one_writer(folder):
        ready.set()
        end.wait(300)


def test_the_second_writer_of_a_folder_is_refused_until_the_first_ends_or_is_killed(tmp_path):
    context = multiprocessing.get_context("fork")
    for kill in (False, True):
        ready, end = context.Event(), context.Event()
        first = context.Process(target=_hold, args=(tmp_path, ready, end))
        first.start()
        assert ready.wait(300)
        with pytest.raises(InputError, match="into which another process is writing"), one_writer(tmp_path):
            pass
        first.kill() if kill else end.set()
        first.join(300)
        with one_writer(tmp_path):
            pass
        assert list(tmp_path.iterdir()) == []


def test_a_folder_is_incomplete_from_the_first_file_to_the_last(tmp_path):
    def fill(n, *, stop_after=None):
        with filling(tmp_path / "out") as finished:
            for number in range(n):
                if number == stop_after:
                    raise KeyboardInterrupt
                assert (tmp_path / "out" / INCOMPLETE).exists()
                write_file(tmp_path / "out" / str(number), "text")
                finished.append(tmp_path / "out" / str(number))

    fill(2)
    check_complete(tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        fill(3, stop_after=0)
    check_complete(tmp_path / "out")  # nothing was changed
    with pytest.raises(KeyboardInterrupt):
        fill(3, stop_after=1)
    for folder in ("out", "out/below"):
        with pytest.raises(FormatError, match=rf"expected a complete folder.* remove .*{INCOMPLETE} to read"):
            check_complete(tmp_path / folder)
    with pytest.raises(KeyboardInterrupt):
        fill(3, stop_after=0)
    assert (tmp_path / "out" / INCOMPLETE).exists()
    fill(3)
    check_complete(tmp_path / "out")
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["0", "1", "2"]


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The file system in memory of fsspec, empty; paths that are none would be in the current folder."""
    fsspec = pytest.importorskip("fsspec", reason="fsspec is in the extra scale")
    memory = fsspec.filesystem("memory")
    monkeypatch.setattr(type(memory), "store", {})
    monkeypatch.setattr(type(memory), "pseudo_dirs", [""])
    monkeypatch.chdir(tmp_path)
    yield memory
    assert not list(tmp_path.iterdir())


def test_an_address_gets_a_whole_file_or_keeps_the_old_one(store):
    write_file("memory://bucket/honest/a.txt", "old")
    with suppress(RuntimeError), atomic_path(Path("memory://bucket/honest") / "a.txt") as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert store.cat("/bucket/honest/a.txt") == b"old"
    write_file(Path("memory://bucket", "honest", "a.txt"), "new")
    assert store.cat("/bucket/honest/a.txt") == b"new"
    assert (temporary.suffix, temporary.exists()) == (".txt", False)


@pytest.mark.usefixtures("store")
def test_a_folder_at_an_address_is_incomplete_until_all_of_it_is_there():
    with suppress(RuntimeError), filling(Path("memory://bucket/days")) as finished:
        write_file("memory://bucket/days/a.parquet", b"one of two")
        finished.append(Path("a.parquet"))
        raise RuntimeError
    with pytest.raises(FormatError, match="whose writing has not ended; repeat the command"):
        find_stream_files("memory://bucket/days")
    with filling(Path("memory://bucket/days")):
        pass
    assert [file.name for file in find_stream_files("memory://bucket/days")] == ["a.parquet"]


@pytest.mark.parametrize("place", ["memory://bucket/honest/", "memory://bucket/new.csv", "memory://bucket"])
def test_an_address_that_can_be_written_is_left_as_it_was(store, place):
    assert address_of(check_place(place)) == place.rstrip("/")
    assert not store.find("/")


def test_an_address_that_cannot_be_written_is_refused(store, monkeypatch):
    expected = r"^state: expected a place that can be written, got {}: {}.*; name another one$"
    with pytest.raises(InputError, match=expected.format("nope://x/y.json", "Protocol not known")):
        check_place("nope://x/y.json", name="state")
    monkeypatch.setattr(store, "put_file", lambda *_: (_ for _ in ()).throw(PermissionError("no access")))
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda address: (store, address))
    with pytest.raises(InputError, match=expected.format("memory://x", "no access")):
        check_place("memory://x", name="state")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(MissingPackageError, match=r"^s3://x/.*: expected the package fsspec"):
        check_place("s3://x/y")


def test_an_address_of_this_machine_is_a_path(tmp_path):
    assert check_place(f"file://{tmp_path}/a.txt") == tmp_path / "a.txt"
    write_file(f"file://{tmp_path}/a.txt", "here")
    assert (tmp_path / "a.txt").read_text() == "here"


@pytest.mark.parametrize(
    ("source", "target", "why"),
    [
        ("s3://b/x.parquet", "s3://b/x.parquet", "is the same file"),
        ("s3://b/days/", "s3://b/days/new/x.parquet", "lies below it"),
        ("s3://b/*/x.parquet", "s3://b/new/x.parquet", "would be read as a part of it"),
    ],
)
def test_an_address_that_is_read_is_refused(source, target, why):
    with pytest.raises(InputError, match=rf"^out: expected a place apart from .*, which {why}"):
        check_targets([Path(target)], ["local.csv", source])
    check_targets(["s3://other/x.parquet", "x.parquet"], [source])
