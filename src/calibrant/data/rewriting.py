"""Files written again with new scores or other columns; every other column or array stays."""

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import numpy as np
import numpy.typing as npt
import torch

from calibrant.data.columns import Columns
from calibrant.data.contents import find_columns, of_class_one, under_our_names
from calibrant.data.files import FORMATS, format_of, save_predictions
from calibrant.data.json_lines import JsonLines, write_records
from calibrant.data.labels import LabelPredictions
from calibrant.data.plain_tables import PlainCsv, PlainTsv
from calibrant.data.predictions import Predictions
from calibrant.errors import FormatError, InputError
from calibrant.extras import optional
from calibrant.files import atomic_path, local_copy, reading, suffix_of, unpacked
from calibrant.inputs import ArrayLike, check_choice, check_confidence
from calibrant.outputs import check_targets
from calibrant.text import csv_lines, guarded, unguarded

#: What is written of calibrated predictions.
Written: TypeAlias = Literal["probs", "logits", "confidence"]
#: Formats whose rows may have any columns.
ROW_FORMATS = (".jsonl", ".csv", ".tsv", ".parquet")
_TABLES_OF_TEXT = (".csv", ".tsv")
_COLUMN = "confidence"
# Where a column that has the name of the new confidence goes.
_STATED = "stated_confidence"
# Beside class scores, these describe the old ones.
_OUTDATED = ("confidence", "correct")
_WHOLE, _NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})"), re.compile(r"-?(0|[1-9]\d*)(\.\d*)?([eE][-+]?\d+)?")

V = TypeVar("V")


@dataclass(frozen=True)
class ScoreColumns:
    """The columns, or the array, that hold the class scores of a file, and what is written in their place.

    Attributes:
        form: What they hold: ``"logits"`` or ``"probs"``.
        names: Their names, in the order of the classes; a single one holds all scores of a row.
        write: What is written in their place.
        percent: Whether probabilities are in percent, and written so.
        read: All columns of the file that were read as predictions.
    """

    form: str
    names: tuple[str, ...]
    write: Written
    percent: bool = False
    read: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, names: Sequence[str], columns: Columns | None = None, write: Written | None = None
    ) -> "ScoreColumns | None":
        """Return the scores among the names of a file; None if it has no class scores."""
        columns = columns or Columns()
        ours = under_our_names(names, columns)
        found = find_columns(list(ours))
        for form in ("logits", "probs"):
            if form in found:
                own = tuple(ours[name] for name in found[form])
                read = frozenset(ours[name] for several in found.values() for name in several)
                return cls(form, own, write or form, columns.percent and form == "probs", read)
        return None

    @property
    def replaced(self) -> tuple[str, ...]:
        """What is in the file no longer: the old scores, and what was made of them."""
        return (*self.names, *_OUTDATED)

    def new(self, result: Predictions, *, named: bool = True) -> dict[str, npt.NDArray[Any]]:
        """Return the new columns; a single one that holds all scores has the shape ``(n, k)``.

        Args:
            result: The calibrated predictions.
            named: Whether a predicted class is its name, if it has one, or its number as labels are.
        """
        if self.write == "confidence":
            return _tops(result, named=named)
        matrix = scores_in(result, self.write)
        matrix = matrix * 100 if self.percent and self.write == "probs" else matrix
        names = [self._renamed(name, place, result) for place, name in enumerate(self.names)]
        return {names[0]: matrix} if len(names) == 1 else dict(zip(names, matrix.T, strict=True))

    def _renamed(self, name: str, place: int, result: Predictions) -> str:
        if self.write == self.form:
            return name
        if name == self.form or name.startswith(f"{self.form}_"):
            return f"{self.write}{name.removeprefix(self.form)}"
        if len(self.names) == 1:
            return self.write
        known = getattr(result, "label_names", None) or result.class_names
        return f"{self.write}_{place if known is None else known[place]}"


def scores_in(result: Predictions, form: str) -> npt.NDArray[Any]:
    """Return calibrated class scores of shape ``(n, k)``: probabilities, or their logarithms as logits.

    Of several labels at once, logits are log-odds.
    """
    if isinstance(result, LabelPredictions):
        scores = result.matrix if form == "probs" else result.log_odds
    else:
        scores = result.to_logits()
        scores = torch.softmax(scores.double(), dim=1) if form == "probs" else scores
    return np.asarray(scores.detach().cpu().numpy())


