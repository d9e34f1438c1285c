"""Labels that come apart from their predictions: missing ones, and those in other files, joined by id."""

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.data.answers import HITS
from calibrant.data.columns import ColumnName, Columns, folded
from calibrant.data.contents import labels_by_number
from calibrant.data.files import load_answers, load_predictions, open_source
from calibrant.data.numbering import as_name, joined, numbered
from calibrant.data.predictions import Predictions
from calibrant.errors import CalibrantError, FormatError, InputError, listed
from calibrant.files import reading
from calibrant.inputs import Integers

#: The truth of a row that has none yet.
UNKNOWN = -1
_NOTHING = ("", "nan", "null", "none", "n/a", "na", "nat", "<na>")
# Programs that have no missing whole numbers write 3.0 for the class 3.
_WHOLE = re.compile(r"(\d+)\.0*")


@dataclass(frozen=True, eq=False)
class PartlyLabelled:
    """Predictions of which some have a truth.

    Attributes:
        outputs: All rows, without their truth.
        truth: The class of each row, or 1 and 0 for right and wrong answers; -1 where it is unknown.
    """

    outputs: Predictions
    truth: Integers

    @classmethod
    def of(cls, predictions: Predictions) -> "PartlyLabelled":
        """Return predictions that know their truth, or no truth at all, in this form."""
        known = predictions.truth
        truth = np.full(predictions.n, UNKNOWN) if known is None else known.cpu().numpy().astype(np.int64)
        return cls(predictions.replaced(labels=None, correct=None), truth)

    @property
    def are_pairs(self) -> bool:
        """Whether the rows are answers, whose truth is whether they were right."""
        return self.outputs.k is None

    @property
    def values(self) -> list[Any]:
        """The truth of each row as files have it: a class by its name or number, or true; None if unknown."""
        names = (False, True) if self.are_pairs else self.outputs.class_names
        known = [None if place == UNKNOWN else place for place in self.truth.tolist()]
        return [place if place is None or names is None else names[place] for place in known]

    def labelled(self) -> Predictions | None:
        """Return the rows with a truth; None if no row has one."""
        known = self.truth != UNKNOWN
        if not known.any():
            return None
        some = self.outputs if known.all() else self.outputs.take(known)
        key = "correct" if self.are_pairs else "labels"
        found = self.truth[known]
        return some.replaced(**{key: found == 1 if self.are_pairs else found})


@dataclass(frozen=True, eq=False)
class LabelFile:
    """The rows of a file of labels that have one.

    Attributes:
        name: Name of the file.
        numbers: The number of the id of each row, sorted and each once.
        ids: The ids as the file writes them.
        texts: The label of each id.
    """

    name: str
    numbers: Integers
    ids: list[str]
    texts: list[str]

    def truth(self, outputs: Predictions) -> Integers:
        """Return the labels as classes of these predictions, or as 1 and 0."""
        names = sorted(set(self.texts))
        with reading(self.name, "a file of labels"):
            places = dict(zip(names, places_of(names, outputs).tolist(), strict=True))
        return np.array([places[text] for text in self.texts], dtype=np.int64)

    def refuse(self, row: int, other: str) -> None:
        """Refuse an id whose label is another one elsewhere."""
        raise InputError(
            f"{self.name}: expected one label for each id, got {other} and {self.texts[row]} for the id "
            f"{self.ids[row]}; keep the one that is right"
        )


def load_partly(
    path: str | os.PathLike[str], columns: Columns, *, need_labels: bool
) -> PartlyLabelled | Predictions:
    """Read predictions of which some, or all unless labels are needed, have no label.

    Args:
        path: A file that :func:`~calibrant.data.load_predictions` reads.
        columns: Which columns hold what.
        need_labels: Whether a file without a column of labels is refused.
    """
    try:
        return load_predictions(path, columns=columns)
    except CalibrantError:
        with suppress(CalibrantError) if need_labels else nullcontext():
            found = _read_partly(Path(path), columns, need_labels=need_labels)
            if found is not None:
                return found
        raise  # something else is wrong


def _read_partly(path: Path, columns: Columns, *, need_labels: bool) -> PartlyLabelled | None:
    """Return the rows of a file without reading labels as the others do; None if they are not the problem."""
    found = load_answers(path, columns=replace(columns, use_labels=False), need_labels=False)
    outputs = PartlyLabelled.of(found.predictions).outputs
    column = _truth_column(path, columns, outputs)
    if column is None:
        return None if need_labels else PartlyLabelled(outputs, np.full(outputs.n, UNKNOWN))
    rows = PartlyLabelled(outputs, truth_of(column, outputs))
    return rows if found.kept.all() and (rows.truth == UNKNOWN).any() else None


def _truth_column(path: Path, columns: Columns, outputs: Predictions) -> ColumnName | None:
    name = truth_name(columns, pairs=outputs.k is None)
    with open_source(path) as source:
        return source.read_columns([], [name]).columns.get(name)


def truth_name(columns: Columns, *, pairs: bool) -> str:
    """Return the column that holds the truth: which answers were right, or the classes."""
    return columns.correct if pairs else columns.labels or "labels"


def truth_of(column: Iterable[Any], outputs: Predictions) -> Integers:
    """Return the truth of each row from values of any kind: its class, or 1 and 0; -1 where it is missing.

    Args:
        column: The label of each row, or whether it was right.
        outputs: What the labels are about.
    """
    texts = np.asarray([_text(value) for value in column], dtype=object)
    names, place = np.unique(texts.astype(str), return_inverse=True)
    return np.asarray(places_of(names.tolist(), outputs)[place])


