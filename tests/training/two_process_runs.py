"""``calibrant train`` on two processes, for one loss after the other; run as a module of its own.

Fabric starts the second process by the same command, so both go through all of :func:`run` together. Its last
run is killed, and two other processes resume it.
"""

import errno
import json
import os
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch
from lightning_fabric.utilities.rank_zero import rank_zero_only

import calibrant.files
import calibrant.training.stage
from calibrant.cli import app
from calibrant.cli.training_watchers import watching
from calibrant.errors import CalibrantError
from calibrant.losses import AdaFocalLoss
from calibrant.training import train
from tests.training import users_models
from tests.training.small import arguments, import_everything, small_config

# The global batch is divided by two; a last one of 24 samples is left over.
COMMON = ("data.limit=224", "training.epochs=3", 'posthoc.methods=["temperature"]')
RUNS = {
    "cross_entropy": ("training.loss=cross_entropy", "training.augment=true"),
    "seca": ("training.loss=seca", "training.augment=false"),
    # 145 validation samples are more for one process than for the other.
    "adafocal": ("training.loss=adafocal(n_bins=5)", "training.augment=true", "data.validation=0.101"),
    "refcal": (
        "encoder.loss=supervised_contrastive(temperature=0.1)",
        "encoder.epochs=2",
        "encoder.batch_size=50",
        "encoder.projection=8",
        "encoder.optimizer.lr=0.05",
    ),
    "joint": ("encoder.joint=0.5", "encoder.projection=8", "encoder.views_by=colour", "training.loss=seca"),
}
WITH_REPORT = ("cross_entropy",)
TWO = ("hardware.devices=2", "hardware.strategy=ddp", "hardware.accelerator=cpu")
FRAGILE = ("model.name=tests.training.users_models:Fragile",)
LONG = (
    "model.name=tests.training.users_models:Random",
    "training.loss=adafocal(n_bins=5)",
    "training.epochs=4",
    "training.keep=nll",
    "data.validation=0.101",
)
KILLED_IN = (3, 2)  # epoch and step


def command(folder: Path, *changes: str) -> None:
    """Do what the command line does with an empty configuration; errors come through."""
    config = folder.with_suffix(".toml")
    config.touch()
    app(["train", str(config), *arguments(*changes, *TWO), "--out", str(folder)], standalone_mode=False)


def only_train(folder: Path, *changes: str) -> None:
    """Train and show the progress as the command line does, without post-hoc methods and report."""
    with watching(visible=True) as watcher:
        train(small_config(*changes, *TWO), folder, watcher=watcher)


def run(folder: Path) -> None:
    """Train with every loss, then runs that cannot go on, then one that is killed."""
    updates = noted_updates()
    changed = noted_changes(folder)
    for name, changes in RUNS.items():
        (command if name in WITH_REPORT else only_train)(folder / name, *COMMON, *changes)
    rank = int(os.environ["LOCAL_RANK"])
    (folder / f"updates-{rank}.json").write_text(json.dumps(updates))
    for name, spoiled in (("one", 3 if rank == 1 else None), ("both", 3)):
        users_models.SPOILED_FROM["training"] = spoiled
        refused(folder / name, rank, *COMMON, *FRAGILE)
    users_models.SPOILED_FROM["training"] = None
    with_a_full_disk(folder / "full", rank)
    # As if each process had a disk of its own.
    own = folder / f"machine-{rank}"
    own.mkdir()
    os.chdir(own)
    refused(Path("apart"), rank, *COMMON, told_in=folder)
    os.chdir(Path(__file__).parents[2])
    only_train(folder / "whole", *COMMON, *LONG)
    (folder / f"changed-{rank}.json").write_text(json.dumps(sorted(changed)))
    if rank == 1:
        die_in(*KILLED_IN)
    only_train(folder / "killed", *COMMON, *LONG)


def resume(folder: Path, rank: int, port: int) -> None:
    """Resume the run that was killed, as one of two processes that something else than Fabric has started."""
    place = {"LOCAL_RANK": rank, "NODE_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    setattr(rank_zero_only, "rank", rank)  # noqa: B010  # as if it had been imported only now
    factory = ["--factory", "tests.training.users_models:Random"]
    app(["train", "--resume", *factory, "--out", str(folder / "killed")], standalone_mode=False)


def start(name: str, folder: Path, work: Callable[[], None]) -> int:
    """Do something in a forked process with files for what it prints, and return the process."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.setsid()
        for descriptor, stream in ((1, "stdout"), (2, "stderr")):
            file = os.open(folder / f"{stream}-{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(file, descriptor)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ended(child: int) -> int:
    """Wait for a process, at most for minutes, end what it has started, and return its exit code."""
    deadline = time.monotonic() + 240
    while (result := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode((result if result[0] else os.waitpid(child, 0))[1])


def main(folder: Path) -> None:
    """Make all runs in processes that are forked after the imports, which take far longer than the runs."""
    import_everything()
    codes = {"run": ended(start("run", folder, lambda: run(folder)))}
    if (folder / "killed").exists():
        shutil.copytree(folder / "killed", folder / "begun")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = [start("resume", folder, partial(resume, folder, rank, port)) for rank in (0, 1)]
        codes["resume"] = max(ended(child) for child in ranks)
    (folder / "codes.json").write_text(json.dumps(codes))


def refused(out: Path, rank: int, *changes: str, told_in: Path | None = None) -> None:
    """Begin a run that cannot go on, and write down the error of this process."""
    try:
        only_train(out, *changes)
    except CalibrantError as error:
        ((told_in or out.parent) / f"{out.name}-{rank}.txt").write_text(str(error))


def with_a_full_disk(out: Path, rank: int) -> None:
    """Begin a run that has no room for its second checkpoint."""
    original = os.fsync

    def full(descriptor) -> None:
        if (out / "checkpoints" / "classifier-0002.safetensors").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(descriptor)

    os.fsync = full  # type: ignore[assignment]
    refused(out, rank, *COMMON)
    os.fsync = original


def noted_updates() -> list[dict[str, object]]:
    """Note how much of validation each update of AdaFocal is given here, and the exponents after it."""
    original, notes = AdaFocalLoss.update, []

    def noting(self, logits=None, labels=None):  # as the original
        original(self, logits, labels)
        notes.append({"samples": len(labels), "gammas": self.gammas.tolist()})

    AdaFocalLoss.update = noting
    return notes


def noted_changes(folder: Path) -> set[str]:
    """Note the files below the folders of runs that this process opens to write, moves, makes or removes."""
    changed = set()

    def note(event: str, details: tuple) -> None:
        if event == "open":
            writes = details[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        else:
            writes = event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link")
        if writes and isinstance(details[0], (str, Path)):
            path = Path(details[0])
            if path.is_relative_to(folder) and len(path.relative_to(folder).parts) > 1:
                changed.add(str(path.relative_to(folder)))

    sys.addaudithook(note)
    return changed


def die_in(epoch: int, step: int) -> None:
    """Be killed in the middle of an epoch, as by a machine that runs out of memory."""
    original = calibrant.training.stage.Trainer._step

    def dying(self, *place):  # as the original
        if place[:2] == (epoch, step):
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, *place)

    calibrant.training.stage.Trainer._step = dying


if __name__ == "__main__":
    torch.set_num_threads(1)
    # The second process, which Fabric has started, goes through the runs with the first.
    (run if "LOCAL_RANK" in os.environ else main)(Path(sys.argv[1]))
