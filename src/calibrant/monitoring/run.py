"""A run of a monitoring over files: read, show and save, in an order in which nothing gets lost."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from types import FrameType
from typing import Any, Protocol

from calibrant.data.columns import Columns
from calibrant.errors import CalibrantError, InputError
from calibrant.files import address_of, shown, writing
from calibrant.inputs import Progress
from calibrant.monitoring.files import Step, follow, follow_labels, load_rows
from calibrant.monitoring.monitor import Monitoring
from calibrant.monitoring.prometheus import write_metrics
from calibrant.monitoring.waiting import PATIENCE
from calibrant.monitoring.windows import Window, group_names
from calibrant.outputs import check_targets

# The state is saved about once a second; if that takes long, saving takes one part in this many of the time.
_SAVE_SECONDS = 1.0
_SAVE_PART = 20


class WindowReport(Protocol):
    """Shows windows."""

    def add(self, windows: Sequence[Window]) -> None:
        """Add windows."""

    def show(self) -> None:
        """Show the windows so far, if that is possible before the end."""


@dataclass
class MonitorRun:
    """One run of a monitoring.

    If all sources are streams, whose files the state remembers, rows are shown and saved during the run.
    Otherwise nothing is saved before everything is read, so a run that is refused can be repeated.

    Attributes:
        monitoring: The monitoring.
        report: Shows windows.
        state: The file of the state, if any.
        events: The file to which alarms are appended, if any.
        prometheus: The file of metrics for Prometheus, if any.
        stepwise: Whether all sources are streams.
        n_steps: Number of steps so far.
        raised: The event of this run, if an alarm was raised.
        stopped: Number of the signal that ended the run early, if any.
    """

    monitoring: Monitoring
    report: WindowReport
    state: Path | None
    events: Path | None
    prometheus: Path | None
    stepwise: bool
    n_steps: int = 0
    raised: dict[str, Any] | None = None
    stopped: int | None = None
    _save_at: float = field(default_factory=lambda: time.monotonic() + _SAVE_SECONDS)

    def read(self, steps: Generator[Step, None, None], progress: Progress) -> CalibrantError | None:
        """Read all steps; return the error that ended them early if there are steps before it to save."""
        with _signals(defer=self.stepwise) as stopped, closing(steps):
            while self.stopped is None:
                before = self.monitoring.alarm
                try:
                    step = next(steps, None)
                except CalibrantError as error:
                    if self.stepwise and self.n_steps:
                        return error
                    raise
                if step is None:
                    break
                progress(step.file, step.number, step.of)
                self._take(step, is_new=before is None and self.monitoring.alarm is not None)
                self.stopped = stopped()
        return None

    def _take(self, step: Step, *, is_new: bool) -> None:
        self.n_steps += 1
        self.report.add(step.windows)
        if is_new:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            self.raised = self.monitoring.event(time=now, file=step.file)
        if self.stepwise and (is_new or time.monotonic() >= self._save_at):
            self.save()

    def save(self) -> None:
        """Show windows and write the event, then save the state: a run killed in between repeats them.

        Metrics come last: they show rows that are saved.
        """
        if self.stepwise:
            self.report.show()
        if self.events is not None and self.raised is not None:
            _append_event(self.events, self.raised)
            self.events = None
        start = time.monotonic()
        if self.state is not None:
            self.monitoring.save(self.state)
        if self.prometheus is not None:
            write_metrics(self.monitoring, self.prometheus)
        end = time.monotonic()
        self._save_at = end + max(_SAVE_SECONDS, _SAVE_PART * (end - start))


def read_steps(
    monitoring: Monitoring,
    sources: Sequence[str],
    *,
    is_stream: Callable[[str], bool],
    tell: Callable[[str], None],
    columns: Columns,
    labels: str | None = None,
    patience: float = PATIENCE,
) -> Generator[Step, None, None]:
    """Read sources in their order: only the new rows of streams, and other files as a whole.

    Args:
        monitoring: The monitoring that reads the rows.
        sources: Files, folders, patterns or addresses.
        is_stream: Whether a source is a stream.
        tell: Called with a sentence about anything unusual that is no reason to stop.
        columns: Which columns hold what.
        labels: A file, folder or pattern of labels by id, which are read first.
        patience: Seconds that rows wait for these labels.
    """
    if labels is not None:
        yield from follow_labels(monitoring, labels, sources, columns=columns, patience=patience)
    for number, source in enumerate(sources, 1):
        if is_stream(source):
            yield from follow(monitoring, source, columns=columns, tell=tell)
        else:
            loaded = load_rows(source, columns, need_labels=monitoring.late is None, tell=tell)
            rows = monitoring.prepared(loaded, group_names(loaded))
            windows = tuple(monitoring.take(rows, now=time.time()))
            yield Step(source, len(rows), windows, number, len(sources))


def check_target(target: Path, name: str, *, appends: bool, others: Sequence[str]) -> None:
    """Refuse the file of an option if it cannot be written, before hours of rows are read.

    Args:
        target: The file.
        name: The option.
        appends: Whether lines are appended to it; otherwise it is replaced.
        others: Files that it must not be.
    """
    if address_of(target) is not None:
        _check_address(target, name, appends=appends, others=others)
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
        if target.exists() and not target.is_file():
            raise InputError(f"{name}: expected the name of a file, got the device or pipe {target}")
        if target.resolve() in {Path(other).resolve() for other in others}:
            raise InputError(f"{name}: expected a file of its own, got {target}, which has another use")
        if appends and target.exists():
            with target.open("rb+") as file:
                if file.read(1) not in (b"", b"{"):
                    raise InputError(f"{name}: expected a file of JSON lines, got {target}, which is another")
        else:
            TemporaryFile(dir=target.parent).close()


def _check_address(target: Path, name: str, *, appends: bool, others: Sequence[str]) -> None:
    if appends:
        raise InputError(
            f"{name}: expected a file on this machine, since lines are appended to it, got {shown(target)}"
        )
    check_targets([target], others, name=name)


def _append_event(path: Path, event: dict[str, Any]) -> None:
    """Append a complete line, and begin a new one if the last line is incomplete."""
    line = json.dumps(event, allow_nan=False).encode() + b"\n"
    with writing(path), path.open("ab+") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else b"\n" + line
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _signals(*, defer: bool) -> Iterator[Callable[[], int | None]]:
    """Yield a function that returns the signal that was received, or None; a second signal stops at once.

    Unless signals are deferred, they have their usual effect.
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
