"""Tables of the benchmark as text: CSV for programs, and parts of Markdown pages."""

from collections.abc import Iterable, Mapping, Sequence

from calibrant.papers.table import ResultTable
from calibrant.text import csv_lines, guarded, markdown, visible


def to_csv(table: ResultTable) -> str:
    """Write a table as CSV: mean and deviation of each measure in columns of their own, in fractions.

    A label that a spreadsheet would take for a formula has an apostrophe before it.
    """
    names = [guarded(" ".join([*column.group, column.measure])) for column in table.columns]
    rows: list[list[object]] = [
        [*table.layout.rows, *(part for name in names for part in (name, f"{name} std")), *table.papers]
    ]
    for labels, cells in table.lines.items():
        numbers = [part for cell in cells for part in (("", "") if cell is None else (cell.mean, cell.std))]
        figures = (each.get(labels, "") for each in table.papers.values())
        rows.append([*map(guarded, labels), *numbers, *figures])
    return "".join(csv_lines(rows))


def markdown_table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table: names in the first column on the left, others on the right as they are."""
    named = ([markdown(name), *rest] for name, *rest in lines)
    shown = [heads, ["---"] + ["---:"] * (len(heads) - 1), *named]
    return "".join(f"| {' | '.join(line)} |\n" for line in shown)


def markdown_list(title: str, lines: Mapping[str, str]) -> str:
    """Write names with a text each as a section of a page; an empty one if there are none."""
    if not lines:
        return ""
    named = ((visible(name).replace("`", "'"), markdown(text)) for name, text in lines.items())
    return f"## {title}\n\n" + "".join(f"- `{name}`: {text}\n" for name, text in named)


def number_of(number: int, what: str) -> str:
    """Return a number with its noun.

    Example:
        >>> number_of(1, "seed"), number_of(1200, "task")
        ('1 seed', '1,200 tasks')
    """
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
