"""What the stages of a run share: where it runs, where it writes, and how far it is."""

from collections.abc import Callable
from pathlib import Path

from lightning_fabric import Fabric

from calibrant.errors import CalibrantError, InputError
from calibrant.training.checkpoint import Checkpoint, fill, read_checkpoint
from calibrant.training.config.settings import Config
from calibrant.training.network import Network
from calibrant.training.records import Records
from calibrant.training.watch import Watcher

ENCODER, CLASSIFIER = "encoder", "classifier"


class Session:
    """A run on its way.

    Args:
        fabric: Where it runs.
        folder: Where it writes.
        config: What was asked for.
        watcher: Whoever is told.
    """

    def __init__(self, fabric: Fabric, folder: Path, config: Config, watcher: Watcher) -> None:
        self.fabric = fabric
        self.folder = folder
        self.config = config
        self.watcher = watcher
        self.checkpoint: Checkpoint | None = None
        board = config.output.tensorboard and fabric.is_global_zero
        self.records = Records(folder, (ENCODER, CLASSIFIER), tensorboard=board)

    def take_up(self, network: Network) -> None:
        """Go on from the last checkpoint, if there is one."""
        last = read_checkpoint(self.folder)
        if last is None:
            return
        self.checkpoint = last
        self.records.resume(last)
        if last.finished or last.stage == CLASSIFIER:
            fill(network, self.folder / last.weights)

    def write(self, work: Callable[[], None]) -> None:
        """Let the first process write something; if it cannot, all processes stop, and none waits for it."""
        failed: CalibrantError | None = None
        if self.fabric.is_global_zero:
            try:
                work()
            except CalibrantError as error:
                failed = error
        told = self.fabric.broadcast(None if failed is None else str(failed))
        if told is not None:
            raise failed or InputError(told)

    def is_over(self, stage: str) -> bool:
        """Whether a stage needs no more training."""
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