def _tops(result: Predictions, *, named: bool = True) -> dict[str, npt.NDArray[Any]]:
    """Return the predicted class, its confidence, and whether it was right if that is known."""
    confidence, predicted = torch.softmax(result.to_logits().double(), dim=1).max(dim=1)
    top = predicted.cpu().numpy()
    top = np.asarray(result.class_names)[top] if named and result.class_names else top
    columns = {"predicted": top, _COLUMN: confidence.cpu().numpy()}
    hits = {} if result.labels is None else {"correct": (predicted == result.labels).cpu().numpy()}
    return columns | hits


def check_written(write: str | None, k: int | None, *, several_labels: bool = False) -> Written | None:
    """Check what is to be written of predictions of ``k`` classes; confidences have none."""
    if write is None:
        return None
    known: tuple[Written, ...] = get_args(Written)
    chosen = check_choice(write, "write", known)
    if several_labels and chosen == "confidence":
        raise InputError("write: expected probs or logits of several labels at once, got confidence")
    if k is None and not several_labels and chosen != "confidence":
        raise InputError(f"write: expected confidence, which is all that a black box gives, got {chosen}")
    return chosen


def write_calibrated(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    before: Predictions,
    result: Predictions,
    *,
    columns: Columns | None = None,
    kept: npt.NDArray[np.bool_] | None = None,
    write: Written | None = None,
    more: Mapping[str, Sequence[Any]] = MappingProxyType({}),
) -> None:
    """Write a file of predictions again with calibrated ones.

    Rows keep their columns, and archives their arrays. Probabilities stay probabilities and logits logits,
    under their names; a file of another kind than the source gets the predictions alone.

    Args:
        source: The file that was read.
        out: The file to write.
        before: The predictions that were read.
        result: These predictions, calibrated.
        columns: How the file was read.
        kept: Which of its rows were read; all by default.
        write: What is written, if not what the file holds.
        more: Further columns of a table, such as labels.
    """
    check_targets([out], [source], name="out")
    with local_copy(source) as file:
        _write_calibrated(file, Path(out), before, result, columns, kept, write, more)


def _write_calibrated(
    source: Path,
    out: Path,
    before: Predictions,
    result: Predictions,
    columns: Columns | None,
    kept: npt.NDArray[np.bool_] | None,
    write: Written | None,
    more: Mapping[str, Sequence[Any]],
) -> None:
    """Write a file on this machine again; its arguments are those of :func:`write_calibrated`."""
    write = check_written(write, before.k, several_labels=isinstance(before, LabelPredictions))
    suffixes = {suffix_of(source), suffix_of(out)}
    alike = suffixes <= {*ROW_FORMATS} or (len(suffixes) == 1 and suffixes <= FORMATS.keys())
    found = _new_columns(source, result, columns, write) if alike else None
    if more and (found is None or not suffixes <= {*ROW_FORMATS}):
        raise InputError(
            f"labels: expected tables ({', '.join(ROW_FORMATS)}), to which a column can be added, got "
            f"{source.name} and {out.name}"
        )
    if found is None:
        save_predictions(in_form(before, result, write), out)
    elif suffixes <= {*ROW_FORMATS}:
        new, scores = found
        write_columns(source, out, {**new, **more}, kept=kept, scores=scores)
    else:
        from calibrant.data.archives import write_arrays

        arrays = {name: _with_gaps(array, kept) for name, array in found[0].items()}
        replaced = () if found[1] is None else found[1].replaced
        with atomic_path(out) as temporary, reading(source.name, f"a {source.suffix} file"):
            write_arrays(source, temporary, lambda old: arranged(old, arrays, replaced))


def write_joined(
    parts: Mapping[Path, tuple[Predictions, npt.NDArray[np.bool_]]],
    out: Path,
    columns: Columns,
    write: Written | None = None,
) -> bool:
    """Write the rows of several files as one, with calibrated predictions; False if they are no rows.

    Args:
        parts: The calibrated predictions of each file, and which rows of it they are.
        out: The file to write.
        columns: How the files were read.
        write: What is written, if not what the files hold.
    """
    if not {suffix_of(out), *(suffix_of(path) for path in parts)} <= {*ROW_FORMATS}:
        return False
    rows: list[dict[str, Any]] = []
    for path, (result, kept) in parts.items():
        with local_copy(path) as file:
            if (found := _new_columns(file, result, columns, write)) is None:
                return False
            rows += _rows(file, out, found[0], kept, found[1])
    check_targets([out], parts, name="out")
    _write_rows(out, rows, out.name)
    return True


