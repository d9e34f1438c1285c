"""Tables and text in a terminal: names from outside are shown as they are, and command nothing."""

from operator import attrgetter
from typing import Any

from rich import console as rich_console
from rich.table import Table as RichTable
from rich.text import Text

from calibrant.show.table import Table
from calibrant.text import shortened, visible, visible_lines

#: Characters of a name in a table; longer names are cut in the middle.
LONGEST_NAME = 40
_STYLES = {"best": "bold", "good": "green", "bad": "red", "unsure": "yellow"}
# A table as plain text is as wide as it needs.
_WIDE = 1000


class Console(rich_console.Console):
    """Rich's console, on which ``:warning:`` in a name is no picture."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  # options of Rich
        super().__init__(emoji=False, **options)

    def say(self, *lines: str, style: str = "") -> None:
        """Print lines of text, in which nothing is markup."""
        for each in lines:
            self.print(line((each, style)), highlight=False)

    def show(self, table: Table) -> None:
        """Print a table and the notes below it; optional columns are left out if a line is too short."""
        self.print(rich_table(fitted(table, self.width)), highlight=False)
        for note in table.remarks:
            self.say(note, style="bold red" if note.startswith("Warning") else "dim")


def line(*parts: str | tuple[str, str]) -> Text:
    """Return a line of text that may quote names; a part with a style is a pair."""
    pairs = ((part, "") if isinstance(part, str) else part for part in parts)
    return Text.assemble(*((visible(text), style) for text, style in pairs))


def rich_table(table: Table) -> RichTable:
    """Return a table for Rich; where a line is too short, the names in the first column give way.

    If other columns may go on below, they give way instead, and names are never cut.
    """
    made = RichTable(box=None, pad_edge=False, header_style="dim", padding=(0, 1, 0, 0 if table.dense else 1))
    yields = not any(column.wraps for column in table.columns)
    for place, column in enumerate(table.columns):
        heading = f"{column.heading}\n{column.unit}" if column.unit else column.heading
        made.add_column(
            Text(visible_lines(heading)),
            justify=column.align,
            no_wrap=not column.wraps and not (yields and place == 0),
            overflow="fold" if column.wraps else "ellipsis",
        )
    for place, row in enumerate(table.shown):
        cells = [Text(visible_lines(each.text), style=_STYLES.get(each.style, "")) for each in row]
        # A name that has a short form is our own.
        own = table.columns[0].wraps or row[0].short
        name = visible(row[0].text) if own else shortened(visible(row[0].text), LONGEST_NAME)
        cells[0] = Text(_marked(table, place) + name, style=_STYLES.get(row[0].style, ""))
        if yields:
            cells[0].no_wrap, cells[0].overflow = True, "ellipsis"
        made.add_row(*cells)
    return made


def _marked(table: Table, place: int) -> str:
    """Return the mark of the chosen row, and as much room before the others."""
    if table.chosen is None:
        return ""
    return "→ " if place == table.chosen else "  "


def as_text(table: Table) -> str:
    """Return a table as plain text with its title and notes, as wide as it needs."""
    console = Console(width=_WIDE, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(rich_table(table), highlight=False)
    body = "\n".join(each.rstrip() for each in captured.get().rstrip("\n").split("\n"))
    return "\n".join(part for part in (visible(table.title), body, *map(visible, table.remarks)) if part)


def fitted(table: Table, width: int) -> Table:
    """Return a table for lines of this width: optional columns go first, then names become short."""
    for column in sorted(
        filter(attrgetter("optional"), table.columns), key=attrgetter("optional"), reverse=True
    ):
        if width_of(table) > width:
            table = table.without(column)
    return table.shortened() if width_of(table) > width else table


def width_of(table: Table) -> int:
    """Return how many characters a table needs in a line."""
    return Console(width=_WIDE).measure(rich_table(table)).maximum
