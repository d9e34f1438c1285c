"""Two real processes reach what one reaches, and stop together when they cannot go on."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from calibrant.data import load_predictions
from calibrant.training import load_rows, train
from calibrant.training.checkpoint import read_checkpoint
from tests.training.small import differing, final_weights, small_config, untimed
from tests.training.two_process_runs import COMMON, KILLED_IN, LONG, RUNS, WITH_REPORT

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The folder of all runs; one was killed and resumed."""
    folder = tmp_path_factory.mktemp("two")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.training.two_process_runs", str(folder)], cwd=ROOT, env=environment
    )
    try:
        assert process.wait(timeout=600) == 0
    finally:
        process.kill()
        process.wait()
    return folder


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The same runs in this process, each made once."""
    made = {}

    def find(name):
        if name not in made:
            made[name] = train(small_config(*COMMON, *RUNS[name]), tmp_path_factory.mktemp("one") / name)
        return made[name]

    return find


def printed(folder, name):
    """What the processes of a run printed."""
    return [(folder / f"{stream}-{name}").read_text() for stream in ("stdout", "stderr")]


@pytest.mark.parametrize("name", RUNS)
def test_losses_of_every_epoch_and_the_weights_are_those_of_one_process(two, one, name):
    alone = one(name)
    metrics, dynamics = load_rows(two / name)
    assert [row["train_loss"] for row in metrics] == pytest.approx(
        [row["train_loss"] for row in alone.metrics], rel=1e-5
    )
    assert [row["val_nll"] for row in metrics] == pytest.approx(
        [row["val_nll"] for row in alone.metrics], rel=1e-4
    )
    assert [row["epoch"] for row in dynamics] == [1, 2, 3]
    found = final_weights(two / name)
    for key, value in final_weights(alone.folder).items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-4)


def test_adafocal_learns_from_the_whole_validation_set_of_which_each_process_has_a_part(two, one):
    first, second = (json.loads((two / f"updates-{rank}.json").read_text()) for rank in (0, 1))
    assert [note["samples"] for note in first] == [72] * 3
    assert [note["samples"] for note in second] == [73] * 3
    assert [note["gammas"] for note in first] == [note["gammas"] for note in second]
    for note, row in zip(first, one("adafocal").dynamics, strict=True):
        assert note["gammas"] == pytest.approx(row["adafocal"]["gammas"], rel=1e-4)
    assert first[0]["gammas"] != first[1]["gammas"]


def test_only_the_first_process_writes(two):
    first, second = (json.loads((two / f"changed-{rank}.json").read_text()) for rank in (0, 1))
    assert second == []
    for name in ("checkpoint.json", "metrics.jsonl", "model.safetensors", "predictions/test.npz"):
        assert (two / "whole" / name).exists()
    folders = {Path(path).parts[0] for path in first}
    assert folders >= {*RUNS, "one", "both", "full", "whole"}


def test_only_the_first_process_prints(two):
    out, err = printed(two, "run")
    assert out.count("Chosen: ") == len(WITH_REPORT)
    # The run that the disk was too full for came to its second epoch.
    for epoch, runs in ((1, len(RUNS) + 1), (2, len(RUNS) + 1), (3, len(RUNS))):
        assert err.count(f"classifier epoch {epoch}/3: loss") == runs
    assert "Warning" not in err


def test_predictions_hold_every_sample_once(two, one):
    for name, expected in one("cross_entropy").predictions.items():
        found = load_predictions(two / "cross_entropy" / "predictions" / f"{name}.npz")
        assert torch.equal(found.labels, expected.labels)
        torch.testing.assert_close(found.to_logits(), expected.to_logits(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("spoiled", ["one", "both"])
def test_a_loss_that_is_not_finite_stops_both_processes(two, spoiled):
    for rank in (0, 1):
        error = (two / f"{spoiled}-{rank}.txt").read_text()
        assert "expected a finite loss, got nan in epoch 1, step 3 of 5" in error


def test_a_full_disk_which_only_the_first_process_notices_stops_both(two):
    for rank in (0, 1):
        error = (two / f"full-{rank}.txt").read_text()
        assert "classifier-0002.pt: expected room for " in error
        assert "No space left on device" in error
    assert read_checkpoint(two / "full").epoch == 1


def test_a_folder_that_only_one_process_sees_is_refused_by_both(two):
    for rank in (0, 1):
        error = (two / f"apart-{rank}.txt").read_text()
        assert "folder: expected a folder that all processes see, got apart, which 1 of 2 do" in error


def test_a_run_whose_second_process_was_killed_goes_on_to_the_weights_of_one_that_was_not(two):
    _, err = printed(two, "resume")
    codes = json.loads((two / "codes.json").read_text())
    assert codes["run"] != 0
    assert codes["resume"] == 0, err
    assert err.count("classifier: resuming after epoch 2 of 4") == 1
    assert differing(final_weights(two / "whole"), final_weights(two / "killed")) == []
    for whole, resumed in zip(load_rows(two / "whole"), load_rows(two / "killed"), strict=True):
        assert len(whole) == 4
        assert untimed(whole) == untimed(resumed)


def test_a_run_of_two_processes_goes_on_with_one(two, tmp_path):
    copied = shutil.copytree(two / "begun", tmp_path / "run")
    assert read_checkpoint(copied).epoch == KILLED_IN[0] - 1
    resumed = train(small_config(*COMMON, *LONG), copied, resume=True)
    assert [row["epoch"] for row in resumed.metrics] == [1, 2, 3, 4]
    whole, _ = load_rows(two / "whole")
    assert untimed(resumed.metrics)[:2] == untimed(whole)[:2]
    # The third epoch begins with the same weights, and what is dropped is all that differs.
    assert resumed.metrics[2]["train_loss"] == pytest.approx(whole[2]["train_loss"], rel=0.2)
