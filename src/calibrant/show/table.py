"""A table as a value: what every result prints, in whatever place it is shown."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from calibrant.errors import MissingPackageError
from calibrant.show.numbers import Cell, plain
from calibrant.text import markdown, visible

if TYPE_CHECKING:
    import pandas as pd


_LATEX = {
    "%": r"\%",
    "&": r"\&",
    "_": r"\_",
    "#": r"\#",
    "$": r"\$",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "↓": r"$\downarrow$",
    "↑": r"$\uparrow$",
    "±": r"$\pm$",
    "→": r"$\rightarrow$",
    "\N{EN DASH}": "--",
    "<": "$<$",
    ">": "$>$",
}


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        heading: What stands above it.
        unit: Its unit, such as ``"%"``, if the cells have none.
        align: Where its cells stand.
        wraps: Whether long cells go on below; otherwise they stay on one line.
        optional: The order in which columns are left out where a terminal is too narrow: the highest first,
            0 never.
    """

    heading: str
    unit: str = ""
    align: Literal["left", "right"] = "right"
    wraps: bool = False
    optional: int = 0

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
        heads = [markdown(each.title) for each in self.columns]
        rule = "|".join("---:" if each.align == "right" else "---" for each in self.columns)
        rows = _texts(self.rows, markdown, {"best": "**{}**", "near": "*{}*"})
        first, *others = (f"| {' | '.join(line)} |\n" for line in (heads, *rows))
        return "".join([first, f"|{rule}|\n", *others])

    def to_latex(self) -> str:
        """Return a LaTeX table with booktabs: the best in bold, what is near it underlined."""
        marks = {"best": r"\textbf{{{}}}", "near": r"\underline{{{}}}"}
        lines = [f"{' & '.join(line)} \\\\" for line in _texts(self.rows, latex, marks)]
        head = " & ".join(latex(each.title) for each in self.columns) + r" \\"
        begin = rf"\begin{{tabular}}{{{''.join(each.align[0] for each in self.columns)}}}"
        return "\n".join(
            [begin, r"\toprule", head, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}", ""]
        )

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


def latex(text: str) -> str:
    r"""Return a text as LaTeX shows it literally.

    Example:
        >>> print(latex("5 % of a_b"))
        5 \% of a\_b
    """
    return "".join(_LATEX.get(letter, letter) for letter in visible(text))


def _texts(
    rows: Iterable[Sequence[Cell]], escaped: Callable[[str], str], marks: dict[str, str]
) -> list[list[str]]:
    return [[marks.get(cell.style, "{}").format(escaped(cell.text.strip())) for cell in row] for row in rows]
