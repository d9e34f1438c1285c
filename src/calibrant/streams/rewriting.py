"""Rewrite a stream with new predictions, file by file; each file is written completely or not at all."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

from calibrant.data.contents import (
    GROUPS,
    beside_columns,
    class_names,
    find_columns,
    from_beside,
    select_form,
)
from calibrant.data.parquet import CHECKSUMS, notes_in, with_notes
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.files import atomic_path, make_folder
from calibrant.inputs import Progress
from calibrant.outputs import check_targets, filling
from calibrant.streams.files import FileLayout, StreamFile, rows_at_once
from calibrant.streams.prediction_stream import PredictionStream
from calibrant.streams.row_groups import LARGE, PIECE, groups_of, naming, read_tables, to_predictions


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
    check: Callable[[int | None], None] | None = None,
    progress: Progress | None = None,
) -> Rewritten:
    """Write each file of a stream again with new logits in place of its logits or probabilities.

    Confidences of a black box are replaced by new confidences. The new files are below the folder ``out``,
    under the names of the old ones, and appear when they are complete. If one is refused, those before it
    remain, and the folder is not read as a stream until a later call has written all files. Nothing is
    written over or below what is read. All other columns are copied, except ``confidence`` and ``correct``
    beside class scores, which describe the old predictions.

    Args:
        stream: The stream to read.
        transform: Returns new logits of shape ``(n, k)``, or new confidences of shape ``(n,)``, for some
            rows. Their groups are those by which the stream was opened, or those in a column ``groups``.
        out: A folder, which is created if necessary; for a stream of one file also the name of a
            ``.parquet`` file.
        check: Called with the number of classes, or None for confidences, before anything is written; raises
            an error if ``transform`` cannot take such predictions.
        progress: Called with the current file, the rows that are done, and the total.
    """
    layouts = stream.layouts()
    if check is not None:
        check(next(iter(layouts.values())).k)
    folder = Path(out)
    targets = {source: _target(source, folder, alone=len(layouts) == 1) for source in layouts}
    read = [source.path for source in layouts if source.filesystem is None]
    check_targets(targets.values(), [stream.place, *read], name="out")
    done, total = 0, sum(sum(layout.rows) for layout in layouts.values())
    # A single file is written whole or not at all, so that its folder needs no mark.
    with nullcontext(list[Path]()) if folder in targets.values() else filling(folder, "out") as finished:
        for source, layout in layouts.items():
            make_folder(targets[source].parent, "out")
            with atomic_path(targets[source]) as temporary:
                for rows in _rewrite(source, layout, transform, temporary, by=stream.columns_by):
                    done += rows
                    if progress is not None:
                        progress(source.name, done, total)
            finished.append(targets[source])
    return Rewritten(len(layouts), done)


def _target(source: StreamFile, out: Path, *, alone: bool) -> Path:
    if out.is_file() or (alone and out.suffix.lower() == ".parquet" and not out.is_dir()):
        if not alone:
            raise InputError(f"out: expected a folder for several files, got the file {out}; name a folder")
        return out
    return out / source.name


def _rewrite(
    source: StreamFile,
    layout: FileLayout,
    transform: Callable[[Predictions], Tensor],
    path: Path,
    *,
    by: str | None,
) -> Iterator[int]:
    """Write one file and yield the number of rows of each piece as it is written."""
    buffer = PIECE if layout.largest > LARGE else 0
    # A writer that opens the file itself would leave it open if the disk is full.
    with source.open(buffer_size=buffer) as file, pa.OSFile(os.fspath(path), "wb") as sink:
        schema: pa.Schema = file.schema_arrow
        columns = select_form(find_columns(schema.names), schema.names, need_labels=False)
        if by is None and GROUPS in schema.names:
            by, layout = GROUPS, replace(layout, by=GROUPS)
        place = _place(columns)
        writer: pq.ParquetWriter | None = None
        first_row = 0
        try:
            for group in range(len(layout.rows)):
                where = f"{source.name}, row group {group}"
                for rows in read_tables(file, group, rows_at_once([layout]), where):
                    with naming(where, first_row=first_row):
                        beside = _beside(rows, groups_of(rows, source, layout, by), pairs=not layout.k)
                        new = transform(to_predictions(rows, columns, layout.names, beside))
                        table = _replaced(rows, new, place)
                    table = table.replace_schema_metadata(_notes(schema, columns))
                    if writer is None:
                        writer = pq.ParquetWriter(sink, table.schema, **CHECKSUMS)
                    writer.write_table(table)
                    first_row += rows.num_rows
                    yield rows.num_rows
            if writer is None:
                writer = pq.ParquetWriter(sink, schema)
        finally:
            if writer is not None:
                writer.close()


@dataclass(frozen=True)
class _Place:
    """Where new predictions stand: their column, the old one that it replaces, and those that it outdates."""

    name: str
    instead_of: str
    outdated: frozenset[str] = frozenset()


def _place(columns: Mapping[str, Sequence[str]]) -> _Place:
    outputs = columns.get("logits") or columns.get("probs")
    if outputs is None:
        return _Place("confidence", "confidence")
    return _Place("logits", outputs[0], frozenset({*outputs, "confidence", "correct"}))


def _beside(
    rows: pa.RecordBatch, groups: tuple[tuple[str, ...], npt.NDArray[np.int64] | None], *, pairs: bool
) -> dict[str, Any]:
    """Return groups and, beside confidences, signals as arguments of predictions."""
    names, codes = groups
    values: dict[str, Any] = {}
    if names:
        values[GROUPS] = np.array(names)[np.zeros(len(rows), dtype=np.int64) if codes is None else codes]
    if pairs:
        signals = [name for name in beside_columns(rows.schema.names) if name != GROUPS]
        values |= from_beside({name: _numbers(rows.column(name)) for name in signals})
    return values


def _numbers(column: pa.Array) -> npt.NDArray[np.float64]:
    """Return a column of numbers, NaN where one is missing."""
    filled = column.cast(pa.float64()).fill_null(float("nan"))
    return np.array(np.from_dlpack(filled))


def _replaced(rows: pa.RecordBatch, new: Tensor, place: _Place) -> pa.Table:
    """Return the rows with new predictions in place of the old ones."""
    array = np.ascontiguousarray(new.detach().cpu().numpy())
    column = pa.array(array.ravel())
    if array.ndim == 2:
        column = pa.FixedSizeListArray.from_arrays(column, array.shape[1])
    columns: dict[str, pa.Array] = {}
    for name in rows.schema.names:
        if name == place.instead_of:
            columns[place.name] = column
        elif name not in place.outdated:
            columns[name] = rows.column(name)
    return pa.table(columns)


def _notes(schema: pa.Schema, columns: dict[str, list[str]]) -> dict[bytes, bytes]:
    """Return the metadata of the file, with the class names that were in its headers."""
    if (names := class_names(columns)) is not None:
        return with_notes({**notes_in(schema), "class_names": names}, schema)
    return dict(schema.metadata or {})
