"""Predictions on disk: the suffix of the file decides the format."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from calibrant.data.answers import Answers, complete_rows, read_answers, wanted_columns
from calibrant.data.columns import ColumnName, Columns, FileRows, FrameLike, Source
from calibrant.data.contents import select_form, with_classes
from calibrant.data.labels import is_label_matrix, read_labels
from calibrant.data.numbering import joined, numbered
from calibrant.data.predictions import Predictions, Stored
from calibrant.data.repeats import find_repeats
from calibrant.errors import FormatError, InputError
from calibrant.files import atomic_path, local_copy, reading, suffix_of

# Module and class by name, so that pyarrow is imported only if a table is read or written.
FORMATS = {
    ".npz": ("calibrant.data.archives", "Npz"),
    ".parquet": ("calibrant.data.tables", "Parquet"),
    ".csv": ("calibrant.data.tables", "Csv"),
    ".tsv": ("calibrant.data.tables", "Tsv"),
    ".safetensors": ("calibrant.data.archives", "Safetensors"),
    ".jsonl": ("calibrant.data.json_lines", "JsonLines"),
}
# What reads tables of text where pyarrow is not installed.
_PLAIN = {".csv": "PlainCsv", ".tsv": "PlainTsv"}
# Logs of other tools, which are read but not written.
LOGS = {".json": ("calibrant.data.logs", "InspectLog"), ".eval": ("calibrant.data.logs", "InspectArchive")}
# The most by which the sum of rounded percent may differ from the whole.
_ROUNDING = 0.05


class Format(Protocol):
    """What every format offers for a file."""

    def __init__(self, path: Path) -> None: ...

    def names(self) -> list[str]:
        """Return the names of all arrays or columns."""

    def read(
        self, columns: Columns, kept: npt.NDArray[np.bool_] | None = None
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the unchecked values of some rows under our keys, and the names of all arrays or columns."""

    def read_columns(self, wanted: Sequence[str], optional: Sequence[str] = ()) -> FileRows:
        """Return columns by name, as they are; refuse a file without all that are wanted."""

    def write(self, predictions: Stored) -> None:
        """Write the predictions to the file."""


def load_predictions(
    path: Source,
    *,
    need_labels: bool = True,
    columns: Columns | None = None,
    **named: Any,  # noqa: ANN401  # fields of Columns
) -> Predictions:
    """Read predictions: ``.npz``, ``.parquet``, ``.csv``, ``.tsv``, ``.safetensors`` or ``.jsonl``.

    Text may be compressed, as in ``.csv.gz``. A frame of pandas, Polars or Arrow is read as a Parquet file of
    its columns would be; its index is not read. The file names ``logits``, ``probs``, or ``confidence`` with
    ``correct``; ``labels``; and may name ``features``, ``weights``, ``units``, ``class_names``, ``metadata``,
    ``groups`` and, beside a confidence, ``signal_<name>``.
    Tables may spread a matrix over columns ``logits_0``, ``logits_1``, ... or ``logits_<class name>``. Other
    names are ignored, and so are ``confidence`` and ``correct`` next to logits or probabilities, and
    ``labels`` next to a full pair; a file with both logits and probabilities is refused. Nothing is ever
    unpickled.

    Logs of lm-evaluation-harness and of OpenAI's API (``.jsonl``) and of Inspect (``.eval``, ``.json``) are
    recognised.

    Args:
        path: The file, whose suffix decides the format; its address, such as ``s3://bucket/test.csv.gz``; or
            a frame.
        need_labels: Whether a file without labels, or without ``correct``, is refused.
        columns: Which columns hold what, if they have other names; how answers of a black box are written.
        **named: The same in short: fields of ``columns``, such as ``confidence="stated"``.

    Raises:
        FormatError: The file is missing, has another format than its suffix, or lacks something needed.
        InputError: The values are not valid predictions; the message starts with the file's name.
    """
    if named and columns is not None:
        first = next(iter(named))
        raise InputError(f"{first}: expected none beside columns, got {named[first]!r}; put it there")
    columns = Columns(**named) if named else columns
    return load_answers(path, columns=columns, need_labels=need_labels).predictions


def load_answers(path: Source, *, need_labels: bool = True, columns: Columns | None = None) -> Answers:
    """Read predictions as :func:`load_predictions` does; say which rows they are, and whether rows repeat."""
    columns = columns or Columns()
    with open_source(path, FORMATS | LOGS) as source:
        answers = _with_row_names(_answers(source, columns, need_labels=need_labels), source, columns)
        repeats = find_repeats(answers.predictions, source.names(), partial(_column, source))
        return replace(answers, repeats=repeats)


def _answers(source: Format, columns: Columns, *, need_labels: bool) -> Answers:
    """Read a log of another tool, answers of a black box, or predictions under our own names."""
    if (log := _log(source, columns)) is not None:
        return read_answers(*log, need_labels=need_labels)
    if (rows := _answer_rows(source, columns)) is not None:
        return read_answers(rows, columns, need_labels=need_labels)
    kept, notes, columns = complete_rows(source, columns, need_labels=need_labels)
    try:
        predictions = _read_own(source, columns, kept, notes, need_labels=need_labels)
    except Exception:
        _explain_answers(source)
        raise
    return Answers(predictions, np.ones(predictions.n_rows, dtype=bool) if kept is None else kept)


def _column(source: Format, name: str) -> ColumnName:
    return source.read_columns([name]).columns[name]


def _with_row_names(answers: Answers, source: Format, columns: Columns) -> Answers:
    """Return the answers with the units and the ids of their rows, from the columns that hold them."""
    given: dict[str, Any] = {}
    for key in ("units", "ids"):
        if names := tuple(getattr(columns, key)):
            read = source.read_columns(names).columns
            column = joined([read[name] for name in names])[answers.kept]
            given[key] = numbered(column, ", ".join(names), n=len(column))
    return replace(answers, predictions=answers.predictions.replaced(**given)) if given else answers


