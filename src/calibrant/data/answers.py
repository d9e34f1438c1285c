"""Answers of a black box: columns of any kind become confidences, hits, signals and groups."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.data.columns import ColumnName, Columns, FileRows, folded
from calibrant.data.contents import find_columns, under_our_names
from calibrant.data.numbering import as_name
from calibrant.data.options import read_options
from calibrant.data.predictions import FALLING, Predictions
from calibrant.data.repeats import Repeats
from calibrant.errors import InputError
from calibrant.inputs import Floats

#: The words for right and wrong answers.
HITS = {"true": 1.0, "yes": 1.0, "1": 1.0, "1.0": 1.0, "false": 0.0, "no": 0.0, "0": 0.0, "0.0": 0.0}
_DECIMAL_COMMA = re.compile(r"^(-?\d*),(\d+)$")
_WEIGHTS, _UNITS = "weights", "units"
_NOTHING = ("", "nan", "null", "none", "n/a", "na")


@dataclass(frozen=True, eq=False)
class Answers:
    """Answers of a black box, and which rows of their file they are.

    Attributes:
        predictions: The answers that are kept.
        kept: Whether each row of the file is kept, shape ``(rows,)``.
        repeats: What suggests that rows depend on each other, if they have no units.
    """

    predictions: Predictions
    kept: npt.NDArray[np.bool_]
    repeats: Repeats | None = None


def wanted_columns(columns: Columns) -> tuple[list[str], list[str]]:
    """Return the columns that the file must have, and those that it may have, such as weights."""
    more = [*columns.group_columns, *([] if columns.weights is None else [columns.weights])]
    if columns.options is not None:
        return [columns.options, *more], [columns.answer, columns.correct, _WEIGHTS, _UNITS]
    return [*columns.names, *more], [columns.outcome or columns.correct, _WEIGHTS, _UNITS]


def complete_rows(
    source: Any,  # noqa: ANN401  # a file of any format
    columns: Columns,
    *,
    need_labels: bool,
) -> tuple[npt.NDArray[np.bool_] | None, dict[str, str], Columns]:
    """Return which rows of class scores are complete, a note on the others, and how to read these rows.

    Args:
        source: The file.
        columns: What its columns mean; without ``missing="drop"`` all rows are used, which is None.
        need_labels: Whether rows without a label are left out; otherwise labels with gaps are not read.
    """
    ours = {} if columns.missing == "refuse" else under_our_names(source.names(), columns)
    found = find_columns(list(ours))
    form = next((key for key in ("logits", "probs") if key in found), None)
    if form is None:
        return None, {}, columns
    if columns.missing == "group":
        raise InputError("missing: expected 'refuse' or 'drop' for class scores, got 'group'")
    missing = {}
    for key, in_text in ((form, _NOTHING), ("labels", ("",))):
        read = source.read_columns([ours[name] for name in found.get(key, ())]).columns
        missing[key] = np.any([_gaps(column, in_text) for column in read.values()], axis=0)
    scores, labels = missing[form], missing["labels"] & np.ones_like(missing[form])
    if labels.any() and not need_labels:
        columns, labels = replace(columns, use_labels=False), np.zeros_like(scores)
    kept, reasons = ~(scores | labels), {f"without {form}": scores, "without labels": labels & ~scores}
    if not kept.any():
        raise InputError(f"{form}: expected some complete rows, got none in {len(kept):,} rows")
    return kept, {} if kept.all() else _dropped(kept, reasons), columns


def _gaps(column: ColumnName, in_text: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    """Return where a column of numbers, text or lists lacks a value."""
    if isinstance(column, np.ndarray) and column.dtype.kind != "O":
        missing = np.isnan(column) if column.dtype.kind == "f" else np.zeros(column.shape, dtype=bool)
        return np.asarray(missing.reshape(len(column), -1).any(axis=1))

    def lacks(value: Any) -> bool:  # noqa: ANN401  # a cell of any kind
        if isinstance(value, (list, tuple, np.ndarray)):
            return any(map(lacks, value))
        if isinstance(value, Mapping):
            return any(map(lacks, value.values()))
        return value is None or value != value or (isinstance(value, str) and folded(value) in in_text)

    return np.fromiter(map(lacks, column), dtype=bool, count=len(column))


def _dropped(kept: npt.NDArray[np.bool_], reasons: Mapping[str, npt.NDArray[np.bool_]]) -> dict[str, str]:
    """Return the note on rows that are left out: how many, and why."""
    counted = [f"{int(which.sum()):,} {reason}" for reason, which in reasons.items() if which.any()]
    return {"dropped": str(int((~kept).sum())), "dropped_because": ", ".join(counted)}


def read_answers(rows: FileRows, columns: Columns, *, need_labels: bool) -> Answers:
    """Return the answers in columns that were read.

    Args:
        rows: The columns that :func:`wanted_columns` names.
        columns: What the columns mean.
        need_labels: Whether answers without a known outcome are refused.
    """
    stated = _from_options(rows, columns) if columns.options is not None else _from_numbers(rows, columns)
    if stated.hits is None and need_labels:
        column, option = (columns.outcome or columns.correct, "outcome" if columns.outcome else "correct")
        if columns.options is not None:
            column, option = columns.answer, "answer"
        raise InputError(
            f"expected a column {column!r} that says which answers are right, got none; name it with "
            f"{option}='NAME'"
        )
    if not need_labels and stated.hits is not None and np.isnan(stated.hits).any():
        stated = replace(stated, hits=None)
    kept, notes = _sort_out(rows, columns, stated)
    values = _arguments(stated, kept)
    values["groups"] = _groups(rows, columns, np.isnan(stated.confidence), kept, stated.words)
    weights = columns.weights or _WEIGHTS
    values["weights"] = _numbers(rows, weights, columns)[0] if weights in rows.columns else None
    values["units"] = np.asarray(rows.columns[_UNITS], dtype=object) if _UNITS in rows.columns else None
    taken = {name: _take(value, kept) for name, value in values.items() if value is not None}
    notes = notes | ({FALLING: "true"} if columns.falling else {})
    return Answers(Predictions(**taken, metadata=notes), kept)


@dataclass(frozen=True, eq=False)
class _Stated:
    """What all rows of a file say: NaN where a confidence is missing or a hit is unknown."""

    confidence: Floats
    hits: Floats | None
    signals: dict[str, Floats]
    classes: dict[str, Any] | None = None
    is_score: bool = False
    words: npt.NDArray[np.object_] | None = None


def _from_numbers(rows: FileRows, columns: Columns) -> _Stated:
    first, *others = columns.names
    words = _words(rows.columns[first]) if columns.words is True else None
    if words is not None:
        plain = [None if word is not None else x for x, word in zip(rows.columns[first], words, strict=True)]
        rows = replace(rows, columns={**rows.columns, first: plain})
    confidence = _percent(rows, first, columns) if columns.percent else _numbers(rows, first, columns)[0]
    if columns.scale is not None:
        low, high = columns.scale
        confidence = (confidence - low) / (high - low)
    if columns.falling:
        confidence = -confidence
    if words is not None:
        said = np.array([word is not None for word in words])
        confidence, words[~said] = np.where(said, 0.5, confidence), "a number"
    signals = {name: _numbers(rows, name, columns)[0] for name in others}
    more = {first: confidence, **signals} if others else {}
    return _Stated(confidence, _hits(rows, columns), more, is_score=columns.score is not None, words=words)


def _words(column: ColumnName) -> npt.NDArray[np.object_]:
    """Return the word in each row as it is compared; None where there is a number or nothing."""
    words = np.full(len(column), None, dtype=object)
    for row, value in enumerate(column):
        if isinstance(value, str) and (word := folded(value)) not in _NOTHING and _as_number(word) is None:
            words[row] = word
    return words


def _as_number(word: str) -> float | None:
    try:
        return float(_DECIMAL_COMMA.sub(r"\1.\2", word.removesuffix("%").rstrip()))
    except ValueError:
        return None


def _from_options(rows: FileRows, columns: Columns) -> _Stated:
    options = read_options(rows, columns)
    hits = options.hits if columns.answer in rows.columns else _hits(rows, columns)
    # Whether the best option is right does not say which one is, so such answers are pairs.
    classes = options.classes if columns.answer in rows.columns or hits is None else None
    return _Stated(options.confidence, hits, {"margin": options.margin}, classes)


def _arguments(stated: _Stated, kept: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """Return what makes predictions: classes where all questions have as many options, else pairs."""
    missing = np.isnan(stated.confidence)
    if stated.classes is not None and not (missing & kept).any():
        labels = stated.classes["labels"]
        return {**stated.classes, "labels": None if (labels[kept] < 0).any() else labels}
    form = "score" if stated.is_score else "confidence"
    return {
        form: np.where(missing, 0.5, stated.confidence),
        "outcome": stated.hits,
        "signals": stated.signals,
    }


def _percent(rows: FileRows, name: str, columns: Columns) -> Floats:
    values, marked = _numbers(rows, name, columns)
    plain = values[~marked & ~np.isnan(values)]
    if len(plain) and plain.max() <= 1 and ((plain > 0) & (plain < 1)).any():
        raise InputError(
            f"{name}: expected percent, got at most {plain.max():.6g} everywhere; leave out "
            "percent=True if these are probabilities"
        )
    return np.where(marked, values, values / 100)


def _numbers(rows: FileRows, name: str, columns: Columns) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return the numbers of a column, NaN where missing, and which are done: from a word, or with a %."""
    column = rows.columns[name]
    if isinstance(column, np.ndarray) and column.dtype.kind in "fiu" and column.ndim == 1:
        return column.astype(np.float64), np.zeros(len(column), dtype=bool)
    values, done = np.full(len(column), np.nan), np.zeros(len(column), dtype=bool)
    for row, value in enumerate(column):
        if isinstance(value, str):
            values[row], done[row] = _from_text(value, name, columns, rows.place(row))
        elif isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
            values[row] = float(value)
        elif value is not None:
            raise InputError(f"{name}: expected a number, got {str(value)[:40]!r} in {rows.place(row)}")
    return values, done


