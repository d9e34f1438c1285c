"""The figures that the papers print, one number a row, so that a measured one can stand beside them.

Numbers are as printed. Names are ours where we have the thing: losses, post-hoc methods and measures as in
our catalogues, datasets and networks in one spelling for all papers. What to know when comparing:

- ``selective_risk`` numbers two series of tables; those of its appendix are ``"appendix 2"`` and so on.
- ``refcal`` is known from its abstract and one piece of a table (``"fragment"``), whose network is not told.
- The method ``"pretrained"`` is a published ImageNet network: the paper does not tell its training loss.
- The measure ``"sce"`` is what a paper calls SCE; there is more than one definition of it in use.
- In table 8 of ``smart`` the deviation is in percent of the value, everywhere else in the unit of the value.
- Rows that belong to no loss or no post-hoc method (settings of an experiment) leave that name empty.
"""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from calibrant.errors import InputError

__all__ = ["PAPERS", "UNITS", "PaperFigure", "paper_figures"]

PAPERS = ("smart", "seca", "selective_risk", "adafocal", "refcal")

# How many of the unit make one.
UNITS = {"percent": 100.0, "1e-2": 100.0, "fraction": 1.0, "number": 1.0, "seconds": 1.0, "hours": 1.0}

_NAMES = ("dataset", "model", "method", "posthoc", "measure", "unit", "note")


@dataclass(frozen=True)
class PaperFigure:
    """One number of one table of a paper.

    Attributes:
        paper: One of :data:`PAPERS`.
        table: Its number in the paper, as text.
        dataset: What was tested on.
        model: The network; empty where the paper does not tell.
        method: The loss that it was trained with.
        posthoc: What was done to its outputs afterwards.
        measure: What the number measures.
        value: The number as printed.
        std: The standard deviation as printed, if there is one.
        unit: What the number is in: one of :data:`UNITS`.
        note: Settings, as ``key=value`` with semicolons between them.
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
        """The value on the scale of our measures: percent as a fraction, times in their own unit."""
        return self.value / UNITS[self.unit]

    @property
    def settings(self) -> dict[str, str]:
        """The note by key."""
        return dict(part.split("=", 1) for part in self.note.split(";") if part)


def paper_figures(
    paper: str | None = None, *, table: str | None = None, **where: str
) -> tuple[PaperFigure, ...]:
    """Look up what the papers print, in the order of their tables.

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
    if paper is not None and paper not in PAPERS:
        raise InputError(f"paper: expected one of {', '.join(PAPERS)}, got {paper!r}")
    for name in where:
        if name not in _NAMES:
            raise InputError(f"where: expected names among {', '.join(_NAMES)}, got {name!r}")
    if table is not None:
        where["table"] = table
    return tuple(
        figure
        for each in (PAPERS if paper is None else (paper,))
        for figure in _read(each)
        if all(getattr(figure, name) == wanted for name, wanted in where.items())
    )


@cache
def _read(paper: str) -> tuple[PaperFigure, ...]:
    text = (files("calibrant.bench.papers") / f"{paper}.csv").read_text(encoding="utf-8")
    return tuple(_figure(row) for row in csv.DictReader(text.splitlines()))


def _figure(row: dict[str, str]) -> PaperFigure:
    value, std = row.pop("value"), row.pop("std")
    return PaperFigure(**row, value=float(value), std=float(std) if std else None)
