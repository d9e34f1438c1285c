"""Two real processes reach what one reaches, and stop together when they cannot go on."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from calibrant.training import load_rows, train
from calibrant.training.checkpoint import read_checkpoint
from tests.training.small import final_weights, small_config
from tests.training.two_process_runs import COMMON, RUNS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The folder of all runs, and what both processes printed."""
    folder = tmp_path_factory.mktemp("two")
    out, err = folder / "stdout", folder / "stderr"
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with out.open("w") as stdout, err.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.training.two_process_runs", str(folder)],
            cwd=ROOT,
            env=environment,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=400)
        finally:
            # The second process may outlive the first, also when that has ended well.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert code == 0, err.read_text()
    return folder, out.read_text(), err.read_text()


@pytest.mark.parametrize("name", RUNS)
def test_losses_of_every_epoch_and_the_weights_are_those_of_one_process(two, tmp_path, name):
    one = train(small_config(*COMMON, *RUNS[name]), tmp_path / "one")
    metrics, dynamics = load_rows(two[0] / name)
    assert [row["train_loss"] for row in metrics] == pytest.approx(
        [row["train_loss"] for row in one.metrics], rel=1e-5
    )
    assert [row["val_nll"] for row in metrics] == pytest.approx(
        [row["val_nll"] for row in one.metrics], rel=1e-4
    )
    assert [row["epoch"] for row in dynamics] == [1, 2, 3]
    found = final_weights(two[0] / name)
    for key, value in final_weights(one.folder).items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-4)


def test_only_the_first_process_prints(two):
    _, out, err = two
    assert out.count("Chosen: ") == len(RUNS)
    # The run that the disk was too full for came to its second epoch.
    for epoch, runs in ((1, len(RUNS) + 1), (2, len(RUNS) + 1), (3, len(RUNS))):
        assert err.count(f"classifier epoch {epoch}/3: loss") == runs
    assert "Warning" not in err


def test_predictions_hold_every_sample_once(two, tmp_path):
    from calibrant.data import load_predictions

    one = train(small_config(*COMMON, *RUNS["cross_entropy"]), tmp_path / "one")
    for name, expected in one.predictions.items():
        found = load_predictions(two[0] / "cross_entropy" / "predictions" / f"{name}.npz")
        assert torch.equal(found.labels, expected.labels)
        torch.testing.assert_close(found.to_logits(), expected.to_logits(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("spoiled", ["one", "both"])
def test_a_loss_that_is_not_finite_stops_both_processes(two, spoiled):
    for rank in (0, 1):
        told = (two[0] / f"{spoiled}-{rank}.txt").read_text()
        assert "expected a finite loss, got nan in epoch 1, step 3 of 5" in told


def test_a_full_disk_which_only_the_first_process_notices_stops_both(two):
    for rank in (0, 1):
        told = (two[0] / f"full-{rank}.txt").read_text()
        assert "classifier-0002.pt: expected room for " in told
        assert "No space left on device" in told
    assert read_checkpoint(two[0] / "full").epoch == 1