def save_predictions(predictions: Predictions, path: str | os.PathLike[str]) -> None:
    """Write predictions: ``.npz``, ``.parquet``, ``.csv``, ``.tsv``, ``.safetensors`` or ``.jsonl``.

    Loading returns what was saved, except that ids are read only if ``columns`` names them, that ``.npz`` and
    ``.parquet`` store bfloat16 as float32, and that ``.csv``, ``.tsv`` and ``.jsonl`` store all numbers as
    float64 and no metadata. The file is written as a whole or not at all.
    """
    form = _format(Path(path), FORMATS)
    with atomic_path(path) as temporary:
        form(temporary).write(predictions.stored())


def _answer_rows(source: Format, columns: Columns) -> FileRows | None:
    """Return the columns of answers of a black box; none if the file has class scores."""
    if not columns.describe_answers:
        return None
    try:
        return source.read_columns(*wanted_columns(columns))
    except FormatError:
        if replace(columns, percent=False, missing="refuse").describe_answers:
            raise
        return None  # class probabilities may be in percent, or missing


def _read_own(
    source: Format,
    columns: Columns,
    kept: npt.NDArray[np.bool_] | None,
    notes: Mapping[str, str],
    *,
    need_labels: bool,
) -> Predictions:
    values, names = source.read(columns, kept)
    if columns.groups is not None:
        read = source.read_columns(columns.group_columns).columns
        named = {
            name: read[name] if kept is None else np.asarray(read[name], dtype=object)[kept]
            for name in columns.group_columns
        }
        values["groups"] = named if len(named) > 1 else named[columns.group_columns[0]]
    if notes:
        values["metadata"] = {**values.get("metadata", {}), **notes}
    chosen = select_form(values, names, need_labels=need_labels)
    if columns.percent and "probs" in chosen:
        chosen["probs"] = _fractions(np.asarray(chosen["probs"]))
    if columns.several_labels or is_label_matrix(chosen):
        return read_labels(chosen, columns.classes)
    return Predictions(**with_classes(chosen, columns))


def _fractions(percent: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return percent as fractions; rows that sum to 100 up to rounding sum to one."""
    if percent.size and percent.max() <= 1:
        raise InputError(
            f"probs: expected percent, got at most {percent.max():.6g} everywhere; leave out "
            "percent=True if these are probabilities"
        )
    shares = percent / 100
    sums = shares.sum(axis=-1, keepdims=True)
    # Percent have few digits, so that a row of them seldom has exactly 100.
    rounded = shares.ndim == 2 and bool((np.abs(sums - 1) < _ROUNDING).all())
    return shares / sums if rounded else shares


def _explain_answers(source: Format) -> None:
    """Refuse a confidence that cannot be read, in words that name the options for such answers."""
    try:
        rows = source.read_columns(["confidence"], ["logits", "probs"])
    except Exception:  # then something else is wrong
        return
    if len(rows.columns) == 1:
        read_answers(rows, Columns(), need_labels=False)


def _log(source: Format, columns: Columns) -> tuple[FileRows, Columns] | None:
    """Return the answers in the log of another tool; none if the file is none."""
    from calibrant.data.json_lines import JsonLines
    from calibrant.data.logs import read_log

    if isinstance(source, JsonLines):
        return read_log(source, columns)
    if columns.layout is not None:
        raise InputError(
            f"layout: expected a .jsonl or .json file of {columns.layout}, got another format; leave out "
            "layout="
        )
    return None


def format_of(path: Path) -> type[Format]:
    """Return the format of a file of predictions, or of a log, by its suffix."""
    return _format(path, FORMATS | LOGS)


@contextmanager
def open_source(path: Source, known: Mapping[str, tuple[str, str]] = FORMATS) -> Iterator[Format]:
    """Open a file, an address or a frame of predictions or labels; errors inside the block name it.

    Args:
        path: The file, whose suffix names the format; its address; or a frame.
        known: Formats that are read.
    """
    if not isinstance(path, (str, os.PathLike)):
        with reading("frame", "a frame"):
            yield _frame(path)
        return
    form = _format(Path(path), known)
    with local_copy(path) as file, reading(file.name, f"a {file.suffix} file"):
        _check_is_file(file)
        yield form(file)


def _frame(frame: object) -> Format:
    if not isinstance(frame, FrameLike):
        raise InputError(
            "expected the path of a file, or a frame of pandas, Polars or Arrow, got "
            f"{type(frame).__name__}; pass one of these, or Predictions(...)"
        )
    from calibrant.data.frames import Frame

    return Frame(frame)


def _format(path: Path, known: Mapping[str, tuple[str, str]]) -> type[Format]:
    if suffix_of(path) not in known:
        raise FormatError(
            f"{path.name}: expected a file named {', '.join(FORMATS)}, got {path.suffix or 'no suffix'!r}; "
            "the suffix decides the format"
        )
    module, name = known[suffix_of(path)]
    if suffix_of(path) in _PLAIN and find_spec("pyarrow") is None:
        module, name = "calibrant.data.plain_tables", _PLAIN[suffix_of(path)]
    return cast("type[Format]", getattr(import_module(module), name))


def _check_is_file(path: Path) -> None:
    if path.is_dir():
        raise FormatError("expected a file, got a directory; name a file inside it")
    if not path.exists():
        raise FormatError(f"no such file in {path.parent}; check the path")
    if path.stat().st_size == 0:
        raise FormatError("expected predictions, got an empty file; write it again")
