"""Rewrite a stream with new predictions, file by file; each file is written completely or not at all."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

from calibrant.data.contents import GROUPS, beside_columns, find_columns, from_beside, select_form
from calibrant.data.predictions import Predictions
from calibrant.data.rewriting import ScoreColumns, Written, arranged, check_written, to_arrow
from calibrant.errors import InputError
from calibrant.files import atomic_path, make_folder
from calibrant.inputs import Progress
from calibrant.outputs import check_targets, filling
from calibrant.streams.files import FileLayout, StreamFile, rows_at_once
from calibrant.streams.prediction_stream import PredictionStream
from calibrant.streams.row_groups import LARGE, PIECE, groups_of, naming, read_tables, to_predictions

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Rewritten:
    """The number of files and rows that were written."""

    files: int
    rows: int


@dataclass(frozen=True)
class FileJob:
    """One file of a stream to write again; it can be sent to another process and done there.

    Attributes:
        source: The file.
        layout: Its layout.
        target: The file to write.
        by: The column or key of folders that groups rows, if any.
        write: What is written, if not what the file holds.
        transform: Returns the new scores of some rows.
    """

    source: StreamFile
    layout: FileLayout
    target: Path
    by: str | None
    write: Written | None
    transform: Callable[[Predictions], Tensor]

    def run(self) -> Iterator[int]:
        """Write the file, completely or not at all, and yield the number of rows of each piece."""
        make_folder(self.target.parent, "out")
        with atomic_path(self.target) as temporary:
            yield from _rewrite(self, temporary)


#: Does jobs and yields, for each piece, the job, its rows, and whether its file is complete.
Engine: TypeAlias = Callable[[Sequence[FileJob]], Iterator[tuple[FileJob, int, bool]]]


def rewrite_stream(
    stream: PredictionStream,
    transform: Callable[[Predictions], Tensor],
    out: str | os.PathLike[str],
    *,
    check: Callable[[int | None], None] | None = None,
    progress: Progress | None = None,
    write: Written | None = None,
    engine: Engine | None = None,
) -> Rewritten:
    """Write each file of a stream again with new scores: probabilities stay probabilities, logits logits.

    Confidences of a black box are replaced too; the old ones stay as ``stated_confidence``. The new files are
    below the folder ``out``, under the names of the old ones, and appear when they are complete. If one is
    refused, those before it remain, and the folder is not read as a stream until a later call has written all
    files. Nothing is written over or below what is read. All other columns are copied, except ``confidence``
    and ``correct`` beside class scores, which describe the old predictions.

    Args:
        stream: The stream to read.
        transform: Returns new logits of shape ``(n, k)``, or new confidences of shape ``(n,)``, for some
            rows. Their groups are those by which the stream was opened, or those in a column ``groups``.
        out: A folder, which is created if necessary; for a stream of one file also the name of a
            ``.parquet`` file.
        check: Called with the number of classes, or None for confidences, before anything is written; raises
            an error if ``transform`` cannot take such predictions.
        progress: Called with the current file, the rows that are done, and the total.
        write: What is written, if not what the files hold: ``"probs"``, ``"logits"`` or ``"confidence"``.
        engine: Writes the files; by default this process, one after another.
    """
    layouts = stream.layouts()
    k = next(iter(layouts.values())).k
    write = check_written(write, k)
    if check is not None:
        check(k)
    folder = Path(out)
    targets = {source: _target(source, folder, alone=len(layouts) == 1) for source in layouts}
    read = [source.path for source in layouts if source.filesystem is None]
    check_targets(targets.values(), [stream.place, *read], name="out")
    done, total = 0, sum(sum(layout.rows) for layout in layouts.values())
    # A single file is written whole or not at all, so that its folder needs no mark.
    with nullcontext(list[Path]()) if folder in targets.values() else filling(folder, "out") as finished:
        jobs = [
            FileJob(source, layout, targets[source], stream.columns_by, write, transform)
            for source, layout in layouts.items()
        ]
        if engine is not None:  # others may have written any of the files when one of them refuses its own
            finished.extend(targets.values())
        for job, rows, complete in (engine or _one_by_one)(jobs):
            done += rows
            finished.extend([job.target] * complete)
            if progress is not None:
                progress(job.source.name, done, total)
    return Rewritten(len(layouts), done)


def _one_by_one(jobs: Sequence[FileJob]) -> Iterator[tuple[FileJob, int, bool]]:
    for job in jobs:
        for rows in job.run():
            yield job, rows, False
        yield job, 0, True


def _target(source: StreamFile, out: Path, *, alone: bool) -> Path:
    if out.is_file() or (alone and out.suffix.lower() == ".parquet" and not out.is_dir()):
        if not alone:
            raise InputError(f"out: expected a folder for several files, got the file {out}; name a folder")
        return out
    return out / source.name


def _rewrite(job: FileJob, path: Path) -> Iterator[int]:
    """Write one file and yield the number of rows of each piece as it is written."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from calibrant.data.parquet import CHECKSUMS

    source, layout, by = job.source, job.layout, job.by
    buffer = PIECE if layout.largest > LARGE else 0
    # A writer that opens the file itself would leave it open if the disk is full.
    with source.open(buffer_size=buffer) as file, pa.OSFile(os.fspath(path), "wb") as sink:
        schema: pa.Schema = file.schema_arrow
        columns = select_form(find_columns(schema.names), schema.names, need_labels=False)
        if by is None and GROUPS in schema.names:
            by, layout = GROUPS, replace(layout, by=GROUPS)
        scores = ScoreColumns.of(schema.names, write=job.write)
        writer: pq.ParquetWriter | None = None
        first_row = 0
        try:
            for group in range(len(layout.rows)):
                where = f"{source.name}, row group {group}"
                for rows in read_tables(file, group, rows_at_once([layout]), where):
                    with naming(where, first_row=first_row):
                        beside = _beside(rows, groups_of(rows, source, layout, by), pairs=not layout.k)
                        before = to_predictions(rows, columns, layout.names, beside)
                        table = _replaced(rows, before, job.transform(before), scores)
                    table = table.replace_schema_metadata(schema.metadata)
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


def _beside(
    rows: "pa.RecordBatch", groups: tuple[tuple[str, ...], npt.NDArray[np.int64] | None], *, pairs: bool
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


def _numbers(column: "pa.Array") -> npt.NDArray[np.float64]:
    """Return a column of numbers, NaN where one is missing."""
    import pyarrow as pa

    filled = column.cast(pa.float64()).fill_null(float("nan"))
    return np.array(np.from_dlpack(filled))


def _replaced(
    rows: "pa.RecordBatch", before: Predictions, new: Tensor, scores: ScoreColumns | None
) -> "pa.Table":
    """Return the rows with new predictions in place of the old ones."""
    if scores is None:
        arrays = {"confidence": new.detach().cpu().numpy()}
    else:
        arrays = scores.new(before.with_scores(new))
    old = {name: rows.column(name) for name in rows.schema.names}
    types = {name: column.type for name, column in old.items()}
    columns = {name: to_arrow(array, types.get(name)) for name, array in arrays.items()}
    import pyarrow as pa

    return pa.table(arranged(old, columns, () if scores is None else scores.replaced))
