"""``calibrant train`` killed by SIGKILL in several places, each time resumed; run as a module of its own.

Each run is a process of its own, forked after the imports, which take far longer than the runs.
"""

import os
import signal
import sys
import time
from pathlib import Path

import calibrant.files
import calibrant.training.checkpoint
import calibrant.training.stage
from calibrant.cli import main
from tests.training.small import arguments, import_everything

CHANGES = (
    "training.loss=adafocal(n_bins=5)",
    "model.options.dropout=0.3",
    "training.epochs=6",
    "training.keep=nll",
    'posthoc.methods=["temperature"]',
    "hardware.threads=1",
)


def stall_in_step(epoch: int, step: int, marker: Path) -> None:
    """Stop for good in the middle of an epoch, and say so."""
    original = calibrant.training.stage.Trainer._step

    def stalling(self, *place):  # as the original
        if place[:2] == (epoch, step):
            marker.touch()
            time.sleep(600)
        return original(self, *place)

    calibrant.training.stage.Trainer._step = stalling


def stall_in_write(name: str, marker: Path) -> None:
    """Stop for good when half of a file is on the disk, and say so."""
    original = calibrant.files.write_file

    def stalling(path, content):  # as the original
        if path.name == name:
            half = path.with_name(f".calibrant-0{path.suffix}")
            data = content.encode() if isinstance(content, str) else content
            half.write_bytes(data[: len(data) // 2])
            marker.touch()
            time.sleep(600)
        return original(path, content)

    setattr(calibrant.training.checkpoint, "write_file", stalling)  # noqa: B010  # mypy asks for an export


def start(folder: Path, *more: str, stall=None) -> int:  # a function without arguments, or none
    """Begin a run and return its process."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        if stall is not None:
            stall()
        sys.argv = ["calibrant", "train", *arguments(*CHANGES), "--out", str(folder), *more]
        main()
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    finally:
        os._exit(code)


def kill_when(child: int, ready) -> None:  # a function without arguments
    """Kill the run at a moment, which must come before its end."""
    try:
        while not ready():
            assert os.waitpid(child, os.WNOHANG) == (0, 0), "the run ended before it was killed"
            time.sleep(0.005)
    finally:
        os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def lines(path: Path) -> int:
    """How many epochs were written down."""
    return len(path.read_text().splitlines()) if path.exists() else 0


def run(folder: Path) -> None:
    """Make a run that is killed five times."""
    import_everything()
    killed = folder / "killed"
    for number, stall in enumerate(
        (
            lambda: stall_in_step(2, 3, folder / "0"),
            lambda: stall_in_write("classifier-0003.safetensors", folder / "1"),
            lambda: stall_in_write("classifier-0004.pt", folder / "2"),
            lambda: stall_in_write("checkpoint.json", folder / "3"),
        )
    ):
        resume = ["--resume"] if number else []
        marker = folder / str(number)
        kill_when(start(killed, *resume, stall=stall), marker.exists)
    # And once where nothing stands still: wherever it is after its next epoch.
    done = lines(killed / "metrics.jsonl")
    kill_when(start(killed, "--resume"), lambda: lines(killed / "metrics.jsonl") > done)
    last = start(killed, "--resume")
    assert os.waitstatus_to_exitcode(os.waitpid(last, 0)[1]) == 0


if __name__ == "__main__":
    run(Path(sys.argv[1]))
