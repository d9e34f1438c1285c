"""Files of answers written again with another confidence; every other column stays as it is."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
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
    source, out = Path(source), Path(out)
    for path in (source, out):
        if path.suffix.lower() not in ROW_FORMATS:
            raise FormatError(
                f"{path.name}: expected a file named {', '.join(ROW_FORMATS)}, got "
                f"{path.suffix or 'no suffix'!r}; other formats have no further columns to keep"
            )
    check_targets([out], [source], name="out")
    c = check_confidence(confidence).double().cpu().numpy()
    if source.suffix.lower() == out.suffix.lower() == ".parquet":
        _write_table(source, out, c, kept)
        return
    with reading(source.name, f"a {source.suffix} file"):
        records = _records(source)
    new = [None if np.isnan(value) else float(value) for value in _on_rows(c, kept, len(records))]
    copied = (_copied(record, source, out) for record in records)
    rows = ({**record, _COLUMN: value} for record, value in zip(copied, new, strict=True))
    with atomic_path(out) as temporary:
        if out.suffix.lower() == ".jsonl":
            write_records(temporary, rows)
        elif out.suffix.lower() in _TABLES_OF_TEXT:
            _write_csv(temporary, list(rows))
        else:
            with reading(source.name, "answers with values of one kind in each column"):
                _to_table(list(rows), temporary)


def _on_rows(values: npt.NDArray[np.float64], kept: npt.NDArray[np.bool_] | None, n: int) -> Iterable[float]:
    """Return one value for each row of the file, NaN where the row is not kept."""
    kept = np.ones(n, dtype=bool) if kept is None else kept
    if len(kept) != n or int(kept.sum()) != len(values):
        raise InputError(
            f"confidence: expected one for each of {n:,} rows, got {len(values):,} for "
            f"{int(kept.sum()):,} of {len(kept):,}; read the same file"
        )
    whole = np.full(n, np.nan)
    whole[kept] = values
    return whole.tolist()


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
    import pyarrow.parquet as pq

    from calibrant.data.parquet import CHECKSUMS

    table = pa.table({name: [row.get(name) for row in rows] for name in _names(rows)})
    pq.write_table(table, path, **CHECKSUMS)


def _write_table(
    source: Path, out: Path, values: npt.NDArray[np.float64], kept: npt.NDArray[np.bool_] | None
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from calibrant.data.parquet import CHECKSUMS, open_parquet

    with reading(source.name, "a .parquet file"), open_parquet(source) as file:
        table = file.read()
    column = pa.array(_on_rows(values, kept, table.num_rows), from_pandas=True)
    place = table.schema.get_field_index(_COLUMN)
    table = table.append_column(_COLUMN, column) if place < 0 else table.set_column(place, _COLUMN, column)
    with atomic_path(out) as temporary:
        pq.write_table(table, temporary, **CHECKSUMS)


def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))
