"""Parquet files whose damage is noticed: checksums of pages, names of columns, a digest of our notes."""

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import IO, Any

from calibrant.data.contents import from_text, to_text
from calibrant.errors import FormatError
from calibrant.extras import optional
from calibrant.files import digest

with optional("parquet"):
    import pyarrow as pa
    import pyarrow.parquet as pq

#: Options of pyarrow for files that we write.
CHECKSUMS: Mapping[str, Any] = MappingProxyType({"write_page_checksum": True})

_NOTES, _DIGEST = b"calibrant", b"calibrant_digest"
_DAMAGED = "the file was damaged; copy it or write it again"


def open_parquet(
    source: str | os.PathLike[str] | IO[bytes],
    **options: Any,  # noqa: ANN401  # of pyarrow
) -> pq.ParquetFile:
    """Open a Parquet file; pages that have a checksum, as in files that we write, are compared with it."""
    file = pq.ParquetFile(source, page_checksum_verification=True, **options)
    try:
        _check_names(file)
    except BaseException:
        file.close()
        raise
    return file


def write_parquet(table: pa.Table, path: str | os.PathLike[str]) -> None:
    """Write a table with checksums.

    The file is closed even if the disk is full; pyarrow's own would stay open and keep its room.
    """
    with pa.OSFile(os.fspath(path), "wb") as sink:
        pq.write_table(table, sink, **CHECKSUMS)


def _check_names(file: pq.ParquetFile) -> None:
    """Refuse a file whose columns have other names in the schema than beside their data."""
    schema, footer = file.schema, file.metadata
    for group in (footer.row_group(number) for number in range(min(1, footer.num_row_groups))):
        for place in range(group.num_columns):
            expected, found = schema.column(place).path, group.column(place).path_in_schema
            if expected != found:
                raise FormatError(
                    f"expected one name for each column, got {expected!r} and {found!r}; {_DAMAGED}"
                )


def notes_in(schema: pa.Schema) -> dict[str, Any]:
    """Return what we wrote beside the columns, such as class names and metadata; empty if we did not."""
    kept = schema.metadata or {}
    text = kept.get(_NOTES, b"").decode(errors="replace")
    expected = kept.get(_DIGEST)
    if expected is not None and digest(text).encode() != expected:
        raise FormatError(f"calibrant: expected the notes that their digest names, got others; {_DAMAGED}")
    notes = from_text(text or "{}", "calibrant")
    if not isinstance(notes, dict):
        raise FormatError(f"calibrant: expected a JSON object, got {text[:40]!r}")
    return notes


def with_notes(notes: Mapping[str, Any], schema: pa.Schema | None = None) -> dict[bytes, bytes]:
    """Return the metadata of a schema with these notes in place of its own."""
    text = to_text(notes)
    kept = {} if schema is None else dict(schema.metadata or {})
    return {**kept, _NOTES: text.encode(), _DIGEST: digest(text).encode()}