def _new_columns(
    source: Path, result: Predictions, columns: Columns | None, write: Written | None
) -> tuple[dict[str, npt.NDArray[Any]], ScoreColumns | None] | None:
    """Return the new columns of a file, and the class scores that they replace, if there are any.

    None if it has none for them: a log of another tool, or options of multiple-choice questions.
    """
    if result.confidence is not None and not isinstance(result, LabelPredictions):
        return {_COLUMN: result.confidence.double().cpu().numpy()}, None
    scores = ScoreColumns.of(format_of(source)(source).names(), columns, write)
    if scores is None:
        return None
    return scores.new(result, named=suffix_of(source) in ROW_FORMATS), scores


def in_form(before: Predictions, result: Predictions, write: Written | None = None) -> Predictions:
    """Return calibrated predictions in the form of those before, or in another one."""
    if isinstance(result, LabelPredictions):
        wanted = str(write or getattr(before, "form", "probs"))
        given = {name: value for name, value in result.arguments().items() if name != result.form}
        return LabelPredictions(**given | {wanted: scores_in(result, wanted)})
    if result.confidence is not None:
        return result
    if write == "confidence":
        tops = _tops(result)
        return Predictions(
            confidence=tops[_COLUMN],
            correct=tops.get("correct"),
            **{name: getattr(result, name) for name in ("groups", "weights", "units", "ids", "metadata")},
        )
    form = write or ("logits" if before.probs is None else "probs")
    return result if form == "logits" else result.replaced(logits=None, probs=scores_in(result, form))


def arranged(old: Mapping[str, V], new: Mapping[str, V], replaced: Collection[str] = ()) -> dict[str, V]:
    """Return columns with new ones in the place of the first that they replace.

    A column that has the name of the new confidence is kept under another one.

    Example:
        >>> arranged({"id": 1, "confidence": 0.9, "note": ""}, {"confidence": 0.7})
        {'id': 1, 'confidence': 0.7, 'stated_confidence': 0.9, 'note': ''}
        >>> arranged({"probs": 1, "correct": 2, "id": 3}, {"logits": 4}, ["probs", "correct"])
        {'logits': 4, 'id': 3}
    """
    kept = _COLUMN if _COLUMN in new and _COLUMN not in replaced and _STATED not in old else None
    found: dict[str, V] = {}
    for name, value in old.items():
        if name in new or name in replaced:
            found |= new
        else:
            found[name] = value
        if name == kept:
            found[_STATED] = value
    return {**found, **new}


def write_answers(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    confidence: ArrayLike,
    *,
    kept: npt.NDArray[np.bool_] | None = None,
) -> None:
    """Write a file of answers with another confidence, in a column of that name.

    Every other column stays as it is; one that is called ``confidence`` is then ``stated_confidence``. The
    formats may differ; objects within answers become JSON text in ``.csv`` and ``.tsv``, and text that a
    spreadsheet would take for a formula gets an apostrophe before it.

    Args:
        source: The answers: ``.jsonl``, ``.csv``, ``.tsv`` or ``.parquet``.
        out: The file to write, of any of these formats; not the source.
        confidence: The confidence of each answer that is kept.
        kept: Which rows these are, as :func:`~calibrant.data.files.load_answers` returns it; others get no
            confidence. All rows by default.
    """
    c = check_confidence(confidence).double().cpu().numpy()
    write_columns(source, out, {_COLUMN: c}, kept=kept)


def write_columns(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    columns: Mapping[str, Sequence[Any] | npt.NDArray[Any]],
    *,
    kept: npt.NDArray[np.bool_] | None = None,
    scores: ScoreColumns | None = None,
) -> None:
    """Write the rows of a file with new columns, which replace those of the same names.

    Every other column stays as it is, see :func:`write_answers`.

    Args:
        source: The rows: ``.jsonl``, ``.csv``, ``.tsv`` or ``.parquet``.
        out: The file to write, of any of these formats; not the source.
        columns: A value for each row that is kept, by the name of the column.
        kept: Which rows these are; others get no value. All rows by default.
        scores: Class scores in whose place the new columns are.
    """
    source, out = Path(source), Path(out)
    for path in (source, out):
        _check_format(path, "; other formats have no further columns to keep")
    check_targets([out], [source], name="out")
    with local_copy(source) as file:
        if suffix_of(source) == suffix_of(out) == ".parquet":
            _write_table(file, out, columns, kept, () if scores is None else scores.replaced)
            return
        _write_rows(out, _rows(file, out, columns, kept, scores), source.name)


