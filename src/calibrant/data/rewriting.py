"""Files of answers written again with another confidence; every other column stays as it is."""

import csv
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

#: Formats whose rows may have any columns.
ROW_FORMATS = (".jsonl", ".csv", ".parquet")
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
    ``.csv``.

    Args:
        source: The answers: ``.jsonl``, ``.csv`` or ``.parquet``.
        out: The file to write, of any of these formats; it may be the source.
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
    c = check_confidence(confidence).double().cpu().numpy()
    if source.suffix.lower() == out.suffix.lower() == ".parquet":
        _write_table(source, out, c, kept)
        return
    with reading(source.name, f"a {source.suffix} file"):
        records = _records(source)
    new = [None if np.isnan(value) else float(value) for value in _on_rows(c, kept, len(records))]
    rows = ({**record, _COLUMN: value} for record, value in zip(records, new, strict=True))
    with atomic_path(out) as temporary:
        if out.suffix.lower() == ".jsonl":
            write_records(temporary, rows)
        elif out.suffix.lower() == ".csv":
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
    if path.suffix.lower() == ".csv":
        with path.open(encoding="utf-8-sig", newline="") as file:
            return list(csv.DictReader(file))
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as table:
        return list(table.read().to_pylist())


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, _names(rows), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)


def _cell(value: Any) -> Any:  # noqa: ANN401  # any JSON value
    """Return a value as a cell of a table: truth values and objects as in JSON."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (bool, list, dict)) else value


def _to_table(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in _names(rows)}), path)


def _write_table(
    source: Path, out: Path, values: npt.NDArray[np.float64], kept: npt.NDArray[np.bool_] | None
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with reading(source.name, "a .parquet file"), pq.ParquetFile(source) as file:
        table = file.read()
    column = pa.array(_on_rows(values, kept, table.num_rows), from_pandas=True)
    place = table.schema.get_field_index(_COLUMN)
    table = table.append_column(_COLUMN, column) if place < 0 else table.set_column(place, _COLUMN, column)
    with atomic_path(out) as temporary:
        pq.write_table(table, temporary)


def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))
