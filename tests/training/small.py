"""Runs that take a second: few digits, a small network, no TensorBoard."""

from importlib import import_module

import torch

from calibrant.training import load_config
from calibrant.training.checkpoint import load_weights
from calibrant.training.session import Watcher

CHANGES = (
    "data.limit=200",
    "model.options.hidden=[16]",
    "training.epochs=3",
    "training.batch_size=50",
    "training.optimizer.lr=0.05",
    "output.tensorboard=false",
    "output.dynamics=100",
    "hardware.accelerator=cpu",
    "hardware.devices=1",
)
ENCODER = (
    "encoder.loss=supervised_contrastive(temperature=0.1)",
    "encoder.epochs=3",
    "encoder.batch_size=50",
    "encoder.projection=8",
    "encoder.optimizer.lr=0.05",
)


def changed(*changes):
    """What makes a run small, changed; another model has its own options."""
    other = any(change.startswith("model.name=") and change != "model.name=mlp" for change in changes)
    return [*(each for each in CHANGES if not (other and each.startswith("model.options"))), *changes]


def small_config(*changes):
    """The small run, changed."""
    return load_config(changes=changed(*changes))


def arguments(*changes):
    """The small run, changed, as arguments of ``calibrant train``."""
    return [word for change in changed(*changes) for word in ("--set", change)]


def import_everything():
    """Import what ``calibrant train`` imports when it needs it, so that forked processes have it."""
    for name in ("calibrant.cli.training_watchers", "calibrant.training.outcome"):
        import_module(name)
    for name in ("altair", "pandas", "sklearn.datasets", "tomli_w", "vl_convert"):
        import_module(name)


def untimed(rows):
    """Rows of epochs without the seconds that they took."""
    return [{name: value for name, value in row.items() if "seconds" not in name} for row in rows]


def final_weights(folder):
    """The weights of the network of a finished run."""
    return load_weights(folder / "model.safetensors")


def differing(first, second):
    """Names of the weights that differ in any bit."""
    assert first.keys() == second.keys()
    return [name for name, value in first.items() if not torch.equal(value, second[name])]


class BrokenOffError(Exception):
    """The end of a process, as far as a test can bring it about without ending itself."""


class CrashAfter(Watcher):
    """Ends the run when an epoch of a stage was measured, or before a step of it is made."""

    def __init__(self, stage, epoch, step=None):
        self.place, self.step, self.stage = (stage, epoch), step, ""

    def started(self, stage, **_):
        self.stage = stage

    def stepped(self, epoch, step, loss):
        del loss
        if ((self.stage, epoch), step) == (self.place, self.step):
            raise BrokenOffError

    def epoch_ended(self, row):
        if self.step is None and (row["stage"], row["epoch"]) == self.place:
            raise BrokenOffError