def _rows(
    source: Path,
    out: Path,
    columns: Mapping[str, Sequence[Any] | npt.NDArray[Any]],
    kept: npt.NDArray[np.bool_] | None,
    scores: ScoreColumns | None,
) -> list[dict[str, Any]]:
    """Return the rows of a file with new columns, as they are written to another one."""
    with reading(source.name, f"a {source.suffix} file"):
        records = _records(source)
    was_text, is_text = (suffix_of(path) in _TABLES_OF_TEXT for path in (source, out))
    cells = {name: _cells(values, name, records) for name, values in columns.items()}
    if is_text:
        cells = {
            name: [guarded(x) if isinstance(x, str) else x for x in each] for name, each in cells.items()
        }
    new = {name: _on_rows(name, values, kept, len(records)) for name, values in cells.items()}
    read, replaced = (frozenset[str](), ()) if scores is None else (scores.read, scores.replaced)
    copied = _typed(records, read) if was_text and not is_text else records
    return [
        arranged(
            _copied(record, was_text=was_text, is_text=is_text),
            {name: values[row] for name, values in new.items()},
            replaced,
        )
        for row, record in enumerate(copied)
    ]


def _cells(
    values: Sequence[Any] | npt.NDArray[Any], name: str, records: Sequence[Mapping[str, Any]]
) -> Sequence[Any]:
    """Return new values as cells: scores of a row in the way that the old ones of the column are written."""
    if not isinstance(values, np.ndarray):
        return values
    if values.ndim == 1:
        return [None if x != x else x for x in values.tolist()]
    old = next((record[name] for record in records if record.get(name) is not None), None)
    if isinstance(old, Mapping):
        return [dict(zip(old, row, strict=True)) for row in values.tolist()]
    is_one = values.shape[1] == 2 and (isinstance(old, (int, float)) or _is_number(old))
    return list((of_class_one(values) if is_one else values).tolist())


def _is_number(text: object) -> bool:
    try:
        float(str(text).strip().rstrip("% ").replace(",", "."))
    except ValueError:
        return False
    return True


def _typed(records: Sequence[Mapping[str, str]], names: Collection[str]) -> list[dict[str, Any]]:
    """Return rows of text in which some columns are numbers, if all their cells are."""
    kinds: dict[str, Any] = {}
    for name in names:
        cells = {record.get(name, "") for record in records} - {""}
        if cells and all(map(_WHOLE.fullmatch, cells)):
            kinds[name] = int
        elif cells and all(map(_NUMBER.fullmatch, cells)):
            kinds[name] = float
    return [
        {name: (kinds[name](x) if x else None) if name in kinds else x for name, x in record.items()}
        for record in records
    ]


def write_rows(out: str | os.PathLike[str], columns: Mapping[str, Sequence[Any]]) -> None:
    """Write columns as the rows of a new file: ``.jsonl``, ``.csv``, ``.tsv`` or ``.parquet``.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     write_rows(Path(folder, "new.csv"), {"class": ["cat", "dog"], "answer": [True, False]})
        ...     Path(folder, "new.csv").read_text().split()
        ['class,answer', 'cat,true', 'dog,false']
    """
    out = Path(out)
    _check_format(out)
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    if suffix_of(out) in _TABLES_OF_TEXT:
        rows = [
            {guarded(name): guarded(x) if isinstance(x, str) else x for name, x in row.items()}
            for row in rows
        ]
    _write_rows(out, rows, out.name)


def _check_format(path: Path, more: str = "") -> None:
    if suffix_of(path) not in ROW_FORMATS:
        raise FormatError(
            f"{path.name}: expected a file named {', '.join(ROW_FORMATS)}, got "
            f"{path.suffix or 'no suffix'!r}{more}"
        )


def _write_rows(out: Path, rows: Sequence[Mapping[str, Any]], name: str) -> None:
    with atomic_path(out) as temporary:
        if suffix_of(out) == ".jsonl":
            write_records(temporary, rows)
        elif suffix_of(out) in _TABLES_OF_TEXT:
            _write_csv(temporary, rows, "\t" if suffix_of(out) == ".tsv" else ",")
        else:
            with reading(name, "answers with values of one kind in each column"):
                _to_table(rows, temporary)


