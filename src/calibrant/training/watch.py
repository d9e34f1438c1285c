"""What a run tells whoever watches it; the command line draws progress bars of it."""

from collections.abc import Mapping
from typing import Any

from lightning_fabric.utilities.rank_zero import rank_zero_only


class Watcher:
    """Takes note of nothing; subclasses do."""

    def doing(self, what: str) -> None:
        """Something that takes a moment begins."""

    def started(self, stage: str, *, epochs: int, steps: int, done: int) -> None:
        """A stage begins: its number of epochs, steps of each, and how many epochs are done already."""

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        """A step was made; on GPUs the loss is read, and this called, only now and then."""

    def measured(self, row: Mapping[str, Any]) -> None:
        """An epoch ended, and these are its measures."""


def is_first_process() -> bool:
    """Whether this is the process that writes and prints; known before the others have been started."""
    return bool(rank_zero_only.rank == 0)  # type: ignore[attr-defined]  # Fabric sets it when it is imported
