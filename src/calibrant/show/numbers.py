"""The one way to write a number: percent, points, plain numbers, counts, p-values and intervals."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

#: How a cell is emphasised.
Style: TypeAlias = Literal["", "best", "near", "good", "bad", "unsure"]


@dataclass(frozen=True)
class Cell:
    """A value and how it is written.

    Attributes:
        value: The number, the text, or both ends of an interval, for data frames.
        text: What people see.
        style: How it is emphasised: as the best of a column or near it, as good, bad or unsure.
        short: What people see where the table would be too wide for a line.
    """

    value: object
    text: str
    style: Style = ""
    short: str = ""

    def __str__(self) -> str:
        return self.text

    def styled(self, style: Style) -> "Cell":
        """Return the cell with another style."""
        return replace(self, style=style)


#: An empty cell.
NOTHING = Cell(None, "")


def percent(share: float | None, digits: int | None = 2, *, undefined: str = "undefined") -> Cell:
    """Write a share in percent; without ``digits`` it has three significant ones.

    Example:
        >>> str(percent(0.12349)), str(percent(0.02, None)), str(percent(float("nan")))
        ('12.35 %', '2 %', 'undefined')
    """
    if _is_missing(share):
        return Cell(None, undefined)
    assert share is not None
    return Cell(share, f"{100 * share:.3g} %" if digits is None else f"{100 * share:.{digits}f} %")


def points(share: float | None, digits: int = 2, *, sign: bool = False) -> Cell:
    """Write a share times 100 without a unit, which stands in the heading; nothing for NaN."""
    if _is_missing(share):
        return NOTHING
    assert share is not None
    return Cell(share, f"{100 * share:{'+' if sign else ''}.{digits}f}")


def number(value: float | None, digits: int | None = 4, *, sign: bool = False) -> Cell:
    """Write a number with digits after the point, or with four significant ones; nothing for NaN.

    Example:
        >>> str(number(0.91731)), str(number(12.3456, None)), str(number(0.5, 2, sign=True))
        ('0.9173', '12.35', '+0.50')
    """
    if _is_missing(value):
        return NOTHING
    plus = "+" if sign else ""
    return Cell(value, f"{value:{plus}.4g}" if digits is None else f"{value:{plus}.{digits}f}")


def count(n: float) -> Cell:
    """Write a number of things, with commas; a sum of weights has one digit after the point.

    Example:
        >>> str(count(10000)), str(count(12.5))
        ('10,000', '12.5')
    """
    return Cell(n, f"{n:,.1f}" if isinstance(n, float) else f"{n:,}")


def rows_of_units(n: int, n_units: int | None, rows: str | None = None) -> str:
    """Write a number of rows and of the units that they belong to, if there are units.

    Example:
        >>> rows_of_units(8351, 109), rows_of_units(8351, None), rows_of_units(8351, 109, "predictions")
        ('8,351 rows of 109 units', '8,351 samples', '8,351 predictions of 109 units')
    """
    if n_units is None:
        return f"{n:,} {rows or 'samples'}"
    return f"{n:,} {rows or 'rows'} of {n_units:,} units"


def p_value(p: float | None) -> Cell:
    """Write a p-value with three digits after the point; nothing for one that was not computed.

    Example:
        >>> str(p_value(0.0312)), str(p_value(0.0001)), str(p_value(float("nan")))
        ('0.031', '<0.001', '')
    """
    if _is_missing(p):
        return NOTHING
    assert p is not None
    return Cell(p, "<0.001" if p < 0.001 else f"{p:.3f}")


def p_equals(p: float) -> str:
    """Write a p-value in a sentence, as in ``= 0.031`` or ``< 0.001``."""
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"


def span(low: float, high: float, write: Callable[[float], Cell]) -> Cell:
    """Write both ends of an interval; nothing if it was not computed.

    Example:
        >>> str(span(0.1, 0.2, points))
        '10.00 to 20.00'
    """
    if math.isnan(low) or math.isnan(high):
        return NOTHING
    return Cell((low, high), f"{write(low)} to {write(high)}")


def measured(value: float | None, *, in_percent: bool) -> Cell:
    """Write a measure with its unit; plain numbers leave room for the unit of others in the same column."""
    if in_percent or _is_missing(value):
        return percent(value)
    cell = number(value)
    return Cell(cell.value, f"{cell}  ")


def bare(value: float | None, *, in_percent: bool, digits: int = 3) -> Cell:
    """Write a measure without its unit, which is in the heading; ``digits`` are those of plain numbers."""
    return points(value) if in_percent else number(value, digits)


def pair(first: float, second: float, between: str, *, in_percent: bool) -> Cell:
    """Write two values of a measure with one unit.

    Example:
        >>> str(pair(0.1, 0.2, " to ", in_percent=True))
        '10.00 to 20.00 %'
    """
    left, right = bare(first, in_percent=in_percent, digits=4), measured(second, in_percent=in_percent)
    return Cell((first, second), f"{left}{between}{right}")


def plain(value: object) -> Cell:
    """Write a value of any simple type; nothing for others."""
    if isinstance(value, bool):
        return Cell(value, "yes" if value else "no")
    if isinstance(value, int):
        return count(value)
    if isinstance(value, float):
        return number(value, None)
    return Cell(value, value) if isinstance(value, str) else NOTHING


def _is_missing(value: float | None) -> bool:
    return value is None or math.isnan(value)
