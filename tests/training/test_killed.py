"""A run that was killed for real, in the middle of an epoch and of a file, goes on to the same end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from calibrant.training import load_rows, train
from calibrant.training.config.toml import load_first_run
from tests.training.killed_runs import CHANGES
from tests.training.small import changed, differing, final_weights, untimed

pytestmark = [pytest.mark.slow, pytest.mark.long]

ROOT = Path(__file__).parents[2]


def test_a_run_that_was_killed_five_times_ends_with_the_same_weights_and_rows(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.training.killed_runs", str(tmp_path)], cwd=ROOT, start_new_session=True
    )
    try:
        assert process.wait(timeout=300) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(load_first_run(changed(*CHANGES)), whole)
    assert differing(final_weights(whole), final_weights(killed)) == []
    for first, second in zip(load_rows(whole), load_rows(killed), strict=True):
        assert untimed(first) == untimed(second)
    assert json.loads((killed / "results.json").read_text())["chosen"]
    assert list(killed.rglob(".calibrant-*")) == []
