"""Tables as Markdown and as LaTeX."""

from collections.abc import Callable, Iterable, Sequence

from calibrant.show.numbers import Cell
from calibrant.text import markdown, visible

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
    "<": "$<$",
    ">": "$>$",
}


def markdown_table(headings: Sequence[str], aligned: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return a Markdown table; the best cells are bold, those near them in italics."""
    marks = {"best": "**{}**", "near": "*{}*"}
    lines = [list(map(markdown, headings)), *_texts(rows, markdown, marks)]
    rule = "|".join("---:" if each == "right" else "---" for each in aligned)
    first, *others = (f"| {' | '.join(line)} |\n" for line in lines)
    return "".join([first, f"|{rule}|\n", *others])


def latex_table(headings: Sequence[str], aligned: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return a LaTeX table with booktabs; the best cells are bold, those near them underlined."""
    marks = {"best": r"\textbf{{{}}}", "near": r"\underline{{{}}}"}
    lines = [f"{' & '.join(line)} \\\\" for line in _texts(rows, latex, marks)]
    head = " & ".join(map(latex, headings)) + r" \\"
    begin = rf"\begin{{tabular}}{{{''.join(each[0] for each in aligned)}}}"
    return "\n".join([begin, r"\toprule", head, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}", ""])


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