def _on_rows(name: str, values: Sequence[Any], kept: npt.NDArray[np.bool_] | None, n: int) -> Sequence[Any]:
    """Return one value for each row of the file, None where the row is not kept."""
    kept = np.ones(n, dtype=bool) if kept is None else kept
    if len(kept) != n or int(kept.sum()) != len(values):
        raise InputError(
            f"{name}: expected one for each of {n:,} rows, got {len(values):,} for "
            f"{int(kept.sum()):,} of {len(kept):,}; read the same file"
        )
    given = iter(values)
    return [next(given) if used else None for used in kept.tolist()]


def _records(path: Path) -> Sequence[Mapping[str, Any]]:
    if suffix_of(path) == ".jsonl":
        return JsonLines(path).records
    if suffix_of(path) in _TABLES_OF_TEXT:
        return (PlainTsv if suffix_of(path) == ".tsv" else PlainCsv)(path).records()
    from calibrant.data.parquet import open_parquet

    with open_parquet(path) as table:
        return list(table.read().to_pylist())


def _copied(record: Mapping[str, Any], *, was_text: bool, is_text: bool) -> Mapping[str, Any]:
    """Return a row for another format: text that looks like a formula is guarded in tables of text only."""
    if was_text == is_text:
        return record
    change = guarded if is_text else unguarded
    texts = {name: change(value) if isinstance(value, str) else value for name, value in record.items()}
    return {change(name): value for name, value in texts.items()}


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]], delimiter: str) -> None:
    with unpacked(path, "wb") as file:
        names = _names(rows)
        cells = ([_cell(row.get(name, "")) for name in names] for row in rows)
        file.writelines(line.encode() for line in csv_lines([names, *cells], delimiter=delimiter))


def _cell(value: Any) -> Any:  # noqa: ANN401  # any JSON value
    """Return a value as a cell of a table: truth values and objects as in JSON."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (bool, list, dict)) else value


def _to_table(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    from calibrant.data.parquet import write_parquet

    with optional("parquet"):
        import pyarrow as pa

    write_parquet(pa.table({name: [row.get(name) for row in rows] for name in _names(rows)}), path)


def _write_table(
    source: Path,
    out: Path,
    columns: Mapping[str, Sequence[Any] | npt.NDArray[Any]],
    kept: npt.NDArray[np.bool_] | None,
    replaced: Collection[str],
) -> None:
    import pyarrow as pa

    from calibrant.data.parquet import open_parquet, write_parquet

    with reading(source.name, "a .parquet file"), open_parquet(source) as file:
        table = file.read()
    old = {name: table[name] for name in table.column_names}
    new = {}
    for name, values in columns.items():
        if isinstance(values, np.ndarray) and (kept is None or kept.all()) and len(values) == len(table):
            new[name] = to_arrow(values, table.schema.field(name).type if name in old else None)
        else:
            cells = values.tolist() if isinstance(values, np.ndarray) else values
            new[name] = pa.array(_on_rows(name, cells, kept, table.num_rows), from_pandas=True)
    table = pa.table(arranged(old, new, replaced), metadata=table.schema.metadata)
    with atomic_path(out) as temporary:
        write_parquet(table, temporary)


def to_arrow(values: npt.NDArray[Any], kind: Any = None) -> Any:  # noqa: ANN401  # types of pyarrow
    """Return new values as a column of Parquet, in the type of the old one if that holds such numbers.

    Args:
        values: Values of shape ``(n,)``, or scores of shape ``(n, k)``.
        kind: The type of the old column, if there is one.
    """
    import pyarrow as pa

    number = getattr(kind, "value_type", kind)
    floats = number is not None and pa.types.is_floating(number) and values.dtype.kind == "f"
    is_list = kind is None or hasattr(kind, "value_type")
    if values.ndim == 2 and not is_list and values.shape[1] == 2:
        values = of_class_one(values)
    flat = pa.array(np.ascontiguousarray(values).ravel(), from_pandas=values.dtype.kind == "f")
    flat = flat.cast(number) if floats else flat
    return flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def _with_gaps(values: npt.NDArray[Any], kept: npt.NDArray[np.bool_] | None) -> npt.NDArray[Any]:
    """Return values for all rows, NaN or no text where a row was not read."""
    if kept is None or kept.all():
        return values
    filled = np.full((len(kept), *values.shape[1:]), np.nan if values.dtype.kind == "f" else 0, values.dtype)
    filled[kept] = values
    return filled


def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))
