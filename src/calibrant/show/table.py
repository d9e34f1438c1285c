"""A table as a value: what every result prints, in whatever place it is shown."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from calibrant.errors import MissingPackageError
from calibrant.show.markup import latex_table, markdown_table
from calibrant.show.numbers import Cell, Style, plain

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        heading: What stands above it.
        unit: Its unit, such as ``"%"``, if the cells have none.
        align: Where its cells stand.
        wraps: Whether long cells go on below; otherwise they stay on one line.
        optional: Whether a terminal that is too narrow may leave it out.
    """

    heading: str
    unit: str = ""
    align: Literal["left", "right"] = "right"
    wraps: bool = False
    optional: bool = False

    @property
    def title(self) -> str:
        """Heading and unit on one line."""
        return " ".join(part for part in (self.heading.replace("\n", " "), self.unit) if part)


@dataclass(frozen=True)
class Table:
    """Rows of cells under headings.

    Attributes:
        columns: The columns; the first has the names of the rows.
        rows: The cells of each row.
        title: What the table is about.
        notes: Sentences below it.
        dense: Whether one space between columns is enough, so that many fit into a terminal.
        chosen: Place of the row to mark, if there is one.
        most: Number of rows that terminals and notebooks show; data frames, Markdown and LaTeX have all.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    notes: tuple[str, ...] = ()
    dense: bool = False
    chosen: int | None = None
    most: int | None = None

    @classmethod
    def of(
        cls,
        columns: Sequence[str | Column],
        rows: Iterable[Sequence[object]],
        **more: Any,  # noqa: ANN401  # the other fields
    ) -> "Table":
        """Make a table; the first of the columns stands on the left, and cells may be plain values.

        Example:
            >>> table = Table.of(["class", "samples"], [("cat", 1200), ("dog", 80)])
            >>> print(table.to_markdown())
            | class | samples |
            |---|---:|
            | cat | 1,200 |
            | dog | 80 |
            <BLANKLINE>
        """
        made = [
            each if isinstance(each, Column) else Column(each, align="right" if place else "left")
            for place, each in enumerate(columns)
        ]
        cells = [tuple(each if isinstance(each, Cell) else plain(each) for each in row) for row in rows]
        filled = [row + (Cell(None, ""),) * (len(made) - len(row)) for row in cells]
        return cls(tuple(made), tuple(filled), **more)

    @property
    def shown(self) -> tuple[tuple[Cell, ...], ...]:
        """The rows that terminals and notebooks show."""
        return self.rows[: self.most]

    @property
    def remarks(self) -> tuple[str, ...]:
        """The number of rows that are not shown, and the notes."""
        more = len(self.rows) - len(self.shown)
        return (*([f"... and {more:,} more"] if more else []), *self.notes)

    def without(self, column: Column) -> "Table":
        """Return the table without a column."""
        place = self.columns.index(column)
        rows = tuple(row[:place] + row[place + 1 :] for row in self.rows)
        return replace(self, columns=self.columns[:place] + self.columns[place + 1 :], rows=rows)

    def shortened(self) -> "Table":
        """Return the table with the short texts of those cells that have one."""
        rows = tuple(tuple(replace(each, text=each.short or each.text) for each in row) for row in self.rows)
        return replace(self, rows=rows)

    def __str__(self) -> str:
        """Return the table as plain text, as wide as it needs."""
        from calibrant.show.terminal import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        """Return what notebooks show."""
        from calibrant.show.html import card, notes, table

        return card(self.title, table(self), notes(self.remarks))

    def to_markdown(self) -> str:
        """Return a Markdown table: the best in bold, what is near it in italics."""
        return markdown_table([each.title for each in self.columns], self._aligned(), self.rows)

    def to_latex(self) -> str:
        """Return a LaTeX table with booktabs: the best in bold, what is near it underlined."""
        return latex_table([each.title for each in self.columns], self._aligned(), self.rows)

    def to_frame(self) -> "pd.DataFrame":
        """Return the values as a data frame of pandas; an interval has two columns, low and high."""
        try:
            import pandas as pd
        except ImportError:
            raise MissingPackageError("to_frame", "pandas", command="pip install pandas") from None
        columns: dict[str, list[object]] = {}
        for place, column in enumerate(self.columns):
            values = [row[place].value for row in self.rows]
            title = column.title or ("name" if place == 0 else f"column {place}")
            if any(isinstance(value, tuple) for value in values):
                ends = [value if isinstance(value, tuple) else (None, None) for value in values]
                columns[f"{title}, low"] = [low for low, _ in ends]
                columns[f"{title}, high"] = [high for _, high in ends]
            else:
                columns[title] = values
        return pd.DataFrame(columns)

    def _aligned(self) -> list[str]:
        return [each.align for each in self.columns]


def marked(cells: Sequence[Cell], best: Sequence[bool], style: Style = "best") -> list[Cell]:
    """Return cells of which some are emphasised."""
    return [cell.styled(style) if is_best else cell for cell, is_best in zip(cells, best, strict=True)]
