"""``calibrant train`` on two processes, for one loss after the other; run as a module of its own.

Fabric starts the second process by the same command, so both go through all of this together.
"""

import errno
import os
import sys
from pathlib import Path

import torch

import calibrant.training.checkpoint
from calibrant.cli import app
from calibrant.errors import CalibrantError
from tests.training import users_models
from tests.training.small import arguments

# The global batch is divided by two; a last one of 24 samples is left over.
COMMON = ("data.limit=224", "training.epochs=3", 'posthoc.methods=["temperature"]')
RUNS = {
    "cross_entropy": ("training.loss=cross_entropy", "training.augment=true"),
    "seca": ("training.loss=seca", "training.augment=false"),
    "adafocal": ("training.loss=adafocal(n_bins=5)", "training.augment=true"),
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


def command(folder: Path, *changes: str) -> None:
    """Do what the command line does; errors come through."""
    app(["train", *arguments(*changes, *TWO), "--out", str(folder)], standalone_mode=False)


def run(folder: Path) -> None:
    """Train with every loss, then runs that cannot go on."""
    torch.set_num_threads(1)
    for name, changes in RUNS.items():
        command(folder / name, *COMMON, *changes)
    rank = int(os.environ["LOCAL_RANK"])
    for name, spoiled in (("one", 3 if rank == 1 else None), ("both", 3)):
        users_models.SPOILED_FROM["training"] = spoiled
        try:
            command(folder / name, *COMMON, *FRAGILE)
        except CalibrantError as error:
            (folder / f"{name}-{rank}.txt").write_text(str(error))
    original = calibrant.training.checkpoint.os.fsync

    def full(descriptor: int) -> None:
        if (folder / "full" / "checkpoints" / "classifier-0002.safetensors").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(descriptor)

    calibrant.training.checkpoint.os.fsync = full
    try:
        command(folder / "full", *COMMON)
    except CalibrantError as error:
        (folder / f"full-{rank}.txt").write_text(str(error))


if __name__ == "__main__":
    run(Path(sys.argv[1]))
