"""Which columns of a file hold what, and how the answers of a black box are written there."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, get_args, runtime_checkable

import numpy as np
import numpy.typing as npt

from calibrant.errors import InputError
from calibrant.files import read_json, reading
from calibrant.inputs import check_choice

#: What is done with answers that have no confidence.
Missing: TypeAlias = Literal["refuse", "drop", "group"]
#: Tools whose logs can be read.
Layout: TypeAlias = Literal["lm-eval", "inspect", "openai"]

LAYOUTS: tuple[Layout, ...] = get_args(Layout)

# Arguments that take one name or several.
_FORMS = ("logits", "probs", "confidence")
_SEVERAL = (*_FORMS, "units", "ids")


@runtime_checkable
class FrameLike(Protocol):
    """A frame of pandas, Polars, Arrow or another library: it gives its columns to Arrow."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


#: Where predictions are read from: a file, its address, or a frame.
Source: TypeAlias = str | os.PathLike[str] | FrameLike
#: A column as it was read: numbers, or a value of any kind in each row.
ColumnName: TypeAlias = npt.NDArray[Any] | Sequence[Any]


@dataclass(frozen=True, eq=False)
class FileRows:
    """Columns as they were read, and where each row stands in its file.

    Attributes:
        columns: The columns by name, all of the same length.
        unit: What a row is called in error messages.
        numbers: The number of each row there; rows count from zero by default.
    """

    columns: Mapping[str, ColumnName]
    unit: str = "row"
    numbers: Sequence[int] | None = None

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns.items()}
        first = next(iter(lengths), "")
        for name, length in lengths.items():
            if length != lengths[first]:
                raise InputError(
                    f"{name}: expected {lengths[first]} values, as many as in {first}, got {length}"
                )

    def place(self, row: int) -> str:
        """Return where a row is, for error messages."""
        return f"{self.unit} {row if self.numbers is None else self.numbers[row]}"


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which columns of a file hold what; without any, files are read under our own names.

    Names may contain dots, as in ``metadata.subject``, for values within others.

    Args:
        logits: The column of the logits; or the name before ``_0``, ``_1``, ... or ``_<class name>`` of one
            column for each class; or the names of these columns in the order of the classes.
        probs: The columns of the probabilities, likewise.
        labels: The column of the true classes.
        weights: The column of how much each sample counts.
        classes: The names of the classes in the order of their columns, by which labels are looked up. If all
            are numbers, such as 1, 2 and 3, so are labels that are numbers.
        confidence: The column of the confidence. Of several names the first is the confidence, and all of
            them, the first too, become signals; NaN where such a value is missing.
        correct: The column that says whether each answer was right: true/false, 1/0 or yes/no.
        score: The column of a number that should rise with the outcome, on any scale, instead of
            ``confidence``.
        outcome: The column of what came true, from 0 to 1, instead of ``correct``: a tie is 0.5. Words are
            looked up in ``words``.
        falling: Whether the score falls where the outcome rises.
        scale: The lowest and the highest grade of the confidence, such as ``(0, 10)``: they count as 0 and 1.
        groups: The column of the group of each answer; of several, such as race and sex, each column makes
            groups, and so do all of them together.
        units: The column of what each row belongs to, if rows depend on each other, such as the question of
            an answer; of several columns, such as year and state, all together name it.
        ids: The column, or several, that names each row, by which two models are compared.
        options: The column of the scores of the options of a multiple-choice question: a list, or an object
            by the name of the option, in each row; instead of ``confidence``.
        masses: Whether these scores are masses, which need not sum to one, instead of log-probabilities.
        answer: The column of the right option: its place, counted from zero, its letter, or its name.
        percent: Whether the confidence, or the probabilities, are in percent, with or without the mark.
        words: The confidence that each word stands for, such as ``{"very likely": 0.9}``; or True, if that is
            to be learned: then each word is a group, with confidence 0.5, and a calibrator by group learns
            how often answers with the word are right, shrunk towards all answers; unseen words get the rate
            of all.
        missing: What is done with answers whose confidence is missing, and with rows without class scores or
            labels: ``"refuse"`` the file; ``"drop"`` them, and answers with impossible values, and count them
            in the metadata under ``dropped``; or give answers a ``"group"`` of their own, with confidence
            0.5.
        layout: The tool that wrote the file; recognised from the first record by default.
        several_labels: Whether each column of scores is a label of its own; recognised by default if there is
            also a column of labels for each.
        use_labels: Whether labels, and ``correct`` under that name, are read.
    """

    logits: str | Sequence[str] = ()
    probs: str | Sequence[str] = ()
    labels: str | None = None
    weights: str | None = None
    classes: Sequence[str] | None = None
    confidence: str | Sequence[str] = ()
    correct: str = "correct"
    score: str | None = None
    outcome: str | None = None
    falling: bool = False
    scale: tuple[float, float] | None = None
    groups: str | Sequence[str] | None = None
    units: str | Sequence[str] = ()
    ids: str | Sequence[str] = ()
    options: str | None = None
    masses: bool = False
    answer: str = "answer"
    percent: bool = False
    words: Mapping[str, float] | bool | None = None
    missing: Missing = "refuse"
    layout: Layout | None = None
    several_labels: bool = False
    use_labels: bool = True

    def __post_init__(self) -> None:
        for key in _SEVERAL:
            object.__setattr__(self, key, _check_names(getattr(self, key), key))
        forms = [key for key in (*_FORMS, "score", "options") if getattr(self, key)]
        if len(forms) > 1:
            raise InputError(
                f"{forms[-1]}: expected either {forms[0]} or {forms[-1]}, got both; name one of them"
            )
        if self.classes is not None:
            object.__setattr__(self, "classes", _check_names(self.classes, "classes"))
        object.__setattr__(self, "groups", _check_groups(self.groups))
        check_choice(self.missing, "missing", get_args(Missing))
        _check_score(self)
        if self.layout is not None:
            check_choice(self.layout, "layout", LAYOUTS)
        if self.words is True and self.groups is not None:
            raise InputError(
                f"words: expected none to learn beside groups, because words become the groups, got "
                f"{self.by!r}; give the numbers of the words with words=FILE"
            )
        if self.words is not None and not isinstance(self.words, bool):
            object.__setattr__(self, "words", _check_words(self.words))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that hold a confidence; ``confidence`` if none is named."""
        return (self.score,) if self.score else tuple(self.confidence) or ("confidence",)

    @property
    def group_columns(self) -> tuple[str, ...]:
        """The columns of groups; empty if there are none."""
        return (self.groups,) if isinstance(self.groups, str) else tuple(self.groups or ())

    @property
    def by(self) -> str | None:
        """The columns of groups in words; None if there are none."""
        return ", ".join(self.group_columns) or None

    @property
    def other_names(self) -> dict[str, tuple[str, ...]]:
        """The columns that a file has under other names than ours, by our name."""
        one = {key: (name,) for key in ("labels", "weights") if (name := getattr(self, key)) is not None}
        several = {key: tuple(getattr(self, key)) for key in ("logits", "probs") if getattr(self, key)}
        return several | one

    @property
    def needs_whole_files(self) -> bool:
        """Whether something is given that cannot be used on a stream, which has our own names of columns."""
        others = self.describe_answers or bool(self.other_names) or self.classes is not None
        return others or len(self.group_columns) > 1

    @property
    def of_boxes(self) -> bool:
        """Whether rows are the boxes of a detector, which :mod:`calibrant.boxes` reads: no."""
        return False

    @property
    def makes_groups(self) -> bool:
        """Whether the samples are put into groups."""
        return self.groups is not None or self.missing == "group" or self.words is True

    @property
    def describe_answers(self) -> bool:
        """Whether something is given that only answers of a black box have."""
        given = (*self.confidence, self.options, self.percent and not self.probs, self.words)
        scored = self.score is not None or self.outcome is not None or self.scale is not None
        return scored or any(given) or self.correct != "correct" or self.missing != "refuse"


