"""Scores of the options of multiple-choice questions, of which there may be more or fewer in each row."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.data.columns import Columns, Rows
from calibrant.errors import InputError
from calibrant.inputs import Floats

# The logarithm of the smallest positive number: no two finite masses are further apart.
_FURTHEST = 745.0


@dataclass(frozen=True, eq=False)
class Options:
    """Options of questions, as logarithms of their masses.

    Attributes:
        scores: Logarithms of the masses, shape ``(n, most options)``; minus infinity where there is none.
        counts: Number of options of each question, zero where the scores are missing.
        names: The names of the options, if they are the same for all questions.
        right: The place of the right option, -1 where it is unknown.
    """

    scores: Floats
    counts: npt.NDArray[np.int64]
    names: tuple[str, ...] | None
    right: npt.NDArray[np.int64]

    @property
    def confidence(self) -> Floats:
        """The share of the best option in the mass of all, NaN where scores are missing."""
        best, total = self.scores.max(axis=1), np.logaddexp.reduce(self.scores, axis=1)
        given = self.counts > 0
        return np.where(given, np.exp(np.where(given, best, 0.0) - np.where(given, total, 0.0)), np.nan)

    @property
    def margin(self) -> Floats:
        """The log-odds of the best option against the second, NaN where there are fewer than two."""
        if self.scores.shape[1] < 2:
            return np.full(len(self.scores), np.nan)
        second, best = np.maximum(np.sort(self.scores, axis=1)[:, -2:], -1e300).T
        return np.where(self.counts > 1, np.minimum(best - second, _FURTHEST), np.nan)

    @property
    def hits(self) -> Floats:
        """1 where the best option is right, 0 where it is wrong, NaN where that is unknown."""
        return np.where(self.right < 0, np.nan, (self.scores.argmax(axis=1) == self.right).astype(float))

    def classes(self) -> dict[str, Any] | None:
        """Return the options as classes, with unknown labels of -1, if all have as many; else none."""
        k = self.scores.shape[1]
        if k < 2 or (self.counts[self.counts > 0] < k).any():
            return None
        lowest = self.scores.max(axis=1, keepdims=True, initial=-1e300) - _FURTHEST
        scores = np.maximum(self.scores, lowest)
        return {"logits": scores, "labels": self.right, "class_names": self.names}


def read_options(rows: Rows, columns: Columns) -> Options:
    """Read the scores of the options, and which one is right if the file says so.

    Log-probabilities are taken as they are, and masses need not sum to one: only their shares count.
    """
    name = columns.options
    assert name is not None
    read = [_scores(value, name, rows.place(row)) for row, value in enumerate(rows.columns[name])]
    _check_kind([scores for _, scores in read], name, rows, masses=columns.masses)
    table = np.full((len(read), max((len(scores) for _, scores in read), default=0) or 1), -np.inf)
    for row, (_, scores) in enumerate(read):
        table[row, : len(scores)] = scores
    if columns.masses:
        with np.errstate(divide="ignore"):
            table = np.log(np.where(np.isneginf(table), 0.0, table))
    empty = np.isneginf(table).all(axis=1)
    counts = np.where(empty, 0, [len(scores) for _, scores in read])
    named = {names for (names, _), count in zip(read, counts.tolist(), strict=True) if count}
    right = np.full(len(read), -1)
    for row, value in enumerate(rows.columns.get(columns.answer, ())):
        right[row] = _place(value, read[row][0], int(counts[row]), columns.answer, rows.place(row))
    return Options(table, counts, named.pop() if len(named) == 1 else None, right)


def _scores(value: Any, name: str, place: str) -> tuple[tuple[str, ...] | None, list[float]]:  # noqa: ANN401
    """Return the names of the options, sorted, if they have names, and their scores; none if missing."""
    try:
        value = json.loads(value) if isinstance(value, str) and value.strip() else value
        if value is None or value == "":
            return None, []
        if isinstance(value, Mapping):
            names = tuple(sorted(map(str, value)))
            return names, [_score(value[each]) for each in names]
        if isinstance(value, (list, tuple, np.ndarray)):
            return None, [_score(each) for each in value]
    except (TypeError, ValueError):
        pass
    raise InputError(
        f"{name}: expected scores of the options, as a list or by name, got {str(value)[:40]!r} in {place}"
    )


def _score(value: Any) -> float:  # noqa: ANN401  # any JSON value
    """Return a score; an option without one has no mass."""
    number = -math.inf if value is None else float(value)
    if math.isnan(number) or number == math.inf:
        raise ValueError(value)
    return number


def _check_kind(read: Sequence[Sequence[float]], name: str, rows: Rows, *, masses: bool) -> None:
    finite = [(score, row) for row, scores in enumerate(read) for score in scores if score != -math.inf]
    low, row = min(finite, default=(0.0, 0))
    if masses and low < 0:
        raise InputError(
            f"{name}: expected masses of at least 0, got {low:.6g} in {rows.place(row)}; leave out --masses "
            "(masses=True) if these are log-probabilities"
        )
    high = max(finite, default=(0.0, 0))[0]
    if not masses and low >= 0 and 0 < high <= 1:
        raise InputError(
            f"{name}: expected log-probabilities, got numbers from {low:.6g} to {high:.6g} only; if these "
            "are probabilities, say so with --masses (masses=True)"
        )


def _place(value: Any, names: tuple[str, ...] | None, k: int, column: str, place: str) -> int:  # noqa: ANN401
    """Return the place of the right option; -1 if it is not given."""
    text = "" if value is None or value != value else str(value).strip()
    if k == 0 or not text:
        return -1
    if names is not None and text in names:
        return names.index(text)
    whole = isinstance(value, (float, np.floating)) and float(value).is_integer()
    if names is None and (whole or text.isdigit()) and 0 <= float(text) < k:
        return int(float(text))
    if names is None and len(text) == 1 and text.upper() in ascii_uppercase[:k]:
        return ascii_uppercase.index(text.upper())
    last = ascii_uppercase[min(k, 26) - 1]
    known = f"0 to {k - 1} or A to {last}" if names is None else ", ".join(names)
    raise InputError(f"{column}: expected the right option ({known}), got {text[:40]!r} in {place}")
