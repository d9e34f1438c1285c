"""Files: written whole or not at all, with errors that name them; JSON and dataclasses."""

import dataclasses
import errno
import json
import math
import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from calibrant.data import Predictions, save_predictions
from calibrant.data.files import FORMATS
from calibrant.errors import FormatError, InputError
from calibrant.files import (
    Count,
    Share,
    atomic_path,
    matching,
    parse_json,
    parse_toml,
    read_dataclass,
    read_json,
    read_value,
    reading,
    without_nan,
    write_file,
)

SAID = Predictions(probs=[[0.5, 0.5]], labels=[0])


def test_nothing_is_at_the_target_before_the_end(tmp_path):
    target = tmp_path / "a.txt"
    with atomic_path(target) as temporary:
        temporary.write_text("new")
        assert not target.exists()
        assert (temporary.parent, temporary.suffix) == (tmp_path, ".txt")
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file_and_no_temporary(tmp_path, failure):
    target = tmp_path / "a.txt"
    target.write_text("old")

    def write_half():
        with atomic_path(target) as temporary:
            temporary.write_text("half")
            raise failure

    with pytest.raises(failure):
        write_half()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_failure_in_the_middle_of_saving_leaves_the_old_predictions(tmp_path, monkeypatch, suffix):
    target = tmp_path / f"preds{suffix}"
    target.write_text("old")

    def fail(file, _):
        file.path.write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr(".".join((*FORMATS[suffix], "write")), fail)
    with pytest.raises(InputError, match="disk full"):
        save_predictions(SAID, target)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("suffix", FORMATS)
def test_files_get_the_permissions_that_the_umask_allows(tmp_path, suffix):
    target = tmp_path / f"preds{suffix}"
    before = os.umask(0o027)
    try:
        save_predictions(SAID, target)
    finally:
        os.umask(before)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(InputError) as caught:
        save_predictions(SAID, tmp_path / "runs" / "preds.npz")
    assert str(caught.value) == (
        f"preds.npz: expected an existing directory, got {tmp_path / 'runs'}; create it first"
    )


def test_a_directory_is_not_overwritten(tmp_path):
    (tmp_path / "preds.npz").mkdir()
    with pytest.raises(InputError, match=r"^preds.npz: expected the name of a file, got a directory;"):
        save_predictions(SAID, tmp_path / "preds.npz")


def test_a_full_disk_is_one_sentence_that_names_the_file(tmp_path, monkeypatch):
    target = tmp_path / "a.txt"
    target.write_text("old")

    def fail(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InputError) as caught:
        write_file(target, "new")
    assert str(caught.value) == (
        f"{target}: expected room for 3 bytes, got an error: {os.strerror(errno.ENOSPC)}"
    )
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 2.68 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000000000 bytes"),
        OSError(errno.EIO, os.strerror(errno.EIO)),
        PermissionError(errno.EACCES, os.strerror(errno.EACCES), "elsewhere.csv"),
        TimeoutError("the store did not answer"),
        AttributeError("'NoneType' object has no attribute 'shape'"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_is_not_about_the_content_of_a_file_remains_what_it_is(error):
    with pytest.raises(type(error)) as caught, reading("a.csv", "a table"):
        raise error
    assert caught.value is error
    if isinstance(error, OSError):
        assert error.filename == ("elsewhere.csv" if error.errno == errno.EACCES else "a.csv")


def test_what_proves_a_bad_file_is_one_sentence_that_names_it():
    with pytest.raises(FormatError) as caught, reading("a.csv", "a table"):
        raise KeyError("line 1\nline 2")
    assert str(caught.value).startswith("a.csv: expected a table, got a file that cannot be read as such (")
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=r"^a.csv: labels: expected numbers$"), reading("a.csv", "a table"):
        raise InputError("labels: expected numbers")


def test_json_has_no_nan_at_any_depth():
    value = {"a": math.nan, "b": [math.inf, (1.0, -math.inf)], "c": {"d": math.nan}, "e": "nan", "f": 3}
    assert without_nan(value) == {"a": None, "b": [None, [1.0, None]], "c": {"d": None}, "e": "nan", "f": 3}


@dataclass(frozen=True)
class Inner:
    """A table inside another."""

    size: int
    share: float | None = None

    def __post_init__(self):
        if self.size < 0:
            raise InputError(f"size: expected a number from 0, got {self.size}")


