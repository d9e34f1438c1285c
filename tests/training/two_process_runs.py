"""``calibrant train`` on two processes, for one loss after the other; run as a module of its own.

Fabric starts the second process by the same command, so both go through all of this together. The last run is
killed; started again with a second argument, the module goes on with it.
"""

import errno
import json
import os
import signal
import sys
from pathlib import Path

import torch

import calibrant.training.checkpoint
import calibrant.training.stage
from calibrant.cli import app
from calibrant.errors import CalibrantError
from calibrant.losses import AdaFocalLoss
from tests.training import users_models
from tests.training.small import arguments

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
}
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
    """Do what the command line does; errors come through."""
    app(["train", *arguments(*changes, *TWO), "--out", str(folder)], standalone_mode=False)


def run(folder: Path) -> None:
    """Train with every loss, then runs that cannot go on, then one that is killed."""
    torch.set_num_threads(1)
    updates = noted_updates()
    changed = noted_changes(folder)
    for name, changes in RUNS.items():
        command(folder / name, *COMMON, *changes)
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
    command(folder / "whole", *COMMON, *LONG)
    (folder / f"changed-{rank}.json").write_text(json.dumps(sorted(changed)))
    if rank == 1:
        die_in(*KILLED_IN)
    command(folder / "killed", *COMMON, *LONG)


def go_on(folder: Path) -> None:
    """Take up the run that was killed, as it was begun."""
    torch.set_num_threads(1)
    app(["train", "--resume", "--out", str(folder / "killed")], standalone_mode=False)


def refused(out: Path, rank: int, *changes: str, told_in: Path | None = None) -> None:
    """Begin a run that cannot go on, and write down what this process was told."""
    try:
        command(out, *changes)
    except CalibrantError as error:
        ((told_in or out.parent) / f"{out.name}-{rank}.txt").write_text(str(error))


def with_a_full_disk(out: Path, rank: int) -> None:
    """Begin a run that has no room for its second checkpoint."""
    original = calibrant.training.checkpoint.os.fsync

    def full(descriptor: int) -> None:
        if (out / "checkpoints" / "classifier-0002.safetensors").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(descriptor)

    calibrant.training.checkpoint.os.fsync = full
    refused(out, rank, *COMMON)
    calibrant.training.checkpoint.os.fsync = original


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
    (go_on if sys.argv[2:] else run)(Path(sys.argv[1]))
