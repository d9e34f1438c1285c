"""Files of rows written again with new columns, such as another confidence; every other column stays."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.data.json_lines import JsonLines, write_records
from calibrant.errors import FormatError, InputError
from calibrant.files import atomic_path, reading
from calibrant.inputs import ArrayLike, check_confidence
from calibrant.outputs import check_targets
from calibrant.text import csv_lines, guarded, unguarded

#: Formats whose rows may have any columns.
ROW_FORMATS = (".jsonl", ".csv", ".tsv", ".parquet")
_TABLES_OF_TEXT = (".csv", ".tsv")
_COLUMN = "confidence"


def write_answers(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    confidence: ArrayLike,
    *,
    kept: npt.NDArray[np.bool_] | None = None,
) -> None:
    """Write a file of answers with another confidence, in a column of that name.

    Every other column stays as it is. The formats may differ; objects within answers become JSON text in
    ``.csv`` and ``.tsv``, and text that a spreadsheet would take for a formula gets an apostrophe before it.

    Args:
        source: The answers: ``.jsonl``, ``.csv``, ``.tsv`` or ``.parquet``.
        out: The file to write, of any of these formats; not the source.
        confidence: The confidence of each answer that is kept.
        kept: Which rows these are, as :func:`~calibrant.data.files.load_answers` returns it; others get no
            confidence. All rows by default.
    """
    c = check_confidence(confidence).double().cpu().numpy()
    write_columns(source, out, {_COLUMN: [None if np.isnan(x) else float(x) for x in c]}, kept=kept)


def write_columns(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    columns: Mapping[str, Sequence[Any]],
    *,
    kept: npt.NDArray[np.bool_] | None = None,
) -> None:
    """Write the rows of a file with new columns, which replace those of the same names.

    Every other column stays as it is, see :func:`write_answers`.

    Args:
        source: The rows: ``.jsonl``, ``.csv``, ``.tsv`` or ``.parquet``.
        out: The file to write, of any of these formats; not the source.
        columns: A value for each row that is kept, by the name of the column.
        kept: Which rows these are; others get no value. All rows by default.
    """
    source, out = Path(source), Path(out)
    for path in (source, out):
        _check_format(path, "; other formats have no further columns to keep")
    check_targets([out], [source], name="out")
    if source.suffix.lower() == out.suffix.lower() == ".parquet":
        _write_table(source, out, columns, kept)
        return
    with reading(source.name, f"a {source.suffix} file"):
        records = _records(source)
    new = {name: _on_rows(name, values, kept, len(records)) for name, values in columns.items()}
    copied = (_copied(record, source, out) for record in records)
    rows = [
        {**record, **{name: values[row] for name, values in new.items()}} for row, record in enumerate(copied)
    ]
    _write_rows(out, rows, source.name)


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
    if out.suffix.lower() in _TABLES_OF_TEXT:
        rows = [
            {guarded(name): guarded(x) if isinstance(x, str) else x for name, x in row.items()}
            for row in rows
        ]
    _write_rows(out, rows, out.name)


def _check_format(path: Path, more: str = "") -> None:
    if path.suffix.lower() not in ROW_FORMATS:
        raise FormatError(
            f"{path.name}: expected a file named {', '.join(ROW_FORMATS)}, got "
            f"{path.suffix or 'no suffix'!r}{more}"
        )


def _write_rows(out: Path, rows: Sequence[Mapping[str, Any]], name: str) -> None:
    with atomic_path(out) as temporary:
        if out.suffix.lower() == ".jsonl":
            write_records(temporary, rows)
        elif out.suffix.lower() in _TABLES_OF_TEXT:
            _write_csv(temporary, rows)
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
    if path.suffix.lower() == ".jsonl":
        return JsonLines(path).records
    if path.suffix.lower() in _TABLES_OF_TEXT:
        from calibrant.data.tables import Csv, Tsv

        return (Tsv if path.suffix.lower() == ".tsv" else Csv)(path).records()
    from calibrant.data.parquet import open_parquet

    with open_parquet(path) as table:
        return list(table.read().to_pylist())


def _copied(record: Mapping[str, Any], source: Path, out: Path) -> Mapping[str, Any]:
    """Return a row for another format: text that looks like a formula is guarded in tables of text only."""
    was_text, is_text = (path.suffix.lower() in _TABLES_OF_TEXT for path in (source, out))
    if was_text == is_text:
        return record
    change = guarded if is_text else unguarded
    texts = {name: change(value) if isinstance(value, str) else value for name, value in record.items()}
    return {change(name): value for name, value in texts.items()}


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
        names = _names(rows)
        cells = ([_cell(row.get(name, "")) for name in names] for row in rows)
        file.writelines(csv_lines([names, *cells], delimiter=delimiter))


def _cell(value: Any) -> Any:  # noqa: ANN401  # any JSON value
    """Return a value as a cell of a table: truth values and objects as in JSON."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (bool, list, dict)) else value


def _to_table(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    import pyarrow as pa

    from calibrant.data.parquet import write_parquet

    write_parquet(pa.table({name: [row.get(name) for row in rows] for name in _names(rows)}), path)


def _write_table(
    source: Path,
    out: Path,
    columns: Mapping[str, Sequence[Any]],
    kept: npt.NDArray[np.bool_] | None,
) -> None:
    import pyarrow as pa

    from calibrant.data.parquet import open_parquet, write_parquet

    with reading(source.name, "a .parquet file"), open_parquet(source) as file:
        table = file.read()
    for name, values in columns.items():
        column = pa.array(_on_rows(name, values, kept, table.num_rows))
        place = table.schema.get_field_index(name)
        table = table.append_column(name, column) if place < 0 else table.set_column(place, name, column)
    with atomic_path(out) as temporary:
        write_parquet(table, temporary)


def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))
