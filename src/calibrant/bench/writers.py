"""Tables of the benchmark as text: Markdown for pages, CSV for programs, LaTeX for papers."""

from collections.abc import Iterable, Mapping, Sequence

from calibrant.bench.table import Cell, Column, Table
from calibrant.text import csv_lines, guarded, markdown, visible

_NONE = "\N{EN DASH}"


def to_markdown(table: Table) -> str:
    """Write a table as Markdown: the best in bold, what is not significantly worse in italics."""
    heads = [*table.layout.rows, *(markdown(column.heading) for column in table.columns), *table.papers]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for labels, cells in table.lines.items():
        shown = [_markdown(cell, column) for cell, column in zip(cells, table.columns, strict=True)]
        printed = [figures.get(labels, "") for figures in table.papers.values()]
        lines.append(f"| {' | '.join([*map(markdown, labels), *shown, *printed])} |")
    return "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
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


def to_latex(table: Table) -> str:
    """Write a table for LaTeX with booktabs: the best in bold, what is not significantly worse underlined."""
    n_labels = len(table.layout.rows)
    heads = [*table.layout.rows, *(column.heading for column in table.columns), *table.papers]
    lines = [
        rf"\begin{{tabular}}{{{'l' * n_labels}{'r' * (len(heads) - n_labels)}}}",
        r"\toprule",
        " & ".join(_escaped(head) for head in heads) + r" \\",
        r"\midrule",
    ]
    for labels, cells in table.lines.items():
        shown = [_latex(cell, column) for cell, column in zip(cells, table.columns, strict=True)]
        printed = [_escaped(figures.get(labels, "")) for figures in table.papers.values()]
        lines.append(" & ".join([*(_escaped(label) for label in labels), *shown, *printed]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


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


def _text(cell: Cell, column: Column) -> str:
    shown = column.quantity.text(cell.mean)
    return shown if len(cell.values) < 2 else f"{shown} ± {column.quantity.text(cell.std, beside=cell.mean)}"


def _markdown(cell: Cell | None, column: Column) -> str:
    if cell is None:
        return _NONE
    text = _text(cell, column)
    return f"**{text}**" if cell.is_best else f"*{text}*" if cell.is_near else text


def _latex(cell: Cell | None, column: Column) -> str:
    if cell is None:
        return "--"
    text = _text(cell, column).replace("±", r"$\pm$")
    return rf"\textbf{{{text}}}" if cell.is_best else rf"\underline{{{text}}}" if cell.is_near else text


def _escaped(text: str) -> str:
    special = {"%": r"\%", "&": r"\&", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}"}
    named = {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
    arrows = {"↓": r"$\downarrow$", "↑": r"$\uparrow$", "±": r"$\pm$"}
    return "".join((special | named | arrows).get(letter, letter) for letter in visible(text))