def _from_text(text: str, name: str, columns: Columns, place: str) -> tuple[float, bool]:
    word, words = folded(text), columns.words if isinstance(columns.words, Mapping) else {}
    if word in words:
        return words[word], True
    if word in _NOTHING:
        return np.nan, False
    if (value := _as_number(word)) is None:
        raise _unknown_word(text, name, words, place)
    if not word.endswith("%"):
        return value, False
    if not columns.percent:
        raise InputError(
            f"{name}: expected a number between 0 and 1, got {text!r} in {place}; if the confidence is in "
            "percent, say so with percent=True"
        )
    return value / 100, True


def _unknown_word(text: str, name: str, words: Mapping[str, float], place: str) -> InputError:
    got = f"got {text[:40]!r} in {place}"
    if not words:
        return InputError(
            f"{name}: expected a number, {got}; if words stand for confidences, give their numbers in a JSON "
            "file with words=FILE, or let calibrate learn them with words=True"
        )
    return InputError(
        f"{name}: expected a number or one of the words {', '.join(words)}, {got}; add this one"
    )


def _hits(rows: FileRows, columns: Columns) -> Floats | None:
    """Return 1 and 0 for right and wrong answers, NaN where unknown; none if the column is not there."""
    if columns.outcome is not None:
        return _outcomes(rows, columns)
    if columns.correct not in rows.columns:
        return None
    column = rows.columns[columns.correct]
    if isinstance(column, np.ndarray) and column.dtype.kind == "b":
        return column.astype(np.float64)
    hits = np.full(len(column), np.nan)
    for row, value in enumerate(column):
        word = "" if value is None or value != value else folded(str(value))
        if word in HITS:
            hits[row] = HITS[word]
        elif word not in _NOTHING and columns.missing != "drop":
            raise InputError(
                f"{columns.correct}: expected true/false, 1/0 or yes/no, got {str(value)[:40]!r} in "
                f"{rows.place(row)}; compare the answer with the right one first"
            )
    return hits