@dataclass(frozen=True)
class Outer:
    """One field for each kind of annotation."""

    inner: Inner
    word: Literal["low", "high"] = "low"
    pair: tuple[float, float] = (0.0, 1.0)
    names: tuple[str | int, ...] = ()
    parts: Mapping[str, Inner] = field(default_factory=dict)
    flag: bool = False
    rest: Any = None


def test_a_dataclass_comes_back_from_json():
    outer = Outer(Inner(1, 0.5), "high", (2.0, 3.0), ("a", 4), {"b": Inner(2)}, True, [{"c": None}])
    assert read_dataclass(Outer, json.loads(json.dumps(dataclasses.asdict(outer)))) == outer
    assert read_dataclass(Outer, {"inner": {"size": 1, "share": 2}}) == Outer(Inner(1, 2.0))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "Outer: expected 'inner', got none"),
        ([], "page: expected a table, got []"),
        ({"inner": {}}, "inner: expected 'size', got none"),
        ({"inner": {"size": 1.5}}, "inner.size: expected a whole number, got 1.5"),
        ({"inner": {"size": True}}, "inner.size: expected a whole number, got True"),
        ({"inner": {"size": None}}, "inner.size: expected a whole number, got None"),
        ({"inner": {"size": 1, "share": math.nan}}, "inner.share: expected a finite number, got nan"),
        ({"inner": {"size": -1}}, "inner.size: expected a number from 0, got -1"),
        ({"inner": {"sise": 1}}, "inner.sise: expected a key of [inner] (size, share), got 'sise'; did you"),
        ({"inner": {"size": 1}, "word": "lo"}, "word: expected 'low' or 'high', got 'lo'; did you mean"),
        ({"inner": {"size": 1}, "pair": [1]}, "pair: expected a list of 2, got [1]"),
        ({"inner": {"size": 1}, "names": "ab"}, "names: expected a list, got 'ab'; write it as"),
        ({"inner": {"size": 1}, "names": [0.5]}, "names: expected text or a whole number, got 0.5"),
        ({"inner": {"size": 1}, "flag": 1}, "flag: expected true or false, got 1"),
        ({"inner": {"size": 1}, "parts": {"b": 1}}, "parts.b: expected a table, got 1"),
    ],
)
def test_a_value_that_does_not_fit_is_one_sentence_that_names_its_place(table, message):
    with pytest.raises(InputError) as caught:
        read_dataclass(Outer, table, "page" if table == [] else "", error=InputError)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Count, -1, "a: expected a number of at least 0, got -1"),
        (Count, 2**63, "a: expected a number of at most 64 bits, got 9223372036854775808"),
        (float, 10**400, "a: expected a number of at most 64 bits, got 1000"),
        (Share, 1.5, "a: expected a number from 0 to 1, got 1.5"),
        (Share | None, "x", "a: expected a number, got 'x'"),
        (dict[str, Count], {"b": -1}, "a.b: expected a number of at least 0, got -1"),
        (tuple[float, ...], [0.5, math.inf], "a: expected a finite number, got inf"),
        (int | float | None, math.nan, "a: expected a finite number, got nan"),
        (Annotated[str, matching("[a-z]+", "small letters")], "B\n", r"a: expected small letters, got 'B\n'"),
        (int, [[[[[1]]]]] * 10**5, "a: expected a whole number, got [[[[...]]], "),
    ],
)
def test_bounds_of_values_are_checked(kind, value, message):
    with pytest.raises(FormatError) as caught:
        read_value(kind, value, "a")
    assert str(caught.value).startswith(message)
    assert len(str(caught.value)) < 200


def test_deep_and_endless_files_are_refused(tmp_path):
    for deep in ("[" * 101 + "]" * 101, "[" * 10**5, '{"a":' * 10**5):
        with pytest.raises(json.JSONDecodeError):
            parse_json(deep)
    assert parse_json("[" * 100 + "]" * 100)
    for text in ("a = " + "[" * 101 + "]" * 101, "a = " + "[" * 10**4, "a = " + "9" * 5000):
        with pytest.raises(tomllib.TOMLDecodeError):
            parse_toml(text)
    os.mkfifo(tmp_path / "pipe")
    for endless in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(FormatError, match=r"expected a list, got a file that is not JSON .* no regular"):
            read_json(endless, "a list")


def test_unknown_keys_can_be_ignored():
    table = {"inner": {"size": 1, "newer": 2}, "newest": 3}
    assert read_dataclass(Outer, table, ignore_unknown=True) == Outer(Inner(1))
