"""The papers' tables and figures, each with the commands that make and draw it."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from calibrant.errors import InputError
from calibrant.files import read_dataclass
from calibrant.papers.printed import PAPERS


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of a paper.

    In the commands ``DATA`` stands for the folder of data sets, ``RUN`` for the folder of a training run, and
    ``RUN-LOSS`` for that of a run with this loss. Figures of one loss are repeated for each.

    Attributes:
        name: Its name in the paper, such as ``"table 1"``.
        shows: Its subject.
        quick: Commands that make it in minutes on two cores, with small networks or data.
        full: Commands that make it with the paper's settings.
        note: What has to be known about it.
    """

    name: str
    shows: str
    quick: tuple[str, ...]
    full: tuple[str, ...]
    note: str = ""


@cache
def exhibits(paper: str) -> tuple[Exhibit, ...]:
    """Return the tables and figures of a paper.

    Example:
        >>> exhibits("smart")[3].name, exhibits("smart")[3].quick[-1]
        ('table 1', 'calibrant bench run posthoc')
    """
    text = (files("calibrant.papers.printed") / "exhibits.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    return tuple(
        read_dataclass(Exhibit, each, f"exhibits.{paper}", error=InputError) for each in table[paper]
    )


def all_exhibits() -> Iterator[tuple[str, Exhibit]]:
    """Yield all tables and figures with the name of their paper."""
    for paper in PAPERS:
        for exhibit in exhibits(paper):
            yield paper, exhibit
