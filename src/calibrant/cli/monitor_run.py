"""A run of ``calibrant monitor``: what is read, shown and kept, in an order in which nothing gets lost."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import typer

from calibrant.cli.terminal import monitor_tables
from calibrant.cli.terminal.progress import progress_bar
from calibrant.data.files import load_predictions
from calibrant.errors import CalibrantError, InputError
from calibrant.monitoring.following import Step, follow
from calibrant.monitoring.monitor import Monitoring
from calibrant.monitoring.window import Window

# The state is saved about once a second, or less often if saving takes long: one part in so many.
_SAVE_SECONDS = 1.0
_SAVE_PART = 20


class Report(Protocol):
    """Where windows are shown."""

    def add(self, windows: Sequence[Window]) -> None:
        """Take windows."""

    def show(self) -> None:
        """Show what was taken, if that can be shown before the end."""


@dataclass
class Run:
    """One run over the arguments of the command.

    If all of them are streams, whose files the state remembers, what was read is shown and kept while the
    run goes on. Otherwise nothing is kept before all is read, so that a run that is refused can be repeated.

    Attributes:
        monitoring: Who watches.
        report: Where windows are shown.
        state: The file that keeps the state, if any.
        events: The file that gets alarms, if any.
        stepwise: Whether all arguments are streams.
        n_steps: How many steps were taken.
        raised: The event of this run, if there was one.
        stopped: Number of the signal that has ended it early, if one has.
    """

    monitoring: Monitoring
    report: Report
    state: Path | None
    events: Path | None
    stepwise: bool
    n_steps: int = 0
    raised: dict[str, Any] | None = None
    stopped: int | None = None
    _save_at: float = field(default_factory=lambda: time.monotonic() + _SAVE_SECONDS)

    def read(self, steps: Generator[Step, None, None], *, visible: bool) -> CalibrantError | None:
        """Take all steps; return the refusal that ended them early, if there is something to keep."""
        # Windows on a terminal show progress themselves, and a bar would be in their way.
        bar = visible and not (self.stepwise and sys.stdout.isatty())
        with progress_bar(visible=bar) as progress, _signals(defer=self.stepwise) as stopped, closing(steps):
            while True:
                before = self.monitoring.alarm
                try:
                    step = next(steps, None)
                except CalibrantError as error:
                    if self.stepwise and self.n_steps:
                        return error
                    raise
                if step is None:
                    return None
                progress(step.file, step.number, step.of)
                self._take(step, is_new=before is None and self.monitoring.alarm is not None)
                self.stopped = stopped()
                if self.stopped is not None:
                    return None

    def _take(self, step: Step, *, is_new: bool) -> None:
        self.n_steps += 1
        self.report.add(step.windows)
        if is_new and self.monitoring.alarm is not None:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            alarm, file = self.monitoring.alarm, step.file
            self.raised = monitor_tables.event(alarm, self.monitoring, time=now, file=file)
        if self.stepwise and (is_new or time.monotonic() >= self._save_at):
            self.keep()

    def keep(self) -> None:
        """Tell what was read, then save the state: whoever is killed in between tells it again."""
        if self.stepwise:
            self.report.show()
        self._tell()
        if self.state is None:
            return
        start = time.monotonic()
        with writing(self.state):
            self.monitoring.save(self.state)
        end = time.monotonic()
        self._save_at = end + max(_SAVE_SECONDS, _SAVE_PART * (end - start))

    def _tell(self) -> None:
        """Append the event, once."""
        if self.events is not None and self.raised is not None:
            append_event(self.events, self.raised)
            self.events = None


def steps_of(
    monitoring: Monitoring,
    arguments: Sequence[str],
    *,
    is_stream: Callable[[str], bool],
    tell: Callable[[str], None],
) -> Generator[Step, None, None]:
    """Read the arguments in their order: what is new in streams, and other files as a whole."""
    for number, argument in enumerate(arguments, 1):
        if is_stream(argument):
            yield from follow(monitoring, argument, tell=tell)
        else:
            predictions = load_predictions(argument)
            windows = tuple(monitoring.update(predictions))
            yield Step(argument, len(predictions), windows, number, len(arguments))


def check_target(target: Path | None, name: str) -> None:
    """Refuse a place that cannot be written to before hours of rows are read."""
    if target is None:
        return
    with writing(target):
        if target.is_dir():
            raise InputError(
                f"{name}: expected the name of a file, got the folder {target}; name a file in it"
            )
        if not target.parent.is_dir():
            raise InputError(
                f"{target}: expected a file in a folder that exists, got none; create the folder"
            )
        # A state is replaced, which is up to its folder; events are appended.
        place = target if name == "--events" and target.exists() else target.parent
        if not os.access(place, os.W_OK):
            raise InputError(f"{target}: expected a file that can be written, got no permission for {place}")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the disk says into one sentence."""
    try:
        yield
    except OSError as error:
        said = error.strerror or str(error) or type(error).__name__
        raise InputError(f"{path}: expected a file that can be written, got an error: {said}") from error


def append_event(path: Path, raised: dict[str, Any]) -> None:
    """Append a line as a whole, and start a new one if the last is torn."""
    line = json.dumps(raised, allow_nan=False).encode() + b"\n"
    with writing(path), path.open("ab+", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            line = line if file.read(1) == b"\n" else b"\n" + line
        file.write(line)
        os.fsync(file.fileno())


@contextmanager
def _signals(*, defer: bool) -> Iterator[Callable[[], int | None]]:
    """Give a function that tells which signal asked to stop; asked twice, it stops at once.

    Args:
        defer: Whether to wait for someone to ask; without it signals do what they always do.
    """
    came: list[int] = []
    if not defer or threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def take(number: int, _: FrameType | None) -> None:
        came.append(number)
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, take) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: came[0] if came else None
    finally:
        restore()


def exit_code(run: Run) -> int:
    """Return 3 in alarm, 0 without, and 128 more than its number after a signal."""
    if run.stopped is not None:
        return 128 + run.stopped
    return 0 if run.monitoring.alarm is None else 3


def warn(sentence: str) -> None:
    """Tell people something that is no reason to stop."""
    typer.echo(f"calibrant: note: {sentence}", err=True)
