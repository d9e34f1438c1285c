"""Scores of the options of multiple-choice questions; rows may have different numbers of options."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.data.columns import Columns, FileRows
from calibrant.errors import InputError
from calibrant.files import parse_json
from calibrant.inputs import Floats
from calibrant.signals import option_scores

# Log-probabilities may be this far above 0 by rounding.
_ROUNDING = 1e-4
# The logarithm of the smallest positive number: stands for no mass at all, where numbers must be finite.
_NO_MASS = 745.0


@dataclass(frozen=True, eq=False)
class Options:
    """The best option of each question.

    Attributes:
        confidence: Its share in the mass of all options, shape ``(n,)``; NaN where scores are missing.
        margin: Its log-odds against the second; NaN where scores are missing.
        hits: 1 where it is right, 0 where it is wrong, NaN where that is unknown.
        classes: Logits, labels (-1 where unknown) and names of all options, if all questions have as many.
    """

    confidence: Floats
    margin: Floats
    hits: Floats
    classes: dict[str, Any] | None


def read_options(rows: FileRows, columns: Columns) -> Options:
    """Read the scores of the options, and which one is right if the file says so.

    Only the shares of the options count, so masses need not sum to one.
    """
    name = columns.options
    assert name is not None
    read = [_scores(value, name, rows.place(row)) for row, value in enumerate(rows.columns[name])]
    names, scores = [each for each, _ in read], [np.asarray(each) for _, each in read]
    if columns.masses:
        scores = [np.where(np.isneginf(each), 0.0, each) for each in scores]
    missing = np.array([bool((each == (0.0 if columns.masses else -math.inf)).all()) for each in scores])
    # Questions without scores take part, so that every question keeps its row.
    scores = [np.full(2, float(columns.masses)) if missing[row] else each for row, each in enumerate(scores)]
    for row, each in enumerate(scores):
        _check_scores(each, name, rows.place(row), masses=columns.masses)
    best = option_scores(scores, kind="masses" if columns.masses else "log_probs")
    right = np.full(len(read), -1)
    for row, value in enumerate(rows.columns.get(columns.answer, ())):
        k = 0 if missing[row] else len(scores[row])
        right[row] = _place(value, names[row], k, columns.answer, rows.place(row))
    return Options(
        confidence=np.where(missing, np.nan, np.asarray(best.confidence)),
        margin=np.where(missing, np.nan, np.asarray(best.margin)),
        hits=np.where(right < 0, np.nan, (np.asarray(best.option) == right).astype(np.float64)),
        classes=_classes(scores, names, right, missing, masses=columns.masses),
    )


def _classes(
    scores: Sequence[Floats],
    names: Sequence[tuple[str, ...] | None],
    right: npt.NDArray[np.int64],
    missing: npt.NDArray[np.bool_],
    *,
    masses: bool,
) -> dict[str, Any] | None:
    """Return the options as classes, if all questions that have scores have as many; else none."""
    there = np.flatnonzero(~missing).tolist()
    widths, named = {len(scores[row]) for row in there}, {names[row] for row in there}
    if len(widths) != 1 or len(named) != 1:
        return None
    table = np.zeros((len(scores), widths.pop()))
    table[there] = [scores[row] for row in there]
    if masses:
        with np.errstate(divide="ignore"):
            table[there] = np.log(table[there])
    logits = np.maximum(table, table.max(axis=1, keepdims=True) - _NO_MASS)
    return {"logits": logits, "labels": right, "class_names": named.pop()}


def _scores(value: Any, name: str, place: str) -> tuple[tuple[str, ...] | None, list[float]]:  # noqa: ANN401
    """Return the names of the options, sorted, if they have names, and their scores; none if missing."""
    try:
        value = parse_json(value) if isinstance(value, str) and value.strip() else value
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


def _check_scores(scores: Floats, name: str, place: str, *, masses: bool) -> None:
    if len(scores) < 2:
        raise InputError(f"{name}: expected at least two options, got one in {place}; drop such rows")
    if masses and scores.min() < 0:
        raise InputError(
            f"{name}: expected masses of at least 0, got {scores.min():.6g} in {place}; leave out "
            "masses=True if these are log-probabilities"
        )
    if not masses and scores.max() > _ROUNDING:
        raise InputError(
            f"{name}: expected log-probabilities, which are at most 0, got {scores.max():.6g} in {place}; if "
            "these are probabilities, say so with masses=True"
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
