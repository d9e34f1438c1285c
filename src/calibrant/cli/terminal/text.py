"""Text in the terminal: names from outside are shown as they are, and command nothing."""

from typing import Any

import typer
from rich import console as rich_console
from rich.text import Text

from calibrant.text import shortened, visible, visible_lines

#: Characters of a name in a table; longer names are cut in the middle.
LONGEST_NAME = 40


class Console(rich_console.Console):
    """Rich's console, on which ``:warning:`` in a name is no picture."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  # options of Rich
        super().__init__(emoji=False, **options)


def say(text: str, *, err: bool = False) -> None:
    """Print a text that may quote names, on standard output or standard error."""
    typer.echo(visible_lines(text), err=err)


def cell(name: str) -> Text:
    """Return a name for a cell of a table; it stays on one line."""
    return Text(shortened(visible(name), LONGEST_NAME), no_wrap=True, overflow="ellipsis")


def line(*parts: str | tuple[str, str]) -> Text:
    """Return a line of text that may quote names; a part with a style is a pair."""
    pairs = ((part, "") if isinstance(part, str) else part for part in parts)
    return Text.assemble(*((visible(text), style) for text, style in pairs))