def _outcomes(rows: FileRows, columns: Columns) -> Floats | None:
    """Return outcomes from 0 to 1, NaN where unknown; none if the column is not there."""
    name = columns.outcome
    if name is None or name not in rows.columns:
        return None
    words = columns.words if isinstance(columns.words, Mapping) else {}
    readable = replace(columns, words={**HITS, **words}, percent=False, scale=None)
    column = rows.columns[name]
    if isinstance(column, np.ndarray) and column.dtype.kind == "b":
        return column.astype(np.float64)
    plain = [str(value) if isinstance(value, (bool, np.bool_)) else value for value in column]
    outcome = _numbers(replace(rows, columns={**rows.columns, name: plain}), name, readable)[0]
    wrong = ~np.isnan(outcome) & ~((outcome >= 0) & (outcome <= 1))
    if wrong.any() and columns.missing != "drop":
        raise InputError(
            f"{name}: expected outcomes between 0 and 1, got {outcome[wrong][0]:.6g} in "
            f"{_rows(rows, wrong)}; divide grades by the highest one"
        )
    return np.where(wrong, np.nan, outcome)


def _sort_out(
    rows: FileRows, columns: Columns, stated: _Stated
) -> tuple[npt.NDArray[np.bool_], dict[str, str]]:
    """Return which rows are kept, and what to note about the others; refuse rows that are not allowed."""
    c, name = stated.confidence, columns.options or columns.names[0]
    missing = np.isnan(c)
    possible = np.isfinite(c) if stated.is_score else (c >= 0) & (c <= 1)
    impossible = ~missing & ~possible
    unknown = np.zeros(len(c), dtype=bool) if stated.hits is None else np.isnan(stated.hits)
    if columns.missing != "drop" or _mostly_percent(c, columns):
        _refuse_impossible(rows, columns, name, c, impossible)
    if columns.missing == "refuse" and missing.any():
        raise InputError(
            f"{name}: expected a confidence in every row, got none in {_rows(rows, missing)}; leave such "
            "answers out with missing='drop' or keep them as a group of their own with missing='group'"
        )
    if columns.missing != "drop":
        if unknown.any():
            raise InputError(
                f"{columns.answer if columns.options else columns.outcome or columns.correct}: expected a "
                "value in every row, "
                f"got none in {_rows(rows, unknown)}; leave such answers out with missing='drop'"
            )
        return np.ones(len(c), dtype=bool), {}
    reasons = {f"without {name}": missing, f"impossible in {name}": impossible}
    reasons["not known to be right or wrong"] = unknown & ~missing & ~impossible
    kept = ~(missing | impossible | unknown)
    if not kept.any():
        raise InputError(f"{name}: expected some confidences between 0 and 1, got none in {len(c):,} rows")
    return kept, {} if kept.all() else _dropped(kept, reasons)


