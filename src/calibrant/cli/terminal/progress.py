"""A progress bar that says what is being done, on terminals only."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(*, visible: bool = True) -> Iterator[Callable[[str, int, int], None]]:
    """Give a function to call with what is being done, how much is done, and how much there is."""
    console = Console(stderr=True)
    columns = (BarColumn(), TextColumn("{task.completed}/{task.total}"), TimeRemainingColumn())
    with Progress(
        *columns,
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not visible or not console.is_terminal,
    ) as progress:
        task = progress.add_task("", total=None)

        def tell(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        yield tell
