"""The files of a stream: where they are, and what the footers of Parquet say about columns and rows."""

import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

from calibrant.data.contents import class_names, find_columns, select_form
from calibrant.data.files import FORMATS
from calibrant.errors import FormatError, InputError
from calibrant.extras import optional
from calibrant.files import address_of, local_path, suffix_of
from calibrant.outputs import INCOMPLETE, check_complete

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

#: Numbers that are read at a time, about.
ENTRIES = 1 << 21
_SUFFIX = ".parquet"
# Bytes above which a Parquet file is read as a stream, unless all samples are needed at once.
_LARGE = 200_000_000


@dataclass(frozen=True)
class StreamFile:
    """One file of a stream, which is Parquet unless it is loaded as a whole.

    Attributes:
        name: Its path below the folder of the stream, as errors show it.
        path: Its path on this machine or in ``filesystem``.
        filesystem: The fsspec file system of an address; none for a file on this machine.
    """

    name: str
    path: str
    filesystem: Any = None

    @contextmanager
    def open(self, *, buffer_size: int = 0) -> Iterator["pq.ParquetFile"]:
        """Open the file; with a buffer size, columns of a row group are read in pieces of that size."""
        from calibrant.data.parquet import open_parquet

        with ExitStack() as stack:
            handle = self.path
            if self.filesystem is not None:
                handle = stack.enter_context(self.filesystem.open(self.path, "rb"))
            yield stack.enter_context(open_parquet(handle, buffer_size=buffer_size))

    def content(self) -> AbstractContextManager[BinaryIO]:
        """Open the bytes of the file."""
        if self.filesystem is None:
            return Path(self.path).open("rb")
        opened: AbstractContextManager[BinaryIO] = self.filesystem.open(self.path, "rb")
        return opened

    @property
    def place(self) -> str:
        """Its path on this machine, or its address."""
        return self.path if self.filesystem is None else str(self.filesystem.unstrip_protocol(self.path))

    @property
    def is_parquet(self) -> bool:
        """Whether the file can be read in pieces."""
        return self.path.lower().endswith(_SUFFIX)

    @property
    def partition(self) -> dict[str, str]:
        """Values of all rows of the file from folders named ``key=value``."""
        pairs = (part.partition("=") for part in PurePosixPath(self.path.replace(os.sep, "/")).parts[:-1])
        return {key: value for key, mark, value in pairs if mark}


def is_url(source: str) -> bool:
    """Say whether this is an address such as ``s3://bucket/folder`` and not a path on this machine."""
    return "://" in source or address_of(source) is not None


def is_many(source: str) -> bool:
    """Say whether this can only be a stream: an address, a folder, or a pattern."""
    if address_of(source) is not None:
        # One file of another format is loaded as a whole.
        return glob.has_magic(source) or suffix_of(source) not in FORMATS or suffix_of(source) == _SUFFIX
    path = local_path(source)
    return path.is_dir() or (glob.has_magic(source) and not path.exists())


def find_stream_files(source: str) -> tuple[StreamFile, ...]:
    """List the Parquet files of a source in the order of their names, without hidden files and folders."""
    found = _remote(source) if is_url(source) else _local(source, (_SUFFIX,))
    if not found:
        others = () if is_url(source) else _local(source, tuple(FORMATS))
        advice = (
            f"{others[0].name} is no stream, and can only be loaded as a whole"
            if others
            else "check the path"
        )
        raise FormatError(f"{source}: expected files named *{_SUFFIX}, got none; {advice}")
    return tuple(sorted(found, key=lambda file: file.name))


def find_files(source: str) -> tuple[StreamFile, ...]:
    """List the files of predictions of a source, in any format, in the order of their names.

    In a folder these are its Parquet files or, if it has none, those of other formats. Addresses have only
    Parquet files.
    """
    if is_url(source):
        return find_stream_files(source)
    found = _local(source, tuple(FORMATS))
    parquet = [file for file in found if file.is_parquet]
    if not found:
        raise FormatError(f"{source}: expected files named *{', *'.join(FORMATS)}, got none; check the path")
    return tuple(sorted(parquet if parquet and Path(source).is_dir() else found, key=lambda file: file.name))