def read_classes(text: str) -> list[str]:
    """Return the names of classes in a list with commas, or in a file with one name in each line.

    Example:
        >>> read_classes("cat, dog")
        ['cat', 'dog']
    """
    path = Path(text)
    if "," not in text and path.is_file():
        with reading(path.name, "a text file of one class name in each line"):
            return [
                line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()
            ]
    return [name.strip() for name in text.split(",")]


def read_words(path: Path) -> dict[str, float]:
    """Read the confidence that each word stands for from a JSON file: one object, word to number."""
    return _check_words(read_json(path, "a JSON object of words and numbers"), name=path.name)


def folded(word: str) -> str:
    """Return a word as it is compared: without regard to capitals and spaces.

    Example:
        >>> folded(" Very  likely ")
        'very likely'
    """
    return " ".join(word.split()).casefold()


def _check_score(columns: Columns) -> None:
    """Refuse what cannot stand beside each other: scores, outcomes, and how they are written."""
    if columns.falling and columns.score is None:
        raise InputError("falling: expected a score beside it, got none; name its column as the score")
    if columns.outcome is not None and columns.correct != "correct":
        raise InputError("outcome: expected either correct or outcome, got both; name one of them")
    if columns.scale is None:
        return
    if columns.percent or columns.score is not None:
        other = "percent" if columns.percent else "score"
        raise InputError(f"scale: expected none beside {other}, got {columns.scale}; leave one of them out")
    if len(columns.scale) != 2 or not columns.scale[0] < columns.scale[1]:
        raise InputError(
            f"scale: expected the lowest and the highest grade, such as (0, 10), got {columns.scale!r}"
        )


def _check_names(names: str | Sequence[str], key: str) -> tuple[str, ...]:
    several = (names,) if isinstance(names, str) else tuple(names)
    if len(set(several)) < len(several) or not all(several):
        what = "classes" if key == "classes" else "columns"
        raise InputError(f"{key}: expected different names of {what}, got {', '.join(several)!r}")
    return several


def _check_groups(names: str | Sequence[str] | None) -> str | tuple[str, ...] | None:
    """Return one column of groups as its name, and several as a tuple."""
    if names is None:
        return None
    named = _check_names(names, "groups")
    if not named:
        raise InputError("groups: expected the name of a column, or several, got none")
    return named if len(named) > 1 else named[0]


def _check_words(words: object, *, name: str = "words") -> dict[str, float]:
    if not isinstance(words, Mapping) or not words:
        raise InputError(f'{name}: expected words and numbers such as {{"very likely": 0.9}}, got {words!r}')
    for word, value in words.items():
        number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        if not number or not 0 <= value <= 1:
            raise InputError(f"{name}: expected a number between 0 and 1 for {word!r}, got {value!r}")
    return {folded(str(word)): float(value) for word, value in words.items()}
