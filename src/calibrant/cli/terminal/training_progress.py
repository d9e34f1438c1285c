"""Progress of training: two bars on a terminal, one line per epoch elsewhere."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from calibrant.training.watch import Watcher, is_first_process


@contextmanager
def watching(*, visible: bool) -> Iterator[Watcher]:
    """Give a watcher that shows what a run tells, if it is to be seen; of several processes one shows it."""
    console = Console(stderr=True)
    if not visible or not is_first_process():
        yield Watcher()
    elif not console.is_terminal:
        yield Lines()
    else:
        columns = (BarColumn(), TextColumn("{task.completed}/{task.total}"), TimeRemainingColumn())
        with Progress(
            TextColumn("{task.description}"), *columns, TextColumn("{task.fields[told]}"), console=console
        ) as progress:
            yield Bars(progress)


class Bars(Watcher):
    """One bar for the epochs of a stage and one for the steps of an epoch."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.epochs = progress.add_task("starting", total=None, told="")
        self.steps = progress.add_task("step", total=None, told="", visible=False)

    def doing(self, what: str) -> None:
        """Say what is being done."""
        self.progress.update(self.epochs, description=what)
        self.progress.update(self.steps, visible=False)

    def started(self, stage: str, *, epochs: int, steps: int, done: int) -> None:
        """Begin the bars of a stage."""
        self.progress.reset(self.epochs, total=epochs, completed=done, description=f"{stage}, epoch", told="")
        self.progress.reset(self.steps, total=steps, description="step", told="", visible=True)

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        """Move the bar of steps."""
        del epoch
        self.progress.update(self.steps, completed=step, told=f"loss {loss:.4f}")

    def measured(self, row: Mapping[str, Any]) -> None:
        """Move the bar of epochs."""
        self.progress.update(self.epochs, completed=row["epoch"], told=_told(row))


class Lines(Watcher):
    """One line per epoch, for logs."""

    def __init__(self) -> None:
        self.stage, self.of = "", 0

    def started(self, stage: str, *, epochs: int, steps: int, done: int) -> None:
        """Remember the stage."""
        self.stage, self.of = stage, epochs
        if done:
            print(f"{stage}: going on after epoch {done} of {epochs}, {steps} steps each", file=sys.stderr)

    def measured(self, row: Mapping[str, Any]) -> None:
        """Print what was measured."""
        told = f"{row['stage']} epoch {row['epoch']}/{self.of}: loss {row['train_loss']:.4f}, {_told(row)}"
        print(f"{told}, {row['seconds']:.1f} s", file=sys.stderr, flush=True)


def _told(row: Mapping[str, Any]) -> str:
    return (
        f"validation accuracy {100 * row['val_accuracy']:.2f} %, NLL {row['val_nll']:.4f}, "
        f"ECE {100 * row['val_ece']:.2f} %"
    )
