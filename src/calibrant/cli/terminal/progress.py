"""A progress bar with a description of the current work, on terminals only."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich import progress as rich_progress

from calibrant.cli.terminal.text import Console, line

if TYPE_CHECKING:
    from calibrant.inputs import Progress


@contextmanager
def progress_bar(*, visible: bool = True) -> "Iterator[Progress]":
    """Yield a function to call with a description of the current work, how much is done, and the total."""
    console = Console(stderr=True)
    with rich_progress.Progress(
        rich_progress.BarColumn(),
        rich_progress.TextColumn("{task.percentage:>3.0f} %"),
        rich_progress.TimeRemainingColumn(),
        rich_progress.TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not visible or not console.is_terminal,
    ) as bar:
        task = bar.add_task("", total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=line(what).markup, completed=done, total=total)

        yield show
