"""Frames of pandas, Polars, Arrow and others that hand over Arrow columns, read as files are."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from calibrant.data.columns import FrameLike
from calibrant.data.tables import Parquet
from calibrant.errors import InputError
from calibrant.extras import optional

with optional("frame"):
    import pyarrow as pa


class _Opened(NamedTuple):
    """A table with what is read of an open Parquet file."""

    table: pa.Table

    @property
    def schema_arrow(self) -> pa.Schema:
        return self.table.schema

    def read(self, columns: list[str]) -> pa.Table:
        return self.table.select(columns)


class Frame(Parquet):
    """A frame, whose columns are named as those of a Parquet file; its index is not read."""

    def __init__(self, frame: FrameLike) -> None:
        super().__init__(Path("frame"))
        try:
            self._table = pa.table(frame)
        except (pa.ArrowException, TypeError, ValueError) as error:
            detail = " ".join(str(error).split())[:160]
            raise InputError(
                f"expected values of one kind in each column, got others ({detail}); convert them first"
            ) from None

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """Return the table as an open file."""
        yield _Opened(self._table)
