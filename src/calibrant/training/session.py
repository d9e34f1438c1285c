"""What the stages of a run share: the hardware, the folder, the records and the last checkpoint."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from lightning_fabric import Fabric

from calibrant.errors import CalibrantError, FormatError, InputError
from calibrant.training.checkpoint import MANIFEST, Checkpoint, fill, read_checkpoint
from calibrant.training.config.settings import Config
from calibrant.training.network import Network
from calibrant.training.records import Records

ENCODER: Final = "encoder"
CLASSIFIER: Final = "classifier"


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
        self._check(last)
        self.checkpoint = last
        self.records.resume(last)
        # The checkpoint of joint training has a projection too, which its stage makes first.
        joint = self.config.encoder is not None and self.config.first_stage is None
        if last.finished or (last.stage == CLASSIFIER and not joint):
            fill(network, self.folder / last.weights)

    def _check(self, checkpoint: Checkpoint) -> None:
        """Refuse a checkpoint of a stage or an epoch that the configuration does not have."""
        path = self.folder / MANIFEST
        settings = self.config.first_stage if checkpoint.stage == ENCODER else self.config.training
        if settings is None:
            raise FormatError(f"{path}: stage: expected a stage of this run, got {checkpoint.stage!r}")
        last = settings.epochs if checkpoint.finished else settings.epochs - 1
        if checkpoint.epoch > last or (checkpoint.finished and checkpoint.epoch < last):
            raise FormatError(
                f"{path}: epoch: expected {'' if checkpoint.finished else 'at most '}{last}, as the "
                f"{checkpoint.stage} has {settings.epochs} epochs, got {checkpoint.epoch}"
            )

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