def _local(source: str, suffixes: tuple[str, ...]) -> list[StreamFile]:
    path = Path(source)
    if not source:
        raise FormatError("source: expected a file, a folder or a pattern, got an empty name; check the path")
    if path.is_dir():
        below = list(path.rglob("*"))
        for folder in (path, *(each.parent for each in below if each.name == INCOMPLETE)):
            check_complete(folder)
        files = [file for file in below if suffix_of(file) in suffixes and file.is_file()]
        return [
            StreamFile(name, str(file))
            for file in files
            if not _is_hidden(name := file.relative_to(path).as_posix())
        ]
    if path.exists():
        if suffix_of(path) not in suffixes:
            raise FormatError(
                f"{path.name}: expected a {_SUFFIX} file, a folder or a pattern, got {path.suffix!r}; "
                "only Parquet is read as a stream"
            )
        return [StreamFile(path.name, str(path))]
    if not glob.has_magic(source):
        raise FormatError(f"{path.name}: no such file or folder in {path.parent}; check the path")
    matches = [Path(file) for file in glob.glob(source, recursive=True)]  # noqa: PTH207  # Path.glob takes no absolute pattern
    found = [file for file in matches if suffix_of(file) in suffixes and file.is_file()]
    for folder in {file.parent for file in found}:
        check_complete(folder)
    root = _common([file.as_posix() for file in found])
    return [StreamFile(file.as_posix()[len(root) :], str(file)) for file in found]


def _remote(source: str) -> list[StreamFile]:
    source = address_of(source) or source
    with optional(source):
        core = import_module("fsspec.core")
    try:
        filesystem, path = core.url_to_fs(source)
        if glob.has_magic(path):
            found = filesystem.glob(path)
        else:
            found = filesystem.find(path) if filesystem.isdir(path) else [path] * filesystem.exists(path)
    except (ImportError, ValueError, OSError) as error:
        detail = " ".join(str(error).split())[:160]
        raise FormatError(f"{source}: expected an address that can be read, got {detail}") from error
    if mark := next((str(file) for file in found if str(file).endswith(f"/{INCOMPLETE}")), None):
        raise FormatError(
            f"{source}: expected a complete folder, got one whose writing has not ended; repeat the command "
            f"that was interrupted, or remove {mark} to read what is there"
        )
    files = [str(file) for file in found if str(file).lower().endswith(_SUFFIX)]
    root = _common(files)
    named = [StreamFile(file[len(root) :], file, filesystem) for file in files]
    return [file for file in named if not _is_hidden(file.name)]


def _common(paths: list[str]) -> str:
    """Return the folder that all paths share, with a slash at its end."""
    folders = [path.rpartition("/")[0] for path in paths]
    shared = os.path.commonpath(folders) if folders and all(folders) else ""
    return shared if not shared or shared.endswith("/") else f"{shared}/"


def _is_hidden(name: str) -> bool:
    return any(part.startswith((".", "_")) for part in PurePosixPath(name).parts)


@dataclass(frozen=True)
class FileLayout:
    """The columns that are read from a file, and its row groups, from the footer of the file.

    Attributes:
        columns: The columns that are read, for each key of ``Predictions``.
        types: Type of each of these columns, in words.
        by: The column that groups rows; none if the path of the file names the group.
        names: Names of the classes, if the file has them.
        width: Number of classes; 1 for a vector.
        rows: Rows of each row group.
        largest: Compressed bytes of the largest row group, counting only columns that are read.
        units: The columns and keys of folders that together name the unit of each row, if any are named.
        ids: The columns that together name each row, if any are named.
        truth: The column of labels, or of ``correct``, if it may lack values; it is not one of ``columns``.
    """

    columns: Mapping[str, Sequence[str]]
    types: Mapping[str, str]
    by: str | None
    names: tuple[str, ...] | None
    width: int
    rows: tuple[int, ...]
    largest: int
    units: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    truth: str | None = None

    @property
    def k(self) -> int | None:
        """Number of classes; none for confidences. A vector is the probability of class 1 of two."""
        if "confidence" in self.columns:
            return None
        return max(2, self.width)

    @property
    def read(self) -> list[str]:
        """Names of the columns to read, and those of keys of folders, which are no columns."""
        own = [column for spread in self.columns.values() for column in spread]
        beside = [name for name in (self.by, self.truth) if name is not None]
        return list(dict.fromkeys([*own, *beside, *self.units, *self.ids]))


