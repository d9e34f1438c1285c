"""How a Parquet file of a stream is laid out: which columns hold predictions, how many rows where."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from calibrant.data.formats.columns import class_names, find_columns
from calibrant.data.formats.notes import from_text
from calibrant.data.keys import choose
from calibrant.errors import FormatError
from calibrant.streams.sources import Source

NOTES = b"calibrant"


@dataclass(frozen=True)
class Layout:
    """What the footer of a file says.

    Attributes:
        columns: Columns that hold each of our keys, those that are used.
        types: Type of each of these columns, in words.
        by: The column that groups, none if the path of the file tells the group.
        names: Names of the classes, where the file tells them.
        width: Number of classes; 1 of a vector.
        rows: Rows of each row group.
        largest: Bytes of the largest row group, compressed, only the columns that are used.
    """

    columns: Mapping[str, Sequence[str]]
    types: Mapping[str, str]
    by: str | None
    names: tuple[str, ...] | None
    width: int
    rows: tuple[int, ...]
    largest: int

    @property
    def k(self) -> int | None:
        """Number of classes; none of pairs. A vector tells of class 1 of two."""
        if "confidence" in self.columns:
            return None
        return max(2, self.width)

    @property
    def read(self) -> list[str]:
        """Columns to be read."""
        own = [column for spread in self.columns.values() for column in spread]
        return own if self.by is None or self.by in own else [*own, self.by]


def read_layout(source: Source, *, by: str | None, need_labels: bool) -> Layout:
    """Read the footer of a file and choose what is used of it."""
    with source.open() as file:
        schema, footer = file.schema_arrow, file.metadata
    used = choose(find_columns(schema.names), schema.names, need_labels=need_labels)
    used.pop("features", None)
    if by is not None and by not in schema.names and by not in source.partition:
        shown = ", ".join(schema.names[:12])
        raise FormatError(f"expected a column {by!r} to group by, got {shown}; name one of these")
    by = by if by in schema.names else None
    columns = [column for spread in used.values() for column in spread]
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    chunks = [[group.column(i) for i in range(group.num_columns)] for group in groups]
    said = next(iter(used[key] for key in ("logits", "probs", "confidence") if key in used))
    values = sum(c.num_values for group in chunks for c in group if _top(c) in said)
    notes = from_text((schema.metadata or {}).get(NOTES, b"{}").decode(), "calibrant")
    return Layout(
        columns=used,
        types={name: _kind(schema.field(name).type) for name in [*columns, *([by] if by else [])]},
        by=by,
        names=tuple(class_names(used) or notes.get("class_names") or ()) or None,
        width=max(1, values // max(1, footer.num_rows)),
        rows=tuple(group.num_rows for group in groups),
        largest=max(
            (sum(c.total_compressed_size for c in g if _top(c) in columns) for g in chunks), default=0
        ),
    )


def check_same(layout: Layout, first: Layout, name: str) -> None:
    """Refuse a file that holds something else than the first one."""
    if (layout.columns, layout.by) != (first.columns, first.by):
        ours, theirs = (", ".join(each.read[:12]) for each in (layout, first))
        raise FormatError(f"expected the columns {theirs} as in {name}, got {ours}; read them apart")
    for column, kind in first.types.items():
        if layout.types[column] != kind:
            raise FormatError(
                f"{column}: expected {kind} as in {name}, got {layout.types[column]}; read the files apart"
            )
    if layout.names != first.names:
        raise FormatError(f"expected the class names of {name}, got others; read the files apart")


def _top(chunk: pq.ColumnChunkMetaData) -> str:
    """Return the column that a chunk belongs to; that of a list has parts such as ``probs.list.element``."""
    path = str(chunk.path_in_schema)
    return path.removesuffix(".list.element").removesuffix(".list.item")


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_fixed_size_list(kind):
        return f"lists of {kind.list_size} {kind.value_type}"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"lists of {kind.value_type}"
    return str(kind.value_type if pa.types.is_dictionary(kind) else kind)
