"""Text that fits: how wide it is, broken into lines, and cut off where there is no room.

Names come from outside: control characters in them are made visible, which XML does not allow otherwise.
"""

from bisect import bisect_left
from functools import cache
from typing import TYPE_CHECKING

from calibrant import text as outside

if TYPE_CHECKING:
    from matplotlib.font_manager import FontProperties

_CUT = "\N{HORIZONTAL ELLIPSIS}"
# Characters of a text that must fit into a few lines; measuring more takes time and changes nothing.
_LONGEST = 400
_LONGEST_IN_LEGEND = 80


@cache
def _font(size: float) -> "FontProperties":
    from matplotlib.font_manager import FontProperties

    return FontProperties(family="DejaVu Sans", size=size)


@cache
def text_width(text: str, size: float) -> float:
    """Return the width of a line of text in points, in letters of this size."""
    from matplotlib.textpath import text_to_path

    width, _, _ = text_to_path.get_text_width_height_descent(text, _font(size), ismath=False)
    return float(width)


def cut_to_width(text: str, points: float, size: float) -> str:
    """Return the text, cut off with an ellipsis if it is wider than this many points."""
    text = outside.shortened(outside.visible(text), _LONGEST)
    if text_width(text, size) <= points:
        return text
    fitting = bisect_left(range(1, len(text)), True, key=lambda n: text_width(text[:n] + _CUT, size) > points)
    return text[:fitting].rstrip() + _CUT


def legend_name(name: str) -> str:
    """Return a name for the legend, cut in the middle if it is long.

    Matplotlib leaves out names that begin with an underscore, so that a space stands before it.
    """
    name = outside.shortened(outside.visible(name), _LONGEST_IN_LEGEND)
    return f"\N{HAIR SPACE}{name}" if name.startswith("_") else name


def wrapped(text: str, points: float, size: float, *, most: int | None = None) -> str:
    """Break a text into lines of at most this many points, between words where there are any.

    Args:
        text: The text; without ``most`` its own line breaks stay.
        points: Width of a line.
        size: Size of the letters.
        most: Number of lines; the last one is cut off with an ellipsis if the text is longer.
    """
    text = outside.visible_lines(text) if most is None else outside.shortened(outside.visible(text), _LONGEST)
    lines = [line for part in text.split("\n") for line in _lines(part, points, size)]
    if most is not None and len(lines) > most:
        rest = " ".join(lines[most - 1 :])
        lines = [*lines[: most - 1], cut_to_width(rest, points, size)]
    return "\n".join(lines)


def balanced(text: str, points: float, size: float) -> str:
    """Break a text into as few lines as possible of at most this many points, about equally long."""
    broken = wrapped(text, points, size)
    narrower = 0.95 * points
    while (closer := wrapped(text, narrower, size)).count("\n") == broken.count("\n") > 0:
        broken, narrower = closer, 0.95 * narrower
    return broken


def _lines(text: str, points: float, size: float) -> list[str]:
    """Fill lines with words; a word that is wider than a line is divided."""
    lines: list[str] = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if text_width(longer, size) <= points or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
        while len(lines[-1]) > 1 and text_width(lines[-1], size) > points:
            fitting = _fitting(lines[-1], points, size)
            lines[-1:] = [lines[-1][:fitting], lines[-1][fitting:]]
    return lines


def _fitting(text: str, points: float, size: float) -> int:
    """Return how many letters fit into a line, at least one."""
    return max(
        1, bisect_left(range(1, len(text) + 1), True, key=lambda n: text_width(text[:n], size) > points)
    )