def read_layout(
    source: StreamFile,
    *,
    by: str | None,
    need_labels: bool,
    units: tuple[str, ...] = (),
    ids: tuple[str, ...] = (),
    partly: bool = False,
    features: bool = False,
) -> FileLayout:
    """Read the footer of a file and choose its columns; ``partly`` if some rows may have no label."""
    from calibrant.data.parquet import notes_in

    with source.open() as file:
        schema, footer = file.schema_arrow, file.metadata
    used = select_form(find_columns(schema.names), schema.names, need_labels=need_labels)
    if not features:
        used.pop("features", None)
    if units:
        used.pop("units", None)
    for name, purpose in [
        *([] if by is None else [(by, "group by")]),
        *((each, "be units") for each in units),
        *((each, "be ids") for each in ids),
    ]:
        if name not in schema.names and name not in source.partition:
            shown = ", ".join(schema.names[:12])
            raise FormatError(f"expected a column {name!r} to {purpose}, got {shown}; name one of these")
    by = by if by in schema.names else None
    named = next((key for key in ("correct", "labels") if partly and used.get(key) == [key]), None)
    truth = None if named is None else used.pop(named)[0]
    columns = [column for spread in used.values() for column in spread]
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    chunks = [[group.column(i) for i in range(group.num_columns)] for group in groups]
    outputs = next(iter(used[key] for key in ("logits", "probs", "confidence") if key in used))
    values = sum(c.num_values for group in chunks for c in group if _top(c) in outputs)
    notes = notes_in(schema)
    return FileLayout(
        columns=used,
        types={name: _kind(schema.field(name).type) for name in [*columns, *([by] if by else [])]},
        by=by,
        names=tuple(class_names(used) or notes.get("class_names") or ()) or None,
        width=max(1, values // max(1, footer.num_rows)),
        rows=tuple(group.num_rows for group in groups),
        largest=max(
            (sum(c.total_compressed_size for c in g if _top(c) in columns) for g in chunks), default=0
        ),
        units=units,
        ids=ids,
        truth=truth,
    )


def rows_at_once(layouts: Iterable[FileLayout], most: int = ENTRIES) -> int:
    """Return the most rows of a batch, so that a batch of any width takes about the same memory."""
    width = max((layout.width for layout in layouts), default=1)
    return min(most, max(1024, ENTRIES // width))


def check_same(layout: FileLayout, first: FileLayout, name: str) -> None:
    """Refuse a file whose columns, types or class names differ from those of the first one."""
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


def _top(chunk: "pq.ColumnChunkMetaData") -> str:
    """Return the column of a chunk; the path of a list column ends in, say, ``.list.element``."""
    path = str(chunk.path_in_schema)
    return path.removesuffix(".list.element").removesuffix(".list.item")


def _kind(kind: "pa.DataType") -> str:
    import pyarrow as pa

    if pa.types.is_fixed_size_list(kind):
        return f"lists of {kind.list_size} {kind.value_type}"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"lists of {kind.value_type}"
    return str(kind.value_type if pa.types.is_dictionary(kind) else kind)


def is_streamed(
    source: str, *, asked: bool, needs_all: Sequence[str] = (), unless_small: bool = False
) -> bool:
    """Return whether a source is read as a stream; otherwise its files are loaded as a whole.

    Args:
        source: A path, pattern or address from the command line.
        asked: Whether an option asks for a stream.
        needs_all: The given options that need all samples at once.
        unless_small: Whether files that are small are loaded, because that gives more.
    """
    if not asked and not is_followed(source):
        return False
    files = () if is_url(source) or asked else find_files(source)
    whole = not all(file.is_parquet for file in files)
    small = bool(files) and sum(Path(file.path).stat().st_size for file in files) <= _LARGE
    if needs_all and not whole and not small and (asked or is_many(source)):
        unit = ", or name the units of its rows with --unit" if needs_all == ["--intervals"] else ""
        raise InputError(
            f"{needs_all[0]}: expected a file that is loaded as a whole, got a stream, which is read only "
            f"once; leave the option out or name one file{unit}"
        )
    return not whole and not needs_all and not (small and unless_small)


def is_followed(source: str) -> bool:
    """Return whether a source is several files or a large one, so that a monitor remembers what it read."""
    path = Path(source)
    large = suffix_of(path) == ".parquet" and path.is_file() and path.stat().st_size > _LARGE
    return large or is_many(source)
