"""What the stages of a run share: the hardware, the folder, the records and the last checkpoint."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning_fabric import Fabric

from calibrant.errors import CalibrantError, InputError
from calibrant.training.checkpoint import Checkpoint, fill, read_checkpoint
from calibrant.training.config.settings import Config
from calibrant.training.network import Network
from calibrant.training.records import Records

ENCODER, CLASSIFIER = "encoder", "classifier"


class Watcher:
    """Receives the progress of a run and ignores it; subclasses show it."""

    def doing(self, what: str) -> None:
        """A step other than training begins."""

    def started(self, stage: str, *, epochs: int, steps: int, done: int) -> None:
        """A stage begins: its number of epochs, the steps of each, and the epochs that are done already."""

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        """A step is done; on GPUs this is called for some steps only, because reading the loss is slow."""

    def epoch_ended(self, row: Mapping[str, Any]) -> None:
        """An epoch has ended with these measures."""


class Session:
    """A run in progress."""

    def __init__(self, fabric: Fabric, folder: Path, config: Config, watcher: Watcher) -> None:
        self.fabric = fabric
        self.folder = folder
        self.config = config
        self.watcher = watcher
        self.checkpoint: Checkpoint | None = None
        board = config.output.tensorboard and fabric.is_global_zero
        self.records = Records(folder, (ENCODER, CLASSIFIER), tensorboard=board)

    def resume(self, network: Network) -> None:
        """Load the last checkpoint, if there is one."""
        last = read_checkpoint(self.folder)
        if last is None:
            return
        self.checkpoint = last
        self.records.resume(last)
        if last.finished or last.stage == CLASSIFIER:
            fill(network, self.folder / last.weights)

    def write(self, work: Callable[[], None]) -> None:
        """Let the first process write; if it fails, all processes stop, so that none waits for it."""
        failed: CalibrantError | None = None
        if self.fabric.is_global_zero:
            try:
                work()
            except CalibrantError as error:
                failed = error
        message = self.fabric.broadcast(None if failed is None else str(failed))
        if message is not None:
            raise failed or InputError(message)

    def is_over(self, stage: str) -> bool:
        """Return whether a stage is finished."""
        last = self.checkpoint
        if last is None:
            return False
        return (last.stage == stage and last.finished) or (stage == ENCODER and last.stage == CLASSIFIER)

    def last_good(self) -> str:
        """Name the checkpoint that a failed run can go back to."""
        last = self.checkpoint
        if last is None:
            return "there is no checkpoint yet"
        return f"the last good checkpoint is {self.folder / last.weights}, {last.stage} epoch {last.epoch}"
