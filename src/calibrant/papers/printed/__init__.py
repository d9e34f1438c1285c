"""The figures of the papers' tables, one number per row, to compare with measured ones.

Numbers are as printed. Losses, post-hoc methods and measures have the names of our catalogues; datasets and
networks have one spelling for all papers. Notes for comparisons:

- ``selective_risk`` numbers two series of tables; those of its appendix are ``"appendix 2"`` and so on.
- ``refcal`` is known from its abstract and a part of one table (``"fragment"``), whose network is not stated.
- The method ``"pretrained"`` is a published ImageNet network; the paper does not state its training loss.
- The measure ``"sce"`` is what a paper calls SCE, which has more than one definition. The captions of
  ``seca`` say percent, but its numbers fit the error of Nixon et al. times 1,000 (ours is
  ``"classwise_ece"``), not its own Eq. 17: their unit is ``"1e-3"``.
- In table 8 of ``smart`` the deviation is in percent of the value, everywhere else in the unit of the value.
- Rows that belong to no loss or no post-hoc method (settings of an experiment) leave that name empty.
"""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from calibrant.errors import InputError
from calibrant.inputs import check_choice

__all__ = ["PAPERS", "UNITS", "PaperFigure", "paper_figures"]

PAPERS = ("smart", "seca", "selective_risk", "adafocal", "refcal")

# The number of units that make one.
UNITS = {
    "percent": 100.0,
    "1e-2": 100.0,
    "1e-3": 1000.0,
    "fraction": 1.0,
    "number": 1.0,
    "seconds": 1.0,
    "hours": 1.0,
}

_NAMES = ("dataset", "model", "method", "posthoc", "measure", "unit", "note")


@dataclass(frozen=True)
class PaperFigure:
    """One number of one table of a paper.

    Attributes:
        paper: One of :data:`PAPERS`.
        table: Its number in the paper, as text.
        dataset: The test data.
        model: The network; empty if the paper does not state it.
        method: The training loss.
        posthoc: The post-hoc method.
        measure: The measure.
        value: The number as printed.
        std: The standard deviation as printed, if there is one.
        unit: Its unit, one of :data:`UNITS`.
        note: Settings as ``key=value``, separated by semicolons.
    """

    paper: str
    table: str
    dataset: str
    model: str
    method: str
    posthoc: str
    measure: str
    value: float
    std: float | None
    unit: str
    note: str

    @property
    def plain(self) -> float:
        """The value on the scale of our measures: percentages as fractions, times in their own unit."""
        return self.value / UNITS[self.unit]

    @property
    def settings(self) -> dict[str, str]:
        """The settings in the note, by key."""
        return dict(part.split("=", 1) for part in self.note.split(";") if part)


def paper_figures(
    paper: str | None = None, *, table: str | None = None, **where: str
) -> tuple[PaperFigure, ...]:
    """Return the figures of the papers, in the order of their tables.

    Args:
        paper: One of :data:`PAPERS`; all of them by default.
        table: Only this table, such as ``"1"``.
        where: Only figures with this ``dataset``, ``model``, ``method``, ``posthoc``, ``measure``, ``unit``
            or ``note``.

    Example:
        >>> found = paper_figures("smart", table="1", dataset="CIFAR-10", posthoc="smart")
        >>> [(figure.model, figure.measure, figure.value) for figure in found]
        [('ResNet-50', 'ece', 0.76), ('Wide-ResNet', 'ece', 0.43)]
    """
    papers = PAPERS if paper is None else (check_choice(paper, "paper", PAPERS),)
    for name in where:
        if name not in _NAMES:
            raise InputError(f"where: expected names among {', '.join(_NAMES)}, got {name!r}")
    if table is not None:
        where["table"] = table
    return tuple(
        figure
        for each in papers
        for figure in _read(each)
        if all(getattr(figure, name) == wanted for name, wanted in where.items())
    )


@cache
def _read(paper: str) -> tuple[PaperFigure, ...]:
    text = (files("calibrant.papers.printed") / f"{paper}.csv").read_text(encoding="utf-8")
    figures = []
    for row in csv.DictReader(text.splitlines()):
        value, std = row.pop("value"), row.pop("std")
        figures.append(PaperFigure(**row, value=float(value), std=float(std) if std else None))
    return tuple(figures)
