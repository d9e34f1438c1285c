"""Rewrite a stream with new logits, file by file; each file is written completely or not at all."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

from calibrant.data.contents import from_text, select_form, to_text
from calibrant.data.predictions import Predictions
from calibrant.data.tables import class_names, find_columns
from calibrant.errors import InputError
from calibrant.files import atomic_path
from calibrant.inputs import Progress
from calibrant.streams.files import NOTES, FileLayout, StreamFile, rows_at_once
from calibrant.streams.prediction_stream import PredictionStream
from calibrant.streams.row_groups import LARGE, PIECE, naming, read_tables, to_predictions


@dataclass(frozen=True)
class Rewritten:
    """The number of files and rows that were written."""

    files: int
    rows: int


def rewrite_stream(
    stream: PredictionStream,
    transform: Callable[[Predictions], Tensor],
    out: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
) -> Rewritten:
    """Write each file of a stream again with new logits in place of its logits or probabilities.

    The new files are below the folder ``out``, under the names of the old ones, and appear when they are
    complete; if one is refused, those before it remain. All other columns are copied, except ``confidence``
    and ``correct``, which describe the old predictions.

    Args:
        stream: The stream to read.
        transform: Returns new logits of shape ``(n, k)`` for some rows.
        out: A folder, which is created if necessary; for a stream of one file also the name of a
            ``.parquet`` file.
        progress: Called with the current file, the rows that are done, and the total.
    """
    layouts = stream.layouts()
    targets = {source: _target(source, Path(out), alone=len(layouts) == 1) for source in layouts}
    done, total = 0, sum(sum(layout.rows) for layout in layouts.values())
    for source, layout in layouts.items():
        targets[source].parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(targets[source]) as temporary:
            for rows in _rewrite(source, layout, transform, temporary):
                done += rows
                if progress is not None:
                    progress(source.name, done, total)
    return Rewritten(len(layouts), done)


def _target(source: StreamFile, out: Path, *, alone: bool) -> Path:
    if out.is_file() or (alone and out.suffix.lower() == ".parquet" and not out.is_dir()):
        if not alone:
            raise InputError(f"out: expected a folder for several files, got the file {out}; name a folder")
        target = out
    else:
        target = out / source.name
    if source.filesystem is None and target.resolve() == Path(source.path).resolve():
        raise InputError(f"out: expected another place than that of {source.name}, got {out}; name another")
    return target


def _rewrite(
    source: StreamFile, layout: FileLayout, transform: Callable[[Predictions], Tensor], path: Path
) -> Iterator[int]:
    """Write one file and yield the number of rows of each piece as it is written."""
    buffer = PIECE if layout.largest > LARGE else 0
    with source.open(buffer_size=buffer) as file:
        schema: pa.Schema = file.schema_arrow
        columns = select_form(find_columns(schema.names), schema.names, need_labels=False)
        outputs = columns.get("logits") or columns.get("probs") or []
        dropped = {*outputs, "confidence", "correct"} if outputs else set()
        writer: pq.ParquetWriter | None = None
        first_row = 0
        try:
            for group in range(len(layout.rows)):
                where = f"{source.name}, row group {group}"
                for rows in read_tables(file, group, rows_at_once([layout]), where):
                    with naming(where, first_row=first_row):
                        logits = transform(to_predictions(rows, columns, layout.names))
                        table = _replaced(rows, logits, outputs[:1], dropped)
                    table = table.replace_schema_metadata(_notes(schema, columns))
                    if writer is None:
                        writer = pq.ParquetWriter(path, table.schema)
                    writer.write_table(table)
                    first_row += rows.num_rows
                    yield rows.num_rows
            if writer is None:
                writer = pq.ParquetWriter(path, schema)
        finally:
            if writer is not None:
                writer.close()


def _replaced(rows: pa.RecordBatch, logits: Tensor, at: list[str], dropped: set[str]) -> pa.Table:
    """Return the rows with new logits in place of the first column of the old predictions."""
    array = np.ascontiguousarray(logits.detach().cpu().numpy())
    new = pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), array.shape[1])
    columns: dict[str, pa.Array] = {}
    for name in rows.schema.names:
        if name in at:
            columns["logits"] = new
        elif name not in dropped:
            columns[name] = rows.column(name)
    return pa.table(columns)


def _notes(schema: pa.Schema, columns: dict[str, list[str]]) -> dict[bytes, bytes]:
    """Return the metadata of the file, with the class names that were in its headers."""
    kept = dict(schema.metadata or {})
    if (names := class_names(columns)) is not None:
        notes = from_text(kept.get(NOTES, b"{}").decode(), "calibrant")
        kept[NOTES] = to_text({**notes, "class_names": names}).encode()
    return kept
