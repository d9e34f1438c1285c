"""Tables and diagrams as small pieces of HTML, which notebooks show below a cell.

Every text is escaped, colours are those of the page (light or dark), and nothing is loaded.
"""

import html
from collections.abc import Iterable, Sequence
from typing import NewType

from calibrant.show.numbers import Cell
from calibrant.show.table import Table
from calibrant.text import shortened, visible

#: A piece of HTML in which every text is escaped.
Html = NewType("Html", str)

# Characters of a name or a value; longer texts are cut in the middle, those of notes later.
_LONGEST, _LONGEST_NOTE = 60, 400
_MOST_NOTES = 12

# Lines and faint text are the colour of the page's text, mixed with its ground.
_STYLE = (
    "<style>"
    ".calibrant{color-scheme:light dark;color:inherit;font-size:.9em;max-width:100%;overflow-x:auto}"
    ".calibrant .parts{display:flex;flex-wrap:wrap;gap:1em;align-items:flex-start}"
    ".calibrant table{border-collapse:collapse;color:inherit;background:none;margin:.3em 0}"
    ".calibrant th,.calibrant td{text-align:right;padding:.15em .6em;white-space:nowrap;background:none;"
    "border:0;border-bottom:1px solid color-mix(in srgb,currentColor 18%,transparent)}"
    ".calibrant th:first-child,.calibrant td:first-child{text-align:left}"
    ".calibrant .faint{opacity:.75;margin:.2em 0}"
    "</style>"
)


def text(value: object, *, most: int = _LONGEST) -> Html:
    """Return a text that is safe to show: on one line, cut if it is long, without markup.

    Example:
        >>> text("<b>cat</b>")
        '&lt;b&gt;cat&lt;/b&gt;'
    """
    return Html(html.escape(shortened(visible(str(value)), most)))


def card(title: str, *parts: Html) -> str:
    """Return a titled box of parts, which stand beside each other where there is room."""
    inside = "".join(f"<div>{part}</div>" for part in parts if part)
    heading = f"<strong>{text(title)}</strong>"
    return f'{_STYLE}<div class="calibrant">{heading}<div class="parts">{inside}</div></div>'


def table(shown: Table) -> Html:
    """Return a table; the best cells are emphasised."""
    head = "".join(f"<th>{text(column.title)}</th>" for column in shown.columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in shown.shown)
    # Pages have styles of their own for tables without a class.
    return Html(f'<table class="numbers"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>')


def _cell(cell: Cell) -> str:
    shown = text(cell.text.strip())
    return f"<td><strong>{shown}</strong></td>" if cell.style in ("best", "bad") else f"<td>{shown}</td>"


def notes(remarks: Iterable[str]) -> Html:
    """Return sentences below a table."""
    lines = list(remarks)
    shown = lines[:_MOST_NOTES]
    if len(lines) > len(shown):
        shown.append(f"... and {len(lines) - len(shown)} more")
    return Html("".join(f'<div class="faint">{text(line, most=_LONGEST_NOTE)}</div>' for line in shown))


def reliability(edges: Sequence[float], accuracy: Sequence[float], label: str) -> Html:
    """Return a small reliability diagram: a bar for the accuracy in each bin, and the diagonal.

    Args:
        edges: Ends of the bins of confidence, one more than there are bins.
        accuracy: Accuracy in each bin; NaN in an empty one.
        label: What the diagram shows, for those who cannot see it.
    """
    bars = "".join(
        f'<rect x="{100 * low:.1f}" y="{100 - 100 * height:.1f}" width="{100 * (high - low):.1f}" '
        f'height="{100 * height:.1f}"/>'
        for low, high, height in zip(edges, edges[1:], accuracy, strict=False)
        if height == height
    )
    return Html(
        f'<svg viewBox="-1 -1 102 102" width="130" height="130" role="img" aria-label="{text(label)}">'
        f'<g fill="currentColor" fill-opacity=".35" stroke="currentColor" stroke-opacity=".6" '
        f'stroke-width=".6">{bars}</g><path d="M0 100L100 0" stroke="currentColor" stroke-dasharray="3 2" '
        'fill="none"/><path d="M0 0V100H100" stroke="currentColor" fill="none"/></svg>'
    )
