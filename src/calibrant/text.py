"""Names from outside, made safe to show: in a terminal, a figure, a page, a Markdown table or a spreadsheet.

Class names, groups, file names and metadata may contain anything. They stay as they are inside the library;
where they are shown or written for people, one of these functions comes in between.
"""

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Iterator

from calibrant.errors import InputError

_CUT = "\N{HORIZONTAL ELLIPSIS}"
# Control and format characters, surrogates, private and unassigned ones; separators of lines and paragraphs.
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
# Joiners shape Persian and Indic words and emoji; next to an ASCII letter they only hide.
_JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def visible(text: str) -> str:
    r"""Return a text in which every character that hides, moves or commands is written as an escape.

    These are control characters (as in ANSI escapes), bidirectional marks, spaces without width, separators
    of lines, and surrogates, which stand for undecodable bytes of file names. Letters of all scripts stay.

    Example:
        >>> print(visible("\x1b[31mcat\u202e, \u732b"))
        \x1b[31mcat\u202e, 猫
    """
    if text.isprintable():
        return text
    return "".join(
        _escaped(character)
        if unicodedata.category(character) in _HIDDEN and not _joins(text, place)
        else character
        for place, character in enumerate(text)
    )


def visible_lines(text: str) -> str:
    """Return :func:`visible` of every line of a text; its line breaks stay."""
    return "\n".join(map(visible, text.split("\n")))


def shortened(text: str, most: int) -> str:
    """Return a text of at most this many characters, the middle replaced by an ellipsis if it is longer.

    Example:
        >>> shortened("validation_of_the_third_run.npz", 15)
        'validat…run.npz'
    """
    if len(text) <= most:
        return text
    end = (most - 1) // 2
    return text[: most - 1 - end] + _CUT + text[len(text) - end :]


def check_text(texts: Iterable[str], name: str) -> None:
    """Refuse text with half a character (a lone surrogate), which no file can contain."""
    for text in texts:
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise InputError(
                f"{name}: expected text, got {shortened(text, 60)!r} with half a character (a lone "
                "surrogate); leave it out"
            )


def markdown(text: str) -> str:
    r"""Return a text as a cell of a Markdown table shows it literally, without markup, HTML or bars.

    Example:
        >>> print(markdown("a|b <i> *c* snake_case _d_"))
        a\|b &lt;i> \*c\* snake_case \_d\_
    """
    text = re.sub(r"[\\`*|\[\]]|(?<!\w)_|_(?!\w)", r"\\\g<0>", visible(text))
    return re.sub(r"&(?=#?\w+;)", "&amp;", text).replace("<", "&lt;")


def guarded(text: str) -> str:
    """Return a text as a cell that no spreadsheet takes for a formula: an apostrophe stands before it.

    Formulas begin with ``=``, ``+``, ``-``, ``@``, a tab or a line break; numbers stay as they are.
    :func:`unguarded` gives the text back, whatever it is.

    Example:
        >>> guarded("=A1"), guarded("-0.5"), unguarded(guarded("'=A1"))
        ("'=A1", '-0.5', "'=A1")
    """
    return f"'{text}" if _is_formula(text.lstrip("'")) else text


def unguarded(text: str) -> str:
    """Return the text that :func:`guarded` made a cell of."""
    return text[1:] if text.startswith("'") and _is_formula(text.lstrip("'")) else text


def csv_lines(rows: Iterable[Iterable[object]], *, delimiter: str = ",") -> Iterator[str]:
    r"""Yield rows as lines of a CSV file; cells with line breaks of any kind stand in quotes.

    Example:
        >>> list(csv_lines([["a\rb", "c,d", 0.5]]))
        ['"a\rb","c,d",0.5\n']
    """
    line = io.StringIO(newline="")
    writer = csv.writer(line, delimiter=delimiter, lineterminator="\r\n")  # quotes what may end a line
    for row in rows:
        writer.writerow(row)
        yield line.getvalue().removesuffix("\r\n") + "\n"
        line.seek(0)
        line.truncate()


def _is_formula(text: str) -> bool:
    return text.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) and not _NUMBER.fullmatch(text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _joins(text: str, place: int) -> bool:
    """Whether a character is a joiner between two that are not ASCII."""
    around = text[place - 1 : place] + text[place + 1 : place + 2]
    return text[place] in _JOINERS and len(around) == 2 and not any(each.isascii() for each in around)
