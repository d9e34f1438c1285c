"""Checkpoints: whole or not there, never run, named when there is no room."""

import errno
import json
import os
import pickle
import resource
from contextlib import contextmanager

import pytest
import torch

from calibrant.errors import FormatError, InputError
from calibrant.files import write_file
from calibrant.training.checkpoint import (
    Best,
    Checkpoint,
    load_state,
    load_weights,
    read_checkpoint,
    remove_remains,
    save_state,
    save_weights,
    write_checkpoint,
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    return tmp_path


@contextmanager
def files_of_at_most(n_bytes):
    """A limit of the operating system: what is longer fails while it is written, as on a full disk."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def fill(folder, *names):
    for name in names:
        (folder / "checkpoints" / name).write_bytes(b"x")


def files(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_a_checkpoint_reads_as_it_was_written(folder):
    best = Best(2, -0.25, "checkpoints/best.safetensors")
    written = Checkpoint("classifier", 3, False, "checkpoints/a.safetensors", "checkpoints/a.pt", best)
    write_checkpoint(folder, written)
    assert read_checkpoint(folder) == written


def test_a_folder_without_one_has_none(folder):
    assert read_checkpoint(folder) is None


def test_files_that_the_new_checkpoint_does_not_name_are_removed_and_the_others_stay(folder):
    new = ("encoder-0002.safetensors", "encoder-0002.pt", "encoder-best-0001.safetensors")
    fill(folder, "encoder-0001.safetensors", "encoder-0001.pt", *new, ".calibrant-1.pt", "thesis.pt")
    weights, state, kept = (f"checkpoints/{name}" for name in new)
    write_checkpoint(folder, Checkpoint("encoder", 2, False, weights, state, Best(1, 0.5, kept)))
    # A file that is not ours is never removed: the folder may be a link to another one.
    assert files(folder) == sorted([*new, "thesis.pt"])


def test_old_files_stay_until_the_new_checkpoint_is_in_place(folder, monkeypatch):
    fill(folder, "old.safetensors")
    write_checkpoint(folder, Checkpoint("encoder", 1, True, "checkpoints/old.safetensors"))
    fill(folder, "new.safetensors")

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("pathlib.Path.replace", crash)
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(folder, Checkpoint("encoder", 2, True, "checkpoints/new.safetensors"))
    monkeypatch.undo()
    assert read_checkpoint(folder).weights == "checkpoints/old.safetensors"
    assert "old.safetensors" in files(folder)


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 2}', "[" * 100_000])
def test_what_is_no_checkpoint_is_named(folder, text):
    (folder / "checkpoint.json").write_text(text)
    with pytest.raises(FormatError, match=r"checkpoint\.json: expected a "):
        read_checkpoint(folder)


GOOD = {
    "format": 1,
    "stage": "classifier",
    "epoch": 3,
    "finished": False,
    "weights": "checkpoints/a.safetensors",
    "state": "checkpoints/a.pt",
    "best": {"epoch": 2, "score": -0.5, "weights": "checkpoints/b.safetensors"},
}


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("stage", ["head", 1, None, ["classifier"]]),
        ("epoch", [0, -1, 1.5, "3", True, None, 10**30]),
        ("finished", [1, "no", None, True]),
        (
            "weights",
            ["/etc/passwd", "../a.pt", "checkpoints/../../a.pt", "checkpoints/", "checkpoints/..", 3],
        ),
        ("weights", ["checkpoints/a\0", "checkpoints/\ud800", "checkpoints/a/b", "", "a.pt", None]),
        ("state", ["/a.pt", None, 3]),
        ("best", [[], 3, {}, {"epoch": 4, "score": 0.5, "weights": "checkpoints/b"}]),
        ("best", [{"epoch": 1, "score": float("inf"), "weights": "checkpoints/b"}]),
        ("best", [{"epoch": 1, "score": 0.5, "weights": "../b"}]),
        ("other", [1]),
    ],
)
def test_a_value_that_no_checkpoint_has_is_refused_with_its_field(folder, field, values):
    for value in values:
        (folder / "checkpoint.json").write_text(json.dumps(GOOD | {field: value}))
        with pytest.raises(FormatError) as caught:
            read_checkpoint(folder)
        named, _, problem = str(caught.value).partition("checkpoint.json: ")[2].partition("expected")
        assert problem, value
        assert field in named or (field, "state") == ("finished", named[:5]), (value, str(caught.value))


def test_weights_read_as_they_were_written_also_those_that_share_memory(folder):
    shared = torch.randn(3, 2)
    weights = {"a": shared, "b": shared, "c": shared.T, "n": torch.tensor(3)}
    save_weights(folder / "w.safetensors", weights)
    for name, value in load_weights(folder / "w.safetensors").items():
        assert torch.equal(value, weights[name])
        assert value.dtype == weights[name].dtype


def test_the_state_of_an_optimiser_reads_as_it_was_written(folder):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight])
    weight.grad = torch.tensor([1.0, -2.0])
    optimizer.step()
    save_state(folder / "s.pt", {"optimizer": optimizer.state_dict(), "loss": {"gammas": torch.ones(2)}})
    found = load_state(folder / "s.pt")
    assert torch.equal(found["optimizer"]["state"][0]["exp_avg"], optimizer.state[weight]["exp_avg"])
    assert found["optimizer"]["param_groups"] == optimizer.state_dict()["param_groups"]
    assert torch.equal(found["loss"]["gammas"], torch.ones(2))


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("kind", ["torch", "pickle"])
def test_a_state_with_an_object_in_it_is_refused_and_never_run(folder, kind):
    trap = {"optimizer": Trap(folder / "sprung")}
    if kind == "torch":
        torch.save(trap, folder / "s.pt")
    else:
        (folder / "s.pt").write_bytes(pickle.dumps(trap))
    with pytest.raises(FormatError, match=r"s\.pt: expected the state of an optimiser"):
        load_state(folder / "s.pt")
    assert not (folder / "sprung").exists()


@pytest.mark.parametrize("cut", [0, 10, 200])
def test_a_state_that_was_cut_short_is_named(folder, cut):
    save_state(folder / "s.pt", {"optimizer": {}, "loss": {"a": torch.ones(100)}})
    whole = (folder / "s.pt").read_bytes()
    (folder / "s.pt").write_bytes(whole[:cut])
    with pytest.raises(FormatError, match=r"s\.pt: expected the state of an optimiser"):
        load_state(folder / "s.pt")


@pytest.mark.parametrize("content", [b"", b"not weights", None])
def test_weights_that_cannot_be_read_are_named(folder, content):
    if content is not None:
        (folder / "w.safetensors").write_bytes(content)
    with pytest.raises(FormatError, match=r"w\.safetensors: expected weights in safetensors"):
        load_weights(folder / "w.safetensors")


@pytest.mark.parametrize("write", [save_weights, save_state])
def test_no_room_names_the_file_and_keeps_the_old_one(folder, write):
    path = folder / "checkpoints" / "file"
    path.write_bytes(b"old")
    with (
        files_of_at_most(5000),
        pytest.raises(InputError, match=r"/file: expected room for [0-9,]+ bytes, got an error: "),
    ):
        write(path, {"a": torch.zeros(10_000)})
    assert path.read_bytes() == b"old"
    assert files(folder) == ["file"]


def test_a_disk_that_is_full_when_the_file_is_moved_leaves_the_old_checkpoint(folder, monkeypatch):
    write_checkpoint(folder, Checkpoint("encoder", 1, True, "checkpoints/a"))
    before = (folder / "checkpoint.json").read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(InputError, match=r"checkpoint\.json: expected room .* No space left on device"):
        write_checkpoint(folder, Checkpoint("encoder", 2, True, "checkpoints/b"))
    monkeypatch.undo()
    assert (folder / "checkpoint.json").read_bytes() == before
    assert list(folder.glob(".calibrant-*")) == []


def test_what_a_killed_run_left_behind_is_removed_and_nothing_else(folder):
    fill(folder, ".calibrant-12.safetensors", "a.safetensors")
    (folder / ".calibrant-34.json").write_text("half")
    (folder / "checkpoint.json").write_text(json.dumps({}))
    remove_remains(folder)
    assert files(folder) == ["a.safetensors"]
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint.json", "checkpoints"]


def test_bytes_are_written_whole(folder):
    write_file(folder / "a", b"12345" * 1000)
    assert (folder / "a").read_bytes() == b"12345" * 1000
