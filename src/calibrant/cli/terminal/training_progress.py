"""Progress of training: two bars on a terminal, otherwise one line per epoch."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from calibrant.cli.terminal.text import Console, line
from calibrant.training.processes import is_first_process
from calibrant.training.session import Watcher


@contextmanager
def watching(*, visible: bool) -> Iterator[Watcher]:
    """Yield a watcher that shows the progress of a run, on the first process and if ``visible``."""
    console = Console(stderr=True)
    if not visible or not is_first_process():
        yield Watcher()
    elif not console.is_terminal:
        yield Lines()
    else:
        columns = (BarColumn(), TextColumn("{task.completed}/{task.total}"), TimeRemainingColumn())
        with Progress(
            TextColumn("{task.description}"), *columns, TextColumn("{task.fields[detail]}"), console=console
        ) as progress:
            yield Bars(progress)


class Bars(Watcher):
    """One bar for the epochs of a stage and one for the steps of an epoch."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.epochs = progress.add_task("starting", total=None, detail="")
        self.steps = progress.add_task("step", total=None, detail="", visible=False)

    def doing(self, what: str) -> None:
        """Show a step other than training."""
        self.progress.update(self.epochs, description=line(what).markup)
        self.progress.update(self.steps, visible=False)

    def started(self, stage: str, *, epochs: int, steps: int, done: int) -> None:
        """Begin the bars of a stage."""
        description = f"{stage}, epoch"
        self.progress.reset(self.epochs, total=epochs, completed=done, description=description, detail="")
        self.progress.reset(self.steps, total=steps, description="step", detail="", visible=True)

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        """Move the bar of steps."""
        del epoch
        self.progress.update(self.steps, completed=step, detail=f"loss {loss:.4f}")

    def epoch_ended(self, row: Mapping[str, Any]) -> None:
        """Move the bar of epochs."""
        self.progress.update(self.epochs, completed=row["epoch"], detail=_validation(row))


class Lines(Watcher):
    """One line per epoch, for logs."""

    def __init__(self) -> None:
        self.n_epochs = 0

    def started(self, stage: str, *, epochs: int, steps: int, done: int) -> None:
        """Print where a resumed stage continues."""
        self.n_epochs = epochs
        if done:
            print(f"{stage}: resuming after epoch {done} of {epochs}, {steps} steps each", file=sys.stderr)

    def epoch_ended(self, row: Mapping[str, Any]) -> None:
        """Print the measures of an epoch."""
        epoch = f"{row['stage']} epoch {row['epoch']}/{self.n_epochs}"
        line = f"{epoch}: loss {row['train_loss']:.4f}, {_validation(row)}, {row['seconds']:.1f} s"
        print(line, file=sys.stderr, flush=True)


def _validation(row: Mapping[str, Any]) -> str:
    return (
        f"validation accuracy {100 * row['val_accuracy']:.2f} %, NLL {row['val_nll']:.4f}, "
        f"ECE {100 * row['val_ece']:.2f} %"
    )
