"""What ``calibrant train --log`` sends to trackers: epochs, results and the report."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from calibrant.cli.terminal.text import say
from calibrant.errors import InputError
from calibrant.integrations.loggers import Logger, find_logger
from calibrant.report.write import REPORT
from calibrant.training.config.settings import Config
from calibrant.training.outcome import Outcome
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
        encoder = self._config.encoder
        before = encoder.epochs if encoder is not None and row["stage"] == CLASSIFIER else 0
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
