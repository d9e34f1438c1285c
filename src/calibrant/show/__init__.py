"""One table and one way to write a number, for terminal, HTML, notebooks, Markdown and LaTeX."""

from calibrant.show.numbers import Cell
from calibrant.show.table import Column, Table

__all__ = ["Cell", "Column", "Table"]