def _mostly_percent(confidence: Floats, columns: Columns) -> bool:
    """Return whether dropping impossible values would drop what are in truth percent."""
    above = int(((confidence > 1) & (confidence <= 100)).sum())
    return not columns.percent and 2 * above > int((~np.isnan(confidence)).sum())


def _refuse_impossible(
    rows: FileRows, columns: Columns, name: str, confidence: Floats, impossible: npt.NDArray[np.bool_]
) -> None:
    if not impossible.any():
        return
    value = float(confidence[impossible][0])
    expected, advice = "numbers between 0 and 1", "leave such answers out with missing='drop'"
    if columns.score is not None:
        expected = "finite numbers"
    elif columns.percent:
        expected, value = "percent between 0 and 100", 100 * value
    elif columns.scale is not None:
        low, high = columns.scale
        expected, value = f"grades from {low:g} to {high:g}", low + value * (high - low)
    else:
        advice = _meaning(confidence) or advice
    raise InputError(f"{name}: expected {expected}, got {value:.10g} in {_rows(rows, impossible)}; {advice}")


def _meaning(values: Floats) -> str:
    """Return what numbers beyond 0 and 1 may mean, and how to say so; empty if only a few are beyond."""
    known = values[np.isfinite(values)]
    if not len(known) or ((known >= 0) & (known <= 1)).mean() >= 0.5:
        return "if the confidence is in percent, say so with percent=True" if 1 < known.max() <= 100 else ""
    low, high = float(known.min()), float(known.max())
    score = "if it only ranks, name it with score= instead"
    if low >= 0 and high <= 10 and bool((known == known.round()).all()):
        least = 1 if low >= 1 else 0
        return f"if these are grades from {least} to 10, say so with scale=({least}, 10); {score}"
    if low >= 0 and high <= 100:
        return f"if the confidence is in percent, say so with percent=True; {score}"
    return score


def _rows(rows: FileRows, which: npt.NDArray[np.bool_]) -> str:
    """Return the place of the first row, and how many there are."""
    first, count = rows.place(int(which.argmax())), int(which.sum())
    return first if count == 1 else f"{first} and {count - 1:,} more"


def _groups(
    rows: FileRows,
    columns: Columns,
    missing: npt.NDArray[np.bool_],
    kept: npt.NDArray[np.bool_],
    words: npt.NDArray[np.object_] | None,
) -> npt.NDArray[np.object_] | dict[str, npt.NDArray[np.object_]] | None:
    """Return the group of each row: that of a column, or a word; answers without a confidence may be one.

    Of several columns, the groups of each are returned by the name of the column.
    """
    if len(columns.group_columns) > 1:
        alone = [(name, replace(columns, groups=name)) for name in columns.group_columns]
        return {name: _groups(rows, each, missing, kept, words) for name, each in alone}  # type: ignore[misc]  # of one column
    apart = columns.missing == "group"
    if columns.groups is None and not apart and words is None:
        return None
    names = np.full(len(missing), "given", dtype=object) if words is None else words.copy()
    if columns.groups is not None:
        names[:] = [as_name(value) for value in rows.columns[columns.group_columns[0]]]
        unnamed = (names == "") & kept & ~(missing & apart)
        if unnamed.any():
            raise InputError(
                f"{columns.by}: expected a group in every row, got none in {_rows(rows, unnamed)}; fill "
                "it with a name such as 'other'"
            )
    names[missing & apart] = f"no {columns.options or columns.names[0]}"
    return names


def _take(value: ColumnName | dict[str, Floats], kept: npt.NDArray[np.bool_]) -> Any:  # noqa: ANN401  # as value
    if isinstance(value, dict):
        return {name: _take(each, kept) for name, each in value.items()}
    return value[kept] if isinstance(value, np.ndarray) else value
