import os
import stat

import pytest

from calibrant.data import Predictions, save_predictions
from calibrant.data.files import FORMATS
from calibrant.data.formats import csv, npz, parquet, safetensors
from calibrant.errors import InputError
from calibrant.files import atomic_path

SAID = Predictions(probs=[[0.5, 0.5]], labels=[0])
MODULES = {".npz": npz, ".parquet": parquet, ".csv": csv, ".safetensors": safetensors}


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

    def fail(path, _):
        path.write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr(MODULES[suffix], "write", fail)
    with pytest.raises(OSError, match="disk full"):
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
