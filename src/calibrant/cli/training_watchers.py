"""Who watches a training: bars on a terminal, otherwise a line per epoch; and the trackers of ``--log``."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from calibrant.cli.printing import say
from calibrant.errors import InputError
from calibrant.integrations.loggers import Logger, find_logger
from calibrant.report.write import REPORT
from calibrant.show.terminal import Console, line
from calibrant.training.config.settings import Config
from calibrant.training.outcome import Outcome
from calibrant.training.processes import is_first_process
from calibrant.training.records import METRICS, EpochRow, read_rows
from calibrant.training.session import CLASSIFIER, Watcher

_UNCALIBRATED = "uncalibrated"


class TrainingLog(AbstractContextManager["TrainingLog"]):
    """The trackers of a run; closed at the end, also of a run that fails.

    A tracker that fails is left out from then on, with a note: training goes on without it.

    Args:
        names: Trackers, as ``find_logger`` takes them; a missing package is refused at once.
        folder: The folder of the run.
        config: The configuration of the run.
    """

    def __init__(self, names: Sequence[str], folder: Path, config: Config) -> None:
        if len(set(names)) < len(names):
            raise InputError(f"--log: expected each tracker once, got {', '.join(names)}")
        self._makers = {name: find_logger(name, folder=folder) for name in names}
        self._folder, self._config = folder, config
        self._loggers: dict[str, Logger] = {}
        self._has_epochs = False

    def __exit__(self, *_: object) -> None:
        for name in list(self._loggers):
            self._try(name, lambda logger: logger.close())

    def watching(self, watcher: Watcher) -> Watcher:
        """Return a watcher that logs every epoch, and passes everything on."""
        return _LoggingWatcher(watcher, self) if self._makers else watcher

    def open(self) -> None:
        """Begin the runs of the trackers, once."""
        while self._makers:
            name, make = self._makers.popitem()
            self._loggers[name] = make()

    def epoch(self, row: Mapping[str, Any]) -> None:
        """Log the measures of an epoch; before the first one, those of the epochs before it.

        So a resumed run is one run of the tracker with all epochs.
        """
        rows = [row] if self._has_epochs else [*self._before(self.step(row)), row]
        self._has_epochs = True
        # The run itself writes the epochs into its own folder.
        omitted = {"tensorboard"} if self._config.output.tensorboard else set()

        def log(logger: Logger) -> None:
            for each in rows:
                logger.log_measures(self.step(each), _values(each))

        for name in self._loggers.keys() - omitted:
            self._try(name, log)

    def _before(self, step: int) -> list[EpochRow]:
        path = self._folder / METRICS
        return [row for row in (read_rows(path) if path.exists() else []) if self.step(row) < step]

    def _try(self, name: str, action: Callable[[Logger], object]) -> None:
        try:
            action(self._loggers[name])
        except InputError as error:
            del self._loggers[name]
            say(f"calibrant: note: {error}; the run continues without it", err=True)

    def step(self, row: Mapping[str, Any]) -> int:
        """Return the number of an epoch, counted over both stages."""
        first = self._config.first_stage
        before = first.epochs if first is not None and row["stage"] == CLASSIFIER else 0
        return before + int(row["epoch"])

    def finish(self, outcome: Outcome) -> None:
        """Log the results on the test and the shifted sets, before and after calibration, and the report."""
        names = {_UNCALIBRATED: _UNCALIBRATED, "calibrated": outcome.chosen.name}
        values = {
            f"{part}/{title}/{name}": value
            for title, method in names.items()
            for part, measures in outcome.methods[method].measures.items()
            for name, value in measures.items()
        }
        last = self.step({"stage": CLASSIFIER, "epoch": self._config.training.epochs})
        self.open()
        if not self._has_epochs and (rows := self._before(last + 1)):
            self.epoch(rows[-1])  # the run was finished before
        for name in list(self._loggers):
            self._try(name, lambda logger: logger.log_measures(last, values))
        for name in list(self._loggers):
            self._try(name, lambda logger: logger.log_report(self._folder / REPORT))


def _values(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of an epoch by stage and name."""
    return {
        f"{row['stage']}/{name}": float(value)
        for name, value in row.items()
        if isinstance(value, (int, float)) and name != "epoch"
    }


class _LoggingWatcher(Watcher):
    def __init__(self, inner: Watcher, log: TrainingLog) -> None:
        self._inner, self._log = inner, log

    def doing(self, what: str) -> None:
        self._log.open()  # now this process is the first one, and the folder is that of the run
        self._inner.doing(what)

    def started(self, stage: str, *, epochs: int, steps: int, done: int) -> None:
        self._inner.started(stage, epochs=epochs, steps=steps, done=done)

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        self._inner.stepped(epoch, step, loss)

    def epoch_ended(self, row: Mapping[str, Any]) -> None:
        self._inner.epoch_ended(row)
        self._log.epoch(row)


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