def places_of(texts: Sequence[str], outputs: Predictions) -> Integers:
    """Return the class of each different label, or 1 and 0; -1 for an empty one."""
    known = [text for text in texts if text]
    found = _hits(known) if outputs.k is None else _classes(known, outputs)
    place = dict(zip(known, found, strict=True))
    return np.array([place.get(text, UNKNOWN) for text in texts], dtype=np.int64)


def _hits(texts: Sequence[str]) -> list[int]:
    for text in texts:
        if folded(text) not in HITS:
            raise InputError(f"correct: expected true/false, 1/0 or yes/no, got {text[:40]!r}")
    return [int(HITS[folded(text)]) for text in texts]


def _classes(texts: Sequence[str], outputs: Predictions) -> list[int]:
    names, k = outputs.class_names, outputs.k
    assert k is not None
    if not texts:
        return []
    whole = [text if text in (names or ()) else _WHOLE.sub(r"\1", text) for text in texts]
    try:
        labels = labels_by_number({"labels": np.array(whole, dtype=object)}, names)["labels"]
        few = Predictions(probs=np.full((len(whole), k), 1 / k), labels=labels, class_names=names)
    except InputError as error:
        raise InputError(re.sub(r" in row \d+", "", str(error))) from None
    assert few.labels is not None
    return [int(label) for label in few.labels]


def _text(value: object) -> str:
    text = as_name(value).strip()
    return "" if folded(text) in _NOTHING else text


def read_label_file(path: str | os.PathLike[str], columns: Columns, *, pairs: bool) -> LabelFile:
    """Read the ids and labels of a file in any format; rows without a label are left out.

    Args:
        path: The file.
        columns: Which columns hold the ids and the labels. Without a column of that name, the only column
            beside the ids has the labels.
        pairs: Whether labels say which answers were right, instead of classes.
    """
    with open_source(path) as source:
        wanted = truth_name(columns, pairs=pairs)
        others = [name for name in source.names() if name not in columns.ids]
        name = wanted if wanted in others or len(others) != 1 else others[0]
        if name not in others:
            key = "correct" if pairs else "labels"
            raise FormatError(
                f"expected a column {name!r} beside the ids, got {listed(others)}; name it with {key}='NAME'"
            )
        read = source.read_columns([*columns.ids, name]).columns
        texts = [_text(value) for value in read[name]]
        known = np.flatnonzero(np.array([bool(text) for text in texts], dtype=bool))
        ids = joined([read[each] for each in columns.ids])[known]
        numbers = numbered(ids, ", ".join(columns.ids), n=len(ids)).numpy()
    return _each_once(
        Path(path).name, numbers, [as_name(each) for each in ids], [texts[row] for row in known]
    )


def _each_once(name: str, numbers: Integers, ids: Sequence[str], texts: Sequence[str]) -> LabelFile:
    """Return the labels sorted by number; an id may be there again with the same label."""
    every, first, place = np.unique(numbers, return_index=True, return_inverse=True)
    found = LabelFile(name, every, [ids[row] for row in first], [texts[row] for row in first])
    for row, own in enumerate(place.tolist()):
        if texts[row] != found.texts[own]:
            found.refuse(own, texts[row])
    return found


def read_label_files(paths: Iterable[str | os.PathLike[str]], columns: Columns, *, pairs: bool) -> LabelFile:
    """Read several files of labels as one, named after the last of them."""
    every = [read_label_file(path, columns, pairs=pairs) for path in paths]
    return _each_once(
        every[-1].name,
        np.concatenate([each.numbers for each in every]),
        [name for each in every for name in each.ids],
        [text for each in every for text in each.texts],
    )


def load_joined(
    path: str | os.PathLike[str], columns: Columns, labels: Iterable[str | os.PathLike[str]]
) -> PartlyLabelled:
    """Read all rows of a file, with the labels of their ids in other files and their own."""
    if not columns.ids:
        raise InputError(
            "labels: expected together with the column that names each row, got none; name it with ids="
        )
    found = load_partly(path, columns, need_labels=False)
    rows = found if isinstance(found, PartlyLabelled) else PartlyLabelled.of(found)
    return with_labels(rows, read_label_files(labels, columns, pairs=rows.are_pairs))


def with_labels(rows: PartlyLabelled, labels: LabelFile) -> PartlyLabelled:
    """Return rows with the labels of their ids; a label that a row has itself must be the same."""
    ids = rows.outputs.ids
    assert ids is not None
    numbers = ids.cpu().numpy()
    place = np.searchsorted(labels.numbers, numbers).clip(max=max(len(labels.numbers) - 1, 0))
    has = labels.numbers[place] == numbers if len(labels.numbers) else np.zeros(len(numbers), dtype=bool)
    theirs = labels.truth(rows.outputs)
    given = np.full(len(numbers), UNKNOWN)
    given[has] = theirs[place[has]]
    other = np.flatnonzero(has & (rows.truth != UNKNOWN) & (rows.truth != given))
    if len(other):
        labels.refuse(int(place[other[0]]), f"{rows.truth[other[0]]} beside the prediction")
    return PartlyLabelled(rows.outputs, np.where(has, given, rows.truth))
