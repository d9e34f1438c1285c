"""Files of a judge's scores: a score in every row, an outcome in some, a policy and a unit."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from calibrant.data.answers import HITS
from calibrant.data.columns import FileRows, folded
from calibrant.data.files import open_source
from calibrant.data.numbering import joined
from calibrant.data.repeats import Repeats, repeating_column
from calibrant.errors import InputError
from calibrant.inputs import Floats

_NOTHING = ("", "nan", "null", "none", "n/a", "na")


class JudgedRows(NamedTuple):
    """What :func:`calibrant.decisions.estimate_outcomes` reads, and whether rows without units repeat."""

    score: Floats
    outcome: Floats
    policies: Sequence[Any] | None
    units: Sequence[Any] | None
    repeats: Repeats | None


def load_judged(
    path: str | os.PathLike[str],
    *,
    score: str,
    outcome: str,
    policy: str | None = None,
    units: Sequence[str] = (),
) -> JudgedRows:
    """Read scores and outcomes from columns of a file; rows whose outcome is empty are unlabelled.

    Args:
        path: The file; its suffix decides the format.
        score: The column of the scores.
        outcome: The column of the outcomes: numbers, true/false or yes/no.
        policy: The column of the policies.
        units: The columns that together name the unit of a row.
    """
    with open_source(path) as source:
        named = [score, outcome, *([] if policy is None else [policy]), *units]
        rows = source.read_columns(list(dict.fromkeys(named)))
        others = [name for name in source.names() if name not in named]
        return JudgedRows(
            _numbers(rows, score, empty=False),
            _numbers(rows, outcome, empty=True),
            None if policy is None else list(rows.columns[policy]),
            joined([rows.columns[name] for name in units]).tolist() if units else None,
            None
            if units
            else repeating_column(others, lambda name: source.read_columns([name]).columns[name]),
        )


def _numbers(rows: FileRows, name: str, *, empty: bool) -> Floats:
    """Return the numbers of a column, NaN where it is empty, which may be refused; yes is 1 and no is 0."""
    found = np.full(len(rows.columns[name]), np.nan)
    for row, value in enumerate(rows.columns[name]):
        word = "" if value is None or value != value else folded(str(value))
        try:
            found[row] = HITS[word] if word in HITS else np.nan if word in _NOTHING else float(word)
        except ValueError:
            raise InputError(
                f"{name}: expected a number, got {str(value)[:40]!r} in {rows.place(row)}"
            ) from None
        if not empty and np.isnan(found[row]):
            raise InputError(
                f"{name}: expected a score in every row, got none in {rows.place(row)}; drop such rows"
            )
    return found
