"""Progress bars for everything that takes ``progress=``, in terminals and in notebooks."""

import html
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from calibrant.text import shortened, visible

__all__ = ["progress_bar"]

# A notebook is sent at most one picture of the bar in this many seconds.
_PAUSE = 0.1
_LONGEST = 60


@contextmanager
def progress_bar(*, visible: bool = True) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function for ``progress=`` that shows a bar, and remove the bar at the end.

    In a notebook the bar stands below the cell and needs no further package; in a terminal it is a line of
    standard error. Elsewhere, such as in a log, nothing is shown.

    Args:
        visible: Whether to show the bar at all.

    Example:
        >>> from calibrant import compare
        >>> from calibrant.data import load_bundled
        >>> with progress_bar() as progress:
        ...     comparison = compare(load_bundled("cifar10_val"), methods="temperature", progress=progress)
        >>> comparison.n_folds
        5
    """
    if not visible:
        yield _show_nothing
    elif (display := _notebook_display()) is not None:
        bar = _NotebookBar(display)
        try:
            yield bar.show
        finally:
            bar.close()
    else:
        with _terminal_bar() as show:
            yield show


def _show_nothing(_what: str, _done: int, _total: int) -> None:
    """Stand in for a bar."""


@contextmanager
def _terminal_bar() -> Iterator[Callable[[str, int, int], None]]:
    console = Console(stderr=True, emoji=False, force_jupyter=False)
    with Progress(
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("", total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=visible(what), completed=done, total=total)

        yield show


def _notebook_display() -> Callable[..., Any] | None:
    """Return the function that shows HTML below a cell; None if this is not a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    return display  # type: ignore[no-any-return,unused-ignore]  # IPython is partly untyped


class _Html:
    """What a notebook shows as HTML, and everything else as text."""

    def __init__(self, page: str, words: str) -> None:
        self._page, self._words = page, words

    def __repr__(self) -> str:
        return self._words

    def _repr_html_(self) -> str:
        return self._page


class _NotebookBar:
    """A bar that is replaced in place."""

    def __init__(self, display: Callable[..., Any]) -> None:
        self._handle = display(_Html("", ""), display_id=True)
        self._began = self._shown = time.monotonic()

    def show(self, what: str, done: int, total: int) -> None:
        """Draw the bar again, unless it was drawn just before."""
        now = time.monotonic()
        if now - self._shown < _PAUSE and done:
            return
        self._shown = now
        share = min(max(done / total, 0.0), 1.0) if total else 0.0
        left = f", {(now - self._began) * (1 - share) / share:.0f} s left" if share > 0.02 else ""
        words = shortened(visible(what), _LONGEST)
        page = (
            f'<progress style="vertical-align:middle" max="1" value="{share:.3f}"></progress> '
            f"{share:.0%}{left} &nbsp; {html.escape(words)}"
        )
        self._handle.update(_Html(page, f"{share:.0%} {words}"))

    def close(self) -> None:
        """Remove the bar."""
        self._handle.update(_Html("", ""))
